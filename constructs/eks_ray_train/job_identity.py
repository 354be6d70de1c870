"""JobIdentity: what the training pods may do in AWS, through EKS Pod Identity and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import Stack
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct, IDependable

from .cluster_addons import pod_identity_principal
from .cluster_type import AnyCluster, check_cluster
from .data_locations import DataLocation, data_location
from .suppressions import suppress


class JobIdentity(Construct):
    """A role bound to one service account in one namespace of one cluster.

    :param statements: what the role may do, for example ``CheckpointBucket.statements()``.
    :param data_buckets: ``s3://bucket/prefix`` or S3 ARNs that the job may list and read, never write.
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
        data_buckets: Sequence[str] = (),
        secret_arn: str | None = None,
    ) -> None:
        check_cluster(cluster)
        places = [data_location(text) for text in data_buckets]
        super().__init__(scope, id)
        self.service_account = service_account
        self.role: iam.Role = iam.Role(self, "Role", assumed_by=pod_identity_principal())
        for statement in [*statements, *_read_only(Stack.of(self).partition, places)]:
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


def _read_only(partition: str, places: Sequence[DataLocation]) -> list[iam.PolicyStatement]:
    """List and read each of ``places``. A bucket of another account must let this role in itself, and so must a key of its own."""

    def arn(name: str) -> str:
        return f"arn:{partition}:s3:::{name}"

    if not places:
        return []
    buckets = list(dict.fromkeys(arn(place.bucket) for place in places))
    return [
        *(
            iam.PolicyStatement(
                actions=["s3:ListBucket"],
                resources=[arn(place.bucket)],
                conditions={"StringLike": {"s3:prefix": place.listed}},
            )
            for place in places
        ),
        iam.PolicyStatement(actions=["s3:GetBucketLocation"], resources=buckets),
        iam.PolicyStatement(
            actions=["s3:GetObject"], resources=[arn(name) for place in places for name in place.objects]
        ),
    ]
