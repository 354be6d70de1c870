"""CapacityProbe and CapacityClaim: GPU capacity answered early, and claimed by the stack that launches the nodes.

Both are custom resources on one handler, the ``capacity`` package beside this file, shipped as it is: no Docker, no
layer. The handler is told everything (zones, subnets, vCPUs, quota code, counts) and looks up nothing that the app knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

from aws_cdk import Aws, Duration, Token
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from .capacity.model import RESERVATION_ID
from .capacity_function import CapacityFunction
from .errors import SettingsError

Capacity = Literal["probe", "hold", "reservation", "block", "none"]
_MODES = ("probe", "hold", "reservation", "block", "none")
_SPENDING = ("probe", "hold")
_GIVEN = ("reservation", "block")


class CapacityProbe(Construct):
    """Fails the deploy within a minute or two, before a cluster is paid for, where the nodes could not be launched.

    Put it into the first stack. It checks which of ``zones`` offer the type and take EKS subnets, whether the quota's
    free vCPUs suffice, and, field by field, a given reservation. On its creation with ``capacity`` probe or hold it also
    proves capacity: it reserves the nodes and cancels at once (about a minute of their price). No other resource should
    read its attributes: capacity is claimed by :class:`CapacityClaim` in the stack that uses it.

    :param instance_type: GPU instance type, for example ``g6.12xlarge``.
    :param vcpus_per_node: default vCPUs of that type.
    :param quota_code: Service Quotas code of its On-Demand family, for example ``L-DB2E81BA``.
    :param node_count: nodes wanted; 0 asks nothing.
    :param zones: names of the availability zones that the nodes may use, best first; tokens are fine.
    :param reservation_id: a reservation to check; absent means On-Demand capacity and quota are checked.
    :param capacity: the app's capacity mode; ``none`` asks nothing.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        instance_type: str,
        vcpus_per_node: int,
        quota_code: str,
        node_count: int,
        zones: Sequence[str],
        reservation_id: str | None = None,
        capacity: Capacity = "probe",
    ) -> None:
        problems = _problems(capacity, node_count, reservation_id, strict=False)
        if not zones:
            problems.append("zones must name at least one availability zone, got none; set availability_zones")
        if problems:
            raise SettingsError(problems)
        super().__init__(scope, id)
        handler = CapacityFunction(
            self, instance_type=instance_type, quota_code=quota_code, spends=capacity in _SPENDING
        )
        self.handler: lambda_.IFunction = handler.function
        told = _told(self, instance_type, vcpus_per_node, quota_code, node_count, capacity, reservation_id)
        guard = handler.resource("Guard", "Custom::SpendingLimit", {"Owner": self.node.addr, "MaxHours": 0})
        probe = handler.resource("Probe", "Custom::CapacityProbe", {**told, "Zones": list(zones)})
        probe.node.add_dependency(guard)


