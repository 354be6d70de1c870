"""TrainingCluster: an EKS control plane with everything a security review asks for, and no nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from aws_cdk import RemovalPolicy
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct

from .cluster_type import AnyCluster
from .kubectl import kubectl_layer
from .suppressions import allow_logs, suppress, suppress_kubectl_provider
from .versions import DEFAULT_KUBERNETES, minor_of


class TrainingCluster(Construct):
    """An ``aws_eks_v2`` cluster for managed node groups: no Auto Mode, no default nodes, secrets encrypted with a key of its
    own, all control plane logs, access by access entries only.

    Raises SettingsError where the kubectl layer's package is missing.

    :param admin_principals: IAM role or user ARNs that administer the cluster. Empty: only the deploy itself can.
    :param public_access_cidrs: networks that reach the endpoint from outside. Empty: private endpoint only.
    :param upgrade_policy: ``standard`` upgrades the cluster by itself when standard support ends; ``extended`` pays instead.
    :param kubectl_minor: minor version of the kubectl layer; default: the cluster's.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        vpc: ec2.IVpc,
        cluster_name: str,
        kubernetes_version: str = DEFAULT_KUBERNETES,
        admin_principals: Sequence[str] = (),
        public_access_cidrs: Sequence[str] = (),
        upgrade_policy: Literal["standard", "extended"] = "standard",
        deletion_protection: bool = False,
        kubectl_minor: int | None = None,
    ) -> None:
        super().__init__(scope, id)
        layer = kubectl_layer(self, "Kubectl", minor=kubectl_minor or minor_of(kubernetes_version))
        key = kms.Key(
            self,
            "SecretsKey",
            description=f"Kubernetes secrets and logs of the EKS cluster {cluster_name}",
            enable_key_rotation=True,
            removal_policy=RemovalPolicy.DESTROY,
        )
        allow_logs(key)
        # EKS would make this group itself, without an end, and leave it behind.
        log_group = logs.LogGroup(
            self,
            "Logs",
            log_group_name=f"/aws/eks/{cluster_name}/cluster",
            retention=logs.RetentionDays.ONE_MONTH,
            removal_policy=RemovalPolicy.DESTROY,
            encryption_key=key,
        )
        private = ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS)
        self.cluster: eks.Cluster = eks.Cluster(
            self,
            "Cluster",
            cluster_name=cluster_name,
            version=eks.KubernetesVersion.of(kubernetes_version),
            vpc=vpc,
            vpc_subnets=[private],
            default_capacity_type=eks.DefaultCapacityType.NODEGROUP,
            default_capacity=0,
            # Whoever deploys gets no lasting access by the way: admin_principals says who administers.
            bootstrap_cluster_creator_admin_permissions=False,
            endpoint_access=_endpoint(public_access_cidrs),
            secrets_encryption_key=key,
            cluster_logging=list(eks.ClusterLoggingTypes),
            kubectl_provider_options=eks.KubectlProviderOptions(kubectl_layer=layer),
            # Reaches the handlers' log groups, which would otherwise outlive the stack.
            removal_policy=RemovalPolicy.DESTROY,
            # kubectl's prune never covers custom resources and would only add a label that differs by place in the tree.
            prune=False,
            output_config_command=False,
        )
        resource: Any = self.cluster.node.default_child
        resource.add_property_override("UpgradePolicy", {"SupportType": upgrade_policy.upper()})
        resource.add_property_override("DeletionProtection", deletion_protection)
        resource.node.add_dependency(log_group)
        suppress(self.cluster.node.find_child("Role"), "cluster-role")
        suppress_kubectl_provider(self.cluster.node.find_child("KubectlProvider"))
        for arn in admin_principals:
            # By hash, not by position: a changed order must not move a principal from one access entry to another, since EKS
            # refuses a second entry for the same principal while the first still exists.
            self.cluster.grant_cluster_admin(f"Admin{hashlib.sha256(arn.encode()).hexdigest()[:8]}", arn)


def _endpoint(cidrs: Sequence[str]) -> eks.EndpointAccess:
    if not cidrs:
        return eks.EndpointAccess.PRIVATE
    return eks.EndpointAccess.PUBLIC_AND_PRIVATE.only_from(*cidrs)


def existing_cluster(
    scope: Construct, id: str, *, vpc: ec2.IVpc, attributes: Mapping[str, Any], kubectl_minor: int
) -> AnyCluster:
    """A cluster that another team made, by the attributes that the setting ``existing_cluster`` holds; no look-up.

    The deploy's handler runs with the role ``kubectl_role_arn``: it must trust Lambda, have AWS's policy
    ``AWSLambdaVPCAccessExecutionRole`` and administer the cluster through an access entry.
    """
    # The provider wants a cluster and the cluster a provider: the first import only says where the cluster is.
    bare = eks.Cluster.from_cluster_attributes(scope, f"{id}Bare", cluster_name=attributes["name"], vpc=vpc)
    group = ec2.SecurityGroup.from_security_group_id(
        scope, "KubectlSecurityGroup", attributes["security_group_id"], mutable=False
    )
    role = iam.Role.from_role_arn(scope, "KubectlRole", attributes["kubectl_role_arn"])
    provider = eks.KubectlProvider(
        scope,
        "KubectlProvider",
        cluster=bare,
        kubectl_layer=kubectl_layer(scope, "Kubectl", minor=kubectl_minor),
        role=role,
        private_subnets=vpc.private_subnets,
        security_groups=[group],
        removal_policy=RemovalPolicy.DESTROY,
    )
    # The CDK's condition for a managed policy of the role, which an imported role does not get: nothing would use it (W8001).
    scope.node.try_remove_child("HasEcrPublic")
    suppress_kubectl_provider(provider)
    return eks.Cluster.from_cluster_attributes(
        scope,
        id,
        cluster_name=attributes["name"],
        cluster_security_group_id=attributes["security_group_id"],
        vpc=vpc,
        prune=False,
        kubectl_provider=provider,
    )
