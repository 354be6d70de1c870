"""ClusterAddons: EKS's managed add-ons, taking over the copies that EKS installs by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct, IDependable

from .cluster_type import AnyCluster, check_cluster
from .suppressions import suppress


class ClusterAddons(Construct):
    """vpc-cni (with network policy), kube-proxy, coredns, pod identity agent, node monitoring agent; FSx CSI and CloudWatch
    where asked.

    L1 resources: the L2 add-on cannot say ``OVERWRITE``, without which taking over the self-managed copies fails.

    :param system_nodes: what CoreDNS and the add-ons with ordinary pods wait for; without nodes they never become healthy.
    :param lustre: also the FSx for Lustre CSI driver.
    :param cloudwatch: also Container Insights with GPU and EFA metrics and the pods' logs.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        cluster: AnyCluster,
        system_nodes: IDependable,
        lustre: bool = False,
        cloudwatch: bool = False,
        basic: bool = True,
    ) -> None:
        check_cluster(cluster)
        super().__init__(scope, id)
        self._cluster = cluster
        self.network: eks.CfnAddon | None = None
        if basic:
            # Network policies are inert without the CNI's agent.
            self.network = self._addon("VpcCni", "vpc-cni", {"enableNetworkPolicy": "true"})
            self._addon("KubeProxy", "kube-proxy")
            self._addon("PodIdentity", "eks-pod-identity-agent")
            self._addon("NodeMonitoring", "eks-node-monitoring-agent")
            self._addon("CoreDns", "coredns", after=system_nodes)
        if lustre:
            # No role: volumes are provisioned by CloudFormation, and mounting one asks nothing of the FSx API.
            self._addon("Lustre", "aws-fsx-csi-driver", after=system_nodes)
        if cloudwatch:
            self._addon(
                "CloudWatch",
                "amazon-cloudwatch-observability",
                after=system_nodes,
                service_account="cloudwatch-agent",
                policy="CloudWatchAgentServerPolicy",
            )

    def _addon(
        self,
        id: str,
        name: str,
        configuration: Mapping[str, Any] | None = None,
        *,
        after: IDependable | None = None,
        service_account: str | None = None,
        policy: str | None = None,
    ) -> eks.CfnAddon:
        associations = None
        if service_account and policy:
            role = iam.Role(
                self,
                f"{id}Role",
                assumed_by=pod_identity_principal(),
                managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name(policy)],
            )
            suppress(role, "addon-role")
            associations = [
                eks.CfnAddon.PodIdentityAssociationProperty(role_arn=role.role_arn, service_account=service_account)
            ]
        addon = eks.CfnAddon(
            self,
            id,
            addon_name=name,
            cluster_name=self._cluster.cluster_name,
            resolve_conflicts="OVERWRITE",
            configuration_values=json.dumps(configuration, sort_keys=True) if configuration else None,
            pod_identity_associations=associations,
        )
        if after is not None:
            addon.node.add_dependency(after)
        return addon


def pod_identity_principal() -> iam.IPrincipal:
    """Who assumes a role through EKS Pod Identity (with session tags, so that policies may name the namespace)."""
    return iam.SessionTagsPrincipal(iam.ServicePrincipal("pods.eks.amazonaws.com"))
