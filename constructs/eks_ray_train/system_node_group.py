"""SystemNodeGroup: CPU nodes for the Ray head, the KubeRay operator, CoreDNS and job submitters."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct, IDependable

from .cluster_type import AnyCluster, cluster_problems
from .errors import SettingsError
from .instances import get_system_instance_type
from .node_labels import SYSTEM_NODE_SELECTOR
from .node_template import metadata_options, node_role, tag_specifications, volumes
from .system_sizing import required_system_nodes


class SystemNodeGroup(Construct):
    """A managed node group of CPU instances with our system label and no taint.

    Raises SettingsError where the nodes cannot hold what must run there.

    :param node_count: default: the least that holds one Ray head for each of ``heads`` and the rest.
    :param subnets: the private subnets; nodes may spread over zones.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        cluster: AnyCluster,
        subnets: Sequence[ec2.ISubnet],
        instance_type: str = "m7i.xlarge",
        node_count: int | None = None,
        heads: int = 1,
        disk_size_gib: int = 100,
        node_repair: bool = True,
        container_mirror: str | None = None,
    ) -> None:
        needed, problems = 0, cluster_problems(cluster)
        try:
            needed = required_system_nodes(get_system_instance_type(instance_type), heads=heads)
        except SettingsError as error:
            problems += error.problems
        if node_count is not None and node_count < needed:
            problems.append(
                f"node_count must be at least {needed} x {instance_type} for {heads} Ray head(s), the operator and CoreDNS, got {node_count}"
            )
        if problems:
            raise SettingsError(problems)
        super().__init__(scope, id)
        self.node_count = node_count or needed
        self.role: iam.Role = node_role(self, "Role", container_mirror=container_mirror)
        template = ec2.CfnLaunchTemplate(
            self,
            "LaunchTemplate",
            launch_template_data=ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(
                # The Ray head runs the same large image as the workers.
                block_device_mappings=volumes(size_gib=disk_size_gib, throughput_mib=250),
                metadata_options=metadata_options(),
                tag_specifications=tag_specifications({"Name": self.node.path.replace("/", "-")}),
            ),
        )
        ng = eks.CfnNodegroup
        self.node_group = ng(
            self,
            "NodeGroup",
            cluster_name=cluster.cluster_name,
            node_role=self.role.role_arn,
            subnets=[subnet.subnet_id for subnet in subnets],
            ami_type="AL2023_x86_64_STANDARD",
            capacity_type="ON_DEMAND",
            instance_types=[instance_type],
            force_update_enabled=False,
            labels=SYSTEM_NODE_SELECTOR,
            launch_template=ng.LaunchTemplateSpecificationProperty(
                id=template.ref, version=template.attr_latest_version_number
            ),
            node_repair_config=ng.NodeRepairConfigProperty(enabled=node_repair),
            scaling_config=ng.ScalingConfigProperty(
                min_size=self.node_count, desired_size=self.node_count, max_size=self.node_count + 1
            ),
            update_config=ng.UpdateConfigProperty(max_unavailable=1),
        )

    @property
    def ready(self) -> IDependable:
        return self.node_group
