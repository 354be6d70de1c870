"""EfaGpuNodeGroup: a managed node group of EFA GPU instances, every network interface where the hardware has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct, IDependable

from .cluster_type import AnyCluster
from .device_plugins import DevicePlugins, device_plugins_of
from .efa_gpu_node_group_rules import Capacity, checked_instance
from .efa_security_group import EfaSecurityGroup
from .instances import AmiFamily, InstanceType
from .node_labels import GPU_NODE_SELECTOR, GPU_PRESENT_LABEL, GPU_TAINT, Taint
from .node_template import metadata_options, node_role, tag_specifications, volumes
from .node_user_data import LOCAL_NVME_DIR, node_user_data

# GPU faults that an application causes by itself; replacing the node would kill a run for nothing.
# https://docs.nvidia.com/deploy/xid-errors/ (13: graphics engine exception, 31: memory page fault)
_APPLICATION_FAULTS = ("NvidiaXID13Error", "NvidiaXID31Error")


class EfaGpuNodeGroup(Construct):
    """GPU nodes whose launch template carries the type's full EFA layout, in one subnet, for one training cluster.

    Raises SettingsError (a ValueError) before any resource exists for a cluster of another module, a type without EFA, zero
    nodes, a disk too small for the CUDA image, several subnets, or a reservation that does not go with ``capacity``.

    :param cluster: a cluster of ``aws_eks_v2``, own or imported (then with its cluster security group id).
    :param instance_type: a type of the catalogue, for example ``g6.12xlarge``.
    :param node_count: nodes to start with; also the maximum.
    :param desired_count: nodes to start with where a deploy decides (a number token); default ``node_count``.
    :param subnets: exactly one subnet; EFA traffic does not leave an availability zone. Or ``subnet_id``.
    :param subnet_id: the subnet's id, also a token (``CapacityClaim.subnet_id``). Or ``subnets``.
    :param vpc: where the EFA security group is made; default: the cluster's.
    :param capacity: ``hold`` and ``reservation`` launch into ``capacity_reservation_id`` only, ``block`` into that Capacity
        Block; ``probe`` and ``none`` launch on demand (and use a matching open reservation where the account has one).
    :param gpus: GPUs a node as the caller believes; an error where the type has another number. Default: the type's.
    :param disk_size_gib: root volume, at least 100 GiB; ``disk_throughput_mib`` in MiB/s.
    :param security_group: own or imported group for the interfaces; it gets explicit self rules unless
        ``manage_security_group_rules`` is false (then it must already have them). Default: a new group.
    :param placement_group: put the nodes into a new cluster placement group.
    :param node_repair: EKS replaces broken nodes, one at a time, never for a fault that the application caused.
    :param taints: further taints; workers and device plugins of this library tolerate them.
    :param role: the nodes' role, for example :attr:`SystemNodeGroup.role`, which has the same permissions; default: a new one.
    :param container_mirror: ECR registry whose pull-through cache serves the images: a new role gets what that needs; default: no
        extra permission.
    :param device_plugins: the cluster's plugins, which then tolerate ``taints``; default: those this library installed on
        ``cluster`` in the same app, if any.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        cluster: AnyCluster,
        instance_type: str,
        node_count: int,
        desired_count: int | None = None,
        subnets: Sequence[ec2.ISubnet] = (),
        subnet_id: str | None = None,
        vpc: ec2.IVpc | None = None,
        capacity: Capacity = "none",
        capacity_reservation_id: str | None = None,
        ami_family: AmiFamily = "al2023",
        gpus: int | None = None,
        disk_size_gib: int = 200,
        disk_throughput_mib: int = 500,
        security_group: ec2.ISecurityGroup | None = None,
        manage_security_group_rules: bool = True,
        placement_group: bool = False,
        node_repair: bool = True,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Taint] = (),
        role: iam.IRole | None = None,
        container_mirror: str | None = None,
        device_plugins: DevicePlugins | None = None,
        accept_unverified_layout: bool = False,
    ) -> None:
        self.instance: InstanceType = checked_instance(
            cluster=cluster,
            instance_type=instance_type,
            accept_unverified_layout=accept_unverified_layout,
            node_count=node_count,
            subnets=subnets,
            subnet_id=subnet_id,
            capacity=capacity,
            reservation_id=capacity_reservation_id,
            gpus=gpus,
            disk_size_gib=disk_size_gib,
            placement_group=placement_group,
            permits_mirror=role is None or container_mirror is None,
        )
        super().__init__(scope, id)
        self.cluster = cluster
        self.node_count = node_count
        self.ami_family: AmiFamily = ami_family
        self.taints: tuple[Taint, ...] = (GPU_TAINT, *taints)
        self.labels: dict[str, str] = {**(labels or {}), **GPU_NODE_SELECTOR, **GPU_PRESENT_LABEL}
        self.subnet_id: str = subnet_id or subnets[0].subnet_id

        self.efa_security_group = EfaSecurityGroup(
            self,
            "Efa",
            vpc=vpc or cluster.vpc,
            security_group=security_group,
            manage_rules=manage_security_group_rules,
        )
        self.role: iam.IRole = role or node_role(self, "Role", container_mirror=container_mirror)
        self.launch_template = ec2.CfnLaunchTemplate(
            self,
            "LaunchTemplate",
            launch_template_data=self._template_data(
                capacity, capacity_reservation_id, disk_size_gib, disk_throughput_mib, placement_group
            ),
        )
        self.node_group = self._node_group(
            capacity, node_count if desired_count is None else desired_count, node_repair
        )
        for rule in self.efa_security_group.rules:
            # Deleted in reverse: the rules stay until the nodes that need them are gone.
            self.node_group.node.add_dependency(rule)

        plugins = device_plugins or device_plugins_of(cluster)
        if plugins is not None:
            plugins.tolerate(self.taints)

    @property
    def node_group_name(self) -> str:
        """The generated name (a token)."""
        return self.node_group.attr_nodegroup_name

    @property
    def node_group_arn(self) -> str:
        return self.node_group.attr_arn

    @property
    def cache_dir(self) -> str | None:
        """Folder of the nodes' NVMe disks that outlives pods; None where the type has none known, or Bottlerocket mounts it."""
        return LOCAL_NVME_DIR if self.instance.local_nvme_gb and self.ami_family == "al2023" else None

    @property
    def total_gpus(self) -> int:
        return self.instance.gpus * self.node_count

    @property
    def ready(self) -> IDependable:
        """What to depend on for something that needs the nodes."""
        return self.node_group

    def _template_data(
        self, capacity: Capacity, reservation_id: str | None, disk_gib: int, throughput_mib: int, placement_group: bool
    ) -> ec2.CfnLaunchTemplate.LaunchTemplateDataProperty:
        lt = ec2.CfnLaunchTemplate
        # Named groups replace the cluster's own, which EKS adds only where a template names none: list both everywhere.
        groups = [self.efa_security_group.security_group_id, self.cluster.cluster_security_group_id]
        interfaces = [
            lt.NetworkInterfaceProperty(
                network_card_index=interface.network_card_index,
                device_index=interface.device_index,
                interface_type=interface.interface_type,
                groups=groups,
                delete_on_termination=True,
            )
            for interface in self.instance.network_interfaces
        ]
        reservation = None
        if capacity in ("hold", "reservation", "block"):
            reservation = lt.CapacityReservationSpecificationProperty(
                capacity_reservation_target=lt.CapacityReservationTargetProperty(capacity_reservation_id=reservation_id)
            )
        placement = None
        if placement_group:
            group = ec2.CfnPlacementGroup(self, "PlacementGroup", strategy="cluster")
            placement = lt.PlacementProperty(group_name=group.ref)
        return lt.LaunchTemplateDataProperty(
            # In the template, not on the node group: EKS takes it in one place only, and CDK's own checks do not know p5 and p6.
            instance_type=self.instance.name,
            network_interfaces=interfaces,
            block_device_mappings=volumes(size_gib=disk_gib, throughput_mib=throughput_mib, family=self.ami_family),
            metadata_options=metadata_options(),
            tag_specifications=tag_specifications({"Name": self.node.path.replace("/", "-")}),
            capacity_reservation_specification=reservation,
            instance_market_options=lt.InstanceMarketOptionsProperty(market_type="capacity-block")
            if capacity == "block"
            else None,
            placement=placement,
            user_data=node_user_data(self.ami_family, local_nvme=self.instance.local_nvme_gb > 0),
        )

    def _node_group(self, capacity: Capacity, desired: int, node_repair: bool) -> eks.CfnNodegroup:
        ng = eks.CfnNodegroup
        overrides = [
            ng.NodeRepairConfigOverridesProperty(
                node_monitoring_condition="AcceleratedHardwareReady",
                node_unhealthy_reason=reason,
                min_repair_wait_time_mins=10,
                repair_action="NoAction",
            )
            for reason in _APPLICATION_FAULTS
        ]
        return ng(
            self,
            "NodeGroup",
            cluster_name=self.cluster.cluster_name,
            node_role=self.role.role_arn,
            subnets=[self.subnet_id],
            ami_type=self.instance.ami_type(self.ami_family),
            capacity_type="CAPACITY_BLOCK" if capacity == "block" else "ON_DEMAND",
            force_update_enabled=False,
            labels=self.labels,
            launch_template=ng.LaunchTemplateSpecificationProperty(
                id=self.launch_template.ref, version=self.launch_template.attr_latest_version_number
            ),
            node_repair_config=ng.NodeRepairConfigProperty(
                enabled=node_repair,
                max_parallel_nodes_repaired_count=1 if node_repair else None,
                node_repair_config_overrides=overrides if node_repair else None,
            ),
            scaling_config=ng.ScalingConfigProperty(min_size=0, desired_size=desired, max_size=self.node_count),
            taints=[ng.TaintProperty(key=t.key, value=t.value or None, effect=t.effect) for t in self.taints],
            # DEFAULT launches two more GPU nodes before it stops one: capacity and quota that nobody has.
            update_config=ng.UpdateConfigProperty(max_unavailable=1, update_strategy="MINIMAL"),
        )
