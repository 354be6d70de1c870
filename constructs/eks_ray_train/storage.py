"""Where checkpoints live: CheckpointBucket (S3), or LustreStorage (FSx for Lustre in front of such a bucket)."""

from __future__ import annotations

from typing import Any, Literal

from aws_cdk import CfnTag, Duration, RemovalPolicy, Stack, Tags
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from constructs import Construct

from .cluster_type import AnyCluster, cluster_problems
from .errors import SettingsError
from .manifests.names import FSX_MOUNT
from .suppressions import suppress

# Teardown checks list what carries this tag as kept on purpose, with its price, and do not count it as left behind.
KEEP_TAG = ("keep", "true")
_LUSTRE_STEP_GIB = 2400


class CheckpointBucket(Construct):
    """An encrypted bucket; the job reads and writes below one prefix of it only.

    :param prefix: folder of this training cluster, for example its name; must not be empty.
    :param keep: leave the bucket when the stack is destroyed and tag it ``keep=true``; else it is emptied and deleted.
    """

    def __init__(self, scope: Construct, id: str, *, prefix: str, keep: bool = True) -> None:
        prefix = prefix.strip("/")
        if not prefix:
            raise SettingsError("prefix of a CheckpointBucket must not be empty: access is limited to it; give a name")
        super().__init__(scope, id)
        self.prefix = prefix
        self.bucket: s3.Bucket = s3.Bucket(
            self,
            "Bucket",
            encryption=s3.BucketEncryption.S3_MANAGED,
            enforce_ssl=True,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            minimum_tls_version=1.2,
            lifecycle_rules=[
                s3.LifecycleRule(id="IncompleteUploads", abort_incomplete_multipart_upload_after=Duration.days(7))
            ],
            removal_policy=RemovalPolicy.RETAIN if keep else RemovalPolicy.DESTROY,
            auto_delete_objects=not keep,
        )
        suppress(self.bucket, "checkpoint-bucket")
        if not keep:
            suppress(Stack.of(self).node.find_child("Custom::S3AutoDeleteObjectsCustomResourceProvider"), "bucket-cleaner")
        if keep:
            Tags.of(self.bucket).add(*KEEP_TAG)

    @property
    def storage_path(self) -> str:
        """Default of the job's ``--storage-path`` (a token)."""
        return f"s3://{self.bucket.bucket_name}/{self.prefix}"

    @property
    def lustre_claim(self) -> str | None:
        return None

    def statements(self) -> list[iam.PolicyStatement]:
        """What the job's role may do: list, read, write and delete below the prefix."""
        return [
            iam.PolicyStatement(
                actions=["s3:ListBucket", "s3:ListBucketMultipartUploads"],
                resources=[self.bucket.bucket_arn],
                conditions={"StringLike": {"s3:prefix": [self.prefix, f"{self.prefix}/*"]}},
            ),
            iam.PolicyStatement(actions=["s3:GetBucketLocation"], resources=[self.bucket.bucket_arn]),
            iam.PolicyStatement(
                actions=[
                    "s3:GetObject",
                    "s3:PutObject",
                    "s3:DeleteObject",
                    "s3:AbortMultipartUpload",
                    "s3:ListMultipartUploadParts",
                ],
                resources=[self.bucket.arn_for_objects(f"{self.prefix}/*")],
            ),
        ]

    def manifests(self, *, namespace: str) -> list[dict[str, Any]]:
        """Nothing in the cluster: Ray writes to S3 by itself."""
        return []