class CapacityClaim(Construct):
    """Claims the capacity of one node group and says where it is; lives in the node group's stack.

    ``probe`` reserves and cancels, zone by zone, and chooses the first zone that has the nodes; ``hold`` keeps that
    reservation, for the node group to launch into, and renews it while its slots are used; ``reservation`` and ``block``
    check the given one; ``none`` chooses a zone that offers the type and asks for nothing. An update asks only for the
    nodes it lacks, where the running ones are.

    :param subnets: the nodes' possible subnets, best first; the first of each zone is used.
    :param reservation_id: required for ``reservation`` and ``block``, refused otherwise.
    :param preferred_zone: the only zone to use; absent means the first of the subnets' zones that works.
    :param max_hours: spending limit in hours, counted from the first deploy, from a change of ``max_hours`` or
        ``node_count``, or from a new value of ``arm_key``; 0 means none.
    :param arm_key: any text; a new value arms the limit anew and claims again (``scale`` passes the time of day).
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        instance_type: str,
        vcpus_per_node: int,
        quota_code: str,
        node_count: int,
        subnets: Sequence[ec2.ISubnet],
        capacity: Capacity = "probe",
        reservation_id: str | None = None,
        preferred_zone: str | None = None,
        max_hours: int = 0,
        arm_key: str = "",
    ) -> None:
        zones = [subnet.availability_zone for subnet in subnets]
        problems = _problems(capacity, node_count, reservation_id, strict=True)
        if not zones:
            problems.append("subnets must hold at least one subnet, got none")
        if max_hours < 0:
            problems.append(f"max_hours must be at least 0, got {max_hours}; 0 means no limit")
        if preferred_zone and zones and not _may_contain(zones, preferred_zone):
            problems.append(
                f"gpu_zone must be a zone with a subnet for the nodes ({', '.join(zones)}), got {preferred_zone}; "
                "add it to availability_zones or choose one of these"
            )
        if problems:
            raise SettingsError(problems)
        super().__init__(scope, id)
        handler = CapacityFunction(
            self, instance_type=instance_type, quota_code=quota_code, spends=capacity in _SPENDING
        )
        self.handler: lambda_.IFunction = handler.function
        # Created before the claim and deleted after it: it also cancels what a killed claim left (capacity/limit.py).
        limit = handler.resource(
            "Limit",
            "Custom::SpendingLimit",
            {"Owner": self.node.addr, "MaxHours": max_hours, "NodeCount": node_count, "ArmKey": arm_key},
        )
        told = _told(self, instance_type, vcpus_per_node, quota_code, node_count, capacity, reservation_id)
        self._claim = handler.resource(
            "Claim",
            "Custom::CapacityClaim",
            {
                **told,
                "Zones": zones,
                "SubnetIds": [subnet.subnet_id for subnet in subnets],
                "PreferredZone": preferred_zone or "",
                "LimitAt": limit.get_att_string("LimitAt"),
                # Where there is no limit, this alone makes CloudFormation ask the claim again.
                "ArmKey": arm_key,
            },
        )
        has_reservation = capacity in ("hold", *_GIVEN)
        self.zone: str = self._claim.get_att_string("ZoneName")
        self.zone_id: str = self._claim.get_att_string("ZoneId")
        self.subnet_id: str = self._claim.get_att_string("SubnetId")
        self.reservation_id: str = self._claim.get_att_string("ReservationId") if has_reservation else ""
        #: Number token: 0 while a Capacity Block has not started.
        self.desired_nodes: int = cast(int, Token.as_number(self._claim.get_att("DesiredNodes")))
        #: UTC, ``yyyy-mm-ddThh:mm:ss``; the empty string at deploy time where ``has_limit`` is false.
        self.limit_at: str = self._claim.get_att_string("LimitAt")
        self.drain_at: str = self._claim.get_att_string("DrainAt")
        self.starts_at: str = self._claim.get_att_string("StartsAt")
        self.note: str = self._claim.get_att_string("Note")
        self.has_limit: bool = max_hours > 0 or capacity == "block"
        if capacity == "hold":
            self._renew(node_count)

    def _renew(self, node_count: int) -> None:
        """The schedule only prolongs and trims what the claim made; without it every hold ends within the hour."""
        told = {
            "StackId": Aws.STACK_ID,
            "Owner": self.node.addr,
            "ReservationId": self._claim.ref,
            "NodeCount": node_count,
            "LimitAt": self.limit_at,
        }
        events.Rule(
            self,
            "Renewal",
            description="Prolongs the capacity reservation of the GPU nodes while they use it",
            schedule=events.Schedule.rate(Duration.minutes(10)),
            targets=[targets.LambdaFunction(self.handler, event=events.RuleTargetInput.from_object(told))],
        )


def _told(
    scope: Construct,
    instance_type: str,
    vcpus_per_node: int,
    quota_code: str,
    node_count: int,
    capacity: str,
    reservation_id: str | None,
) -> dict[str, Any]:
    return {
        "Owner": scope.node.addr,
        "InstanceType": instance_type,
        "VcpusPerNode": vcpus_per_node,
        "QuotaCode": quota_code,
        "NodeCount": node_count,
        "Capacity": capacity,
        "ReservationId": reservation_id or "",
        "AccountId": Aws.ACCOUNT_ID,
        "Region": Aws.REGION,
    }


def _problems(capacity: str, node_count: int, reservation_id: str | None, *, strict: bool) -> list[str]:
    problems = []
    if capacity not in _MODES:
        problems.append(f"capacity must be one of {', '.join(_MODES)}, got {capacity!r}")
    if node_count < 0:
        problems.append(f"gpu_node_count must be at least 0, got {node_count}")
    if capacity in _GIVEN and not reservation_id:
        problems.append(f"capacity {capacity} needs capacity_reservation_id, got none; `capacity find` lists yours")
    if strict and reservation_id and capacity not in _GIVEN:
        problems.append(
            f"capacity_reservation_id {reservation_id} has no use with capacity {capacity}; set capacity to reservation "
            "(or to block for a Capacity Block), or leave the id out"
        )
    literal = reservation_id if reservation_id and not Token.is_unresolved(reservation_id) else None
    if literal and not RESERVATION_ID.fullmatch(literal):
        problems.append(
            f"capacity_reservation_id must be an id such as cr-0123456789abcdef0, got {literal!r}; "
            "ARNs and resource groups are not supported: give the reservation's id"
        )
    return problems


def _may_contain(zones: Sequence[str], zone: str) -> bool:
    return zone in zones or Token.is_unresolved(zone) or any(Token.is_unresolved(z) for z in zones)
