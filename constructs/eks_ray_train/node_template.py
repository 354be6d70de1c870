"""Parts that every managed node group of this library shares: role, volumes, metadata options, tags."""

from __future__ import annotations

import re
from collections.abc import Mapping

from aws_cdk import CfnTag, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct

from .instances import AmiFamily
from .suppressions import suppress

MIN_GPU_DISK_GIB = 100

# https://docs.aws.amazon.com/AmazonECR/latest/userguide/Registries.html
_ECR_REGISTRY = re.compile(
    r"(?P<account>\d{12})\.dkr[.-]ecr(-fips)?\.(?P<region>[a-z0-9-]+)\.(amazonaws\.com(\.cn)?|on\.aws)"
)

_MANAGED_POLICIES = (
    "AmazonEKSWorkerNodePolicy",
    "AmazonEKS_CNI_Policy",
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonSSMManagedInstanceCore",
)


def node_role(scope: Construct, id: str, *, container_mirror: str | None = None) -> iam.Role:
    """Role of the nodes: join the cluster, run the CNI, pull from ECR, shell access by SSM (no SSH key anywhere).

    ``container_mirror`` (an ECR registry with a pull-through cache, optional repository prefix) adds what the first pull
    through the cache needs (https://docs.aws.amazon.com/AmazonECR/latest/userguide/pull-through-cache-iam.html); a registry that
    is none of ECR's, or none at all, adds nothing.
    """
    role = iam.Role(
        scope,
        id,
        assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
        managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name(name) for name in _MANAGED_POLICIES],
    )
    registry, _, prefix = (container_mirror or "").partition("/")
    cache = _ECR_REGISTRY.fullmatch(registry)
    if cache:
        repositories = Stack.of(scope).format_arn(
            service="ecr",
            region=cache["region"],
            account=cache["account"],  # a registry of another account lets these in by its own policy as well
            resource="repository",
            resource_name=f"{prefix}/*" if prefix else "*",
        )
        role.add_to_policy(
            iam.PolicyStatement(
                actions=["ecr:BatchImportUpstreamImage", "ecr:CreateRepository"], resources=[repositories]
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
