"""What the constructs accept as a cluster."""

from __future__ import annotations

from typing import cast

from aws_cdk import aws_eks_v2 as eks

# At run time every Cluster is an ICluster; in aws-cdk-lib 2.275's type hints it lacks a member of that protocol.
AnyCluster = eks.ICluster | eks.Cluster


def as_icluster(cluster: AnyCluster) -> eks.ICluster:
    """``cluster`` as the CDK's own constructs want it."""
    return cast(eks.ICluster, cluster)
