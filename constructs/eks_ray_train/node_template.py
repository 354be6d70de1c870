"""Parts that every managed node group of this library shares: role, volumes, metadata options, tags."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import CfnTag, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct

from .instances import AmiFamily
from .suppressions import suppress

MIN_GPU_DISK_GIB = 100

_MANAGED_POLICIES = (
    "AmazonEKSWorkerNodePolicy",
    "AmazonEKS_CNI_Policy",
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonSSMManagedInstanceCore",
)


def node_role(scope: Construct, id: str, *, container_mirror: str | None = None) -> iam.Role:
    """Role of the nodes: join the cluster, run the CNI, pull from ECR, shell access by SSM (no SSH key anywhere).

    ``container_mirror`` (an ECR registry with a pull-through cache, optional repository prefix) adds what the first pull
    through the cache needs; without it nothing is added.
    """
    role = iam.Role(
        scope,
        id,
        assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
        managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name(name) for name in _MANAGED_POLICIES],
    )
    if container_mirror and ".dkr.ecr." in container_mirror:
        registry, _, prefix = container_mirror.partition("/")
        stack = Stack.of(scope)
        role.add_to_policy(
            iam.PolicyStatement(
                actions=["ecr:BatchImportUpstreamImage", "ecr:CreateRepository"],
                resources=[
                    stack.format_arn(
                        service="ecr",
                        region=registry.split(".")[3],
                        resource="repository",
                        resource_name=f"{prefix}/*" if prefix else "*",
                    )
                ],
            )
        )
    suppress(role, "node-role")
    return role


def volumes(
    *, size_gib: int, throughput_mib: int, family: AmiFamily = "al2023"
) -> list[ec2.CfnLaunchTemplate.BlockDeviceMappingProperty]:
    """Encrypted gp3 volume for images and pods: AL2023's root ``/dev/xvda``, Bottlerocket's data disk ``/dev/xvdb``."""

    def mapping(device: str, gib: int, throughput: int) -> ec2.CfnLaunchTemplate.BlockDeviceMappingProperty:
        return ec2.CfnLaunchTemplate.BlockDeviceMappingProperty(
            device_name=device,
            ebs=ec2.CfnLaunchTemplate.EbsProperty(
                volume_type="gp3", volume_size=gib, throughput=throughput, encrypted=True, delete_on_termination=True
            ),
        )

    if family == "bottlerocket":
        return [mapping("/dev/xvda", 8, 125), mapping("/dev/xvdb", size_gib, throughput_mib)]
    return [mapping("/dev/xvda", size_gib, throughput_mib)]


def metadata_options() -> ec2.CfnLaunchTemplate.MetadataOptionsProperty:
    """IMDSv2 only, hop limit 1: pods get credentials from EKS Pod Identity, never the node's own."""
    return ec2.CfnLaunchTemplate.MetadataOptionsProperty(http_tokens="required", http_put_response_hop_limit=1)


def tag_specifications(tags: Mapping[str, str]) -> list[ec2.CfnLaunchTemplate.TagSpecificationProperty]:
    """Tags for instances, volumes and interfaces: a node group's own tags do not reach them."""
    return [
        ec2.CfnLaunchTemplate.TagSpecificationProperty(
            resource_type=kind, tags=[CfnTag(key=key, value=value) for key, value in tags.items()]
        )
        for kind in ("instance", "volume", "network-interface")
    ]
