"""Nouns of the capacity logic: what is needed, where it may run, what EC2 says about a reservation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

PLATFORM = "Linux/UNIX"

#: Tags of the reservations made here: whose they are and what for.
TAG_STACK = "eks-ray-train:stack-id"
TAG_CLAIM = "eks-ray-train:claim"
TAG_PURPOSE = "eks-ray-train:purpose"

#: Zone ids in which EKS takes no cluster or node subnet, whatever EC2 offers there.
#: https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html
EXCLUDED_ZONE_IDS = frozenset({"use1-az3", "usw1-az2", "cac1-az3"})

#: Format that EventBridge Scheduler wants inside ``at(...)``, always UTC here.
TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"


#: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/resource-ids.html
RESERVATION_ID = re.compile(r"cr-[0-9a-f]{8,17}")


class CapacityError(Exception):
    """Capacity cannot be had, or a reservation does not fit; the text says what, why and what to do."""


class Mode(StrEnum):
    """What the setting ``capacity`` asks for."""

    PROBE = "probe"
    HOLD = "hold"
    RESERVATION = "reservation"
    BLOCK = "block"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Need:
    """``nodes`` instances of one type; ``vcpus_per_node`` is what each takes from quota ``quota_code``."""

    instance_type: str
    nodes: int
    vcpus_per_node: int
    quota_code: str

    def __post_init__(self) -> None:
        if self.nodes < 0:
            raise ValueError(f"nodes must be at least 0, got {self.nodes}")

    @property
    def vcpus(self) -> int:
        return self.nodes * self.vcpus_per_node

    def __str__(self) -> str:
        return f"{self.nodes} x {self.instance_type} ({self.vcpus} vCPUs)"


@dataclass(frozen=True, kw_only=True)
class Zone:
    """An availability zone. Names are shuffled per account, ids are not: comparisons use ``zone_id``."""

    name: str
    zone_id: str

    @property
    def excluded(self) -> bool:
        return self.zone_id in EXCLUDED_ZONE_IDS

    def __str__(self) -> str:
        return f"{self.name} ({self.zone_id})"


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """The fields of an EC2 Capacity Reservation that decide anything here. Counts are instances, times are UTC."""

    id: str
    state: str
    instance_type: str
    platform: str
    tenancy: str
    zone: Zone
    total: int
    available: int
    match: str
    kind: str  # "default" or "capacity-block"
    owner: str
    created: datetime | None = None
    start: datetime | None = None
    end: datetime | None = None
    placement_group: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def used(self) -> int:
        return self.total - self.available

    @classmethod
    def from_ec2(cls, data: Mapping[str, Any]) -> Reservation:
        """From one element of DescribeCapacityReservations, or CreateCapacityReservation's answer."""
        total = int(data.get("TotalInstanceCount", 0))
        return cls(
            id=str(data["CapacityReservationId"]),
            state=str(data.get("State", "")),
            instance_type=str(data.get("InstanceType", "")),
            platform=str(data.get("InstancePlatform", "")),
            tenancy=str(data.get("Tenancy", "default")),
            zone=Zone(name=str(data.get("AvailabilityZone", "")), zone_id=str(data.get("AvailabilityZoneId", ""))),
            total=total,
            available=int(data.get("AvailableInstanceCount", total)),
            match=str(data.get("InstanceMatchCriteria", "open")),
            kind=str(data.get("ReservationType", "default")),
            owner=str(data.get("OwnerId", "")),
            created=as_utc(data.get("CreateDate")),
            start=as_utc(data.get("StartDate")),
            end=as_utc(data.get("EndDate")),
            placement_group=str(data.get("PlacementGroupArn", "")),
            tags={t["Key"]: t.get("Value", "") for t in data.get("Tags", ())},
        )


def as_utc(value: object) -> datetime | None:
    """boto3 gives aware datetimes; tests and JSON may give naive ones, taken as UTC."""
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def format_time(when: datetime | None) -> str:
    """``yyyy-mm-ddThh:mm:ss`` in UTC, or the empty string where there is no time."""
    return "" if when is None else when.astimezone(UTC).strftime(TIME_FORMAT)


def parse_time(text: str) -> datetime | None:
    """Inverse of :func:`format_time`. Raises ``ValueError`` for anything else."""
    return datetime.strptime(text, TIME_FORMAT).replace(tzinfo=UTC) if text else None