class LustreStorage(Construct):
    """An FSx for Lustre file system in the GPU nodes' zone, mounted at ``/fsx`` in every Ray pod, whose files are exported to a
    :class:`CheckpointBucket`.

    The file system goes with the stack (its interfaces would block the VPC's deletion); what is kept is the bucket.
    Needs the ``aws-fsx-csi-driver`` add-on.

    :param subnet_id: the GPU nodes' subnet, also a token.
    :param capacity_gib: 1200, or a multiple of 2400.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        cluster: AnyCluster,
        subnet_id: str,
        bucket: CheckpointBucket,
        name: str,
        capacity_gib: int = 1200,
    ) -> None:
        problems = cluster_problems(cluster)
        if capacity_gib != 1200 and (capacity_gib <= 0 or capacity_gib % _LUSTRE_STEP_GIB):
            problems.append(f"capacity_gib must be 1200 or a multiple of {_LUSTRE_STEP_GIB}, got {capacity_gib}")
        if problems:
            raise SettingsError(problems)
        from aws_cdk import aws_fsx as fsx  # a tenth of a second that only this construct should cost

        super().__init__(scope, id)
        self.name = name
        self.bucket = bucket
        self.capacity_gib = capacity_gib
        self.file_system = fsx.CfnFileSystem(
            self,
            "FileSystem",
            file_system_type="LUSTRE",
            file_system_type_version="2.15",
            storage_type="SSD",
            storage_capacity=capacity_gib,
            subnet_ids=[subnet_id],
            # The cluster security group lets its members talk to each other: no rule across stacks is needed.
            security_group_ids=[cluster.cluster_security_group_id],
            lustre_configuration=fsx.CfnFileSystem.LustreConfigurationProperty(
                deployment_type="PERSISTENT_2", per_unit_storage_throughput=250, data_compression_type="LZ4"
            ),
            tags=[CfnTag(key="Name", value=name)],
        )
        fsx.CfnDataRepositoryAssociation(
            self,
            "Export",
            file_system_id=self.file_system.ref,
            file_system_path=f"/{name}",
            data_repository_path=bucket.storage_path,
            batch_import_meta_data_on_create=True,
            s3=fsx.CfnDataRepositoryAssociation.S3Property(
                auto_export_policy=fsx.CfnDataRepositoryAssociation.AutoExportPolicyProperty(
                    events=["NEW", "CHANGED", "DELETED"]
                ),
                auto_import_policy=fsx.CfnDataRepositoryAssociation.AutoImportPolicyProperty(
                    events=["NEW", "CHANGED", "DELETED"]
                ),
            ),
        )

    @property
    def storage_path(self) -> str:
        return f"{FSX_MOUNT}/{self.name}"

    @property
    def lustre_claim(self) -> str | None:
        """Name of the PersistentVolumeClaim that the pods mount."""
        return f"{self.name}-fsx"

    def statements(self) -> list[iam.PolicyStatement]:
        """The job reaches the files through the mount; S3 only as the file system's mirror, with the same limits."""
        return self.bucket.statements()

    def manifests(self, *, namespace: str) -> list[dict[str, Any]]:
        """A statically provisioned volume and its claim (https://github.com/kubernetes-sigs/aws-fsx-csi-driver)."""
        volume = f"{namespace}-{self.lustre_claim}"
        size = {"storage": f"{self.capacity_gib}Gi"}
        dns = f"{self.file_system.ref}.fsx.{Stack.of(self).region}.{Stack.of(self).url_suffix}"
        return [
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume},
                "spec": {
                    "capacity": size,
                    "accessModes": ["ReadWriteMany"],
                    "mountOptions": ["flock"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "storageClassName": "",
                    "claimRef": {"namespace": namespace, "name": self.lustre_claim},
                    "csi": {
                        "driver": "fsx.csi.aws.com",
                        "volumeHandle": self.file_system.ref,
                        "volumeAttributes": {"dnsname": dns, "mountname": self.file_system.attr_lustre_mount_name},
                    },
                },
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": self.lustre_claim, "namespace": namespace},
                "spec": {
                    "accessModes": ["ReadWriteMany"],
                    "storageClassName": "",
                    "volumeName": volume,
                    "resources": {"requests": size},
                },
            },
        ]


Storage = CheckpointBucket | LustreStorage


def make_storage(
    scope: Construct,
    id: str,
    *,
    kind: Literal["s3", "fsx", "none"],
    keep: bool,
    name: str,
    cluster: AnyCluster,
    subnet_id: str,
) -> Storage | None:
    """The storage that a setting names: ``s3`` a bucket, ``fsx`` Lustre in front of a bucket, ``none`` nothing."""
    if kind == "none":
        return None
    bucket = CheckpointBucket(scope, id, prefix=name, keep=keep)
    if kind == "s3":
        return bucket
    return LustreStorage(scope, f"{id}Lustre", cluster=cluster, subnet_id=subnet_id, bucket=bucket, name=name)
