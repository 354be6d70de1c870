"""What makes the properties of an EfaGpuNodeGroup valid; every problem is told at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from aws_cdk import Token
from aws_cdk import aws_ec2 as ec2

from .cluster_type import cluster_problems
from .errors import SettingsError
from .instances import InstanceType, get_instance_type
from .node_template import MIN_GPU_DISK_GIB

Capacity = Literal["probe", "hold", "reservation", "block", "none"]


def checked_instance(
    *,
    cluster: Any,
    instance_type: str,
    accept_unverified_layout: bool,
    node_count: int,
    subnets: Sequence[ec2.ISubnet],
    subnet_id: str | None,
    capacity: Capacity,
    reservation_id: str | None,
    gpus: int | None,
    disk_size_gib: int,
    placement_group: bool,
    permits_mirror: bool,
) -> InstanceType:
    """The catalogue's row of ``instance_type``. Raises SettingsError with everything that is wrong with the properties."""
    problems = cluster_problems(cluster)
    instance: InstanceType | None = None
    try:
        instance = get_instance_type(instance_type, accept_unverified_layout=accept_unverified_layout)
    except SettingsError as error:
        problems += error.problems
    if not permits_mirror:
        problems.append(
            "container_mirror adds permissions to a role made here, but role is given; leave container_mirror out and give it to whoever "
            "made the role"
        )
    if not Token.is_unresolved(node_count) and node_count < 1:
        problems.append(f"node_count must be at least 1, got {node_count}; leave the node group out to have none")
    if instance is not None and gpus is not None and gpus != instance.gpus:
        problems.append(f"gpus {gpus} does not match {instance.name}, which has {instance.gpus} GPUs; leave gpus out")
    if disk_size_gib < MIN_GPU_DISK_GIB:
        problems.append(
            f"disk_size_gib must be at least {MIN_GPU_DISK_GIB} (the CUDA image is unpacked there), got {disk_size_gib}"
        )
    if (subnet_id is None) == (not subnets):
        problems.append("give either subnets=[one subnet] or subnet_id, not both and not neither")
    if len(subnets) > 1:
        zones = ", ".join(str(s.availability_zone) for s in subnets)
        problems.append(
            f"EFA traffic stays inside one availability zone: give exactly one subnet, got {len(subnets)} in {zones}"
        )
    needs_id = capacity in ("hold", "reservation", "block")
    if needs_id and not reservation_id:
        problems.append(f"capacity {capacity} needs capacity_reservation_id (cr-…); give it, or set capacity to none")
    if reservation_id and not needs_id:
        problems.append(
            f"capacity_reservation_id is given but capacity is {capacity}; set capacity to reservation or block"
        )
    if reservation_id and not Token.is_unresolved(reservation_id) and not reservation_id.startswith("cr-"):
        problems.append(
            f"capacity_reservation_id must be one reservation's id (cr-…), got {reservation_id!r}; resource groups are not supported"
        )
    if instance is not None and capacity == "block" and not instance.capacity_block:
        problems.append(
            f"no Capacity Blocks exist for {instance.name}; set capacity to reservation, hold, probe or none"
        )
    if placement_group and needs_id:
        problems.append(
            f"placement_group with capacity {capacity} needs a reservation made inside that group; set placement_group to False"
        )
    if problems or instance is None:
        raise SettingsError(problems)
    return instance
