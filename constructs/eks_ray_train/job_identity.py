"""JobIdentity: what the training pods may do in AWS, through EKS Pod Identity and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct, IDependable

from .cluster_addons import pod_identity_principal
from .cluster_type import AnyCluster
from .suppressions import suppress


class JobIdentity(Construct):
    """A role bound to one service account in one namespace of one cluster.

    :param statements: what the role may do, for example ``CheckpointBucket.statements()``.
    :param secret_arn: a Secrets Manager secret that the job may read by itself (its value never enters a template).
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        cluster: AnyCluster,
        namespace: str,
        service_account: str,
        statements: Sequence[iam.PolicyStatement] = (),
        secret_arn: str | None = None,
    ) -> None:
        super().__init__(scope, id)
        self.service_account = service_account
        self.role: iam.Role = iam.Role(self, "Role", assumed_by=pod_identity_principal())
        for statement in statements:
            self.role.add_to_policy(statement)
        if secret_arn:
            self.role.add_to_policy(
                iam.PolicyStatement(actions=["secretsmanager:GetSecretValue"], resources=[secret_arn])
            )
        suppress(self.role, "job-role")
        self.association = eks.CfnPodIdentityAssociation(
            self,
            "Association",
            cluster_name=cluster.cluster_name,
            namespace=namespace,
            service_account=service_account,
            role_arn=self.role.role_arn,
        )

    @property
    def ready(self) -> IDependable:
        return self.association
