"""What the constructs accept as a cluster."""

from __future__ import annotations

from typing import Any, cast

from aws_cdk import aws_eks_v2 as eks

from .errors import SettingsError

# At run time every Cluster is an ICluster; in aws-cdk-lib 2.275's type hints it lacks a member of that protocol.
AnyCluster = eks.ICluster | eks.Cluster

_OLDER = "aws_cdk.aws_eks"


def as_icluster(cluster: AnyCluster) -> eks.ICluster:
    """``cluster`` as the CDK's own constructs want it."""
    return cast(eks.ICluster, cluster)


def cluster_problems(cluster: Any) -> list[str]:
    """What is wrong with ``cluster``: the older module's clusters share enough names to go through synthesis unnoticed."""
    # An imported cluster is one of jsii's proxies, whose interfaces are its delegates.
    kinds = [kind for one in (cluster, *getattr(cluster, "_delegates", ())) for kind in type(one).__mro__]
    older = next((kind for kind in kinds if kind.__module__ == _OLDER), None)
    if older is None:
        return []
    return [
        f"cluster must be a cluster of aws_cdk.aws_eks_v2, own or imported, got one of {_OLDER} ({older.__name__.strip('_').removesuffix('Proxy')}); use "
        "aws_eks_v2.Cluster, or aws_eks_v2.Cluster.from_cluster_attributes for a cluster that exists"
    ]


def check_cluster(cluster: Any) -> None:
    """Raises SettingsError where ``cluster`` is none of ``aws_eks_v2``."""
    problems = cluster_problems(cluster)
    if problems:
        raise SettingsError(problems)
