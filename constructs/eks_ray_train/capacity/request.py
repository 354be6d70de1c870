"""CloudFormation's event, undone once: strings become numbers, enums, times and places here and nowhere else."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .model import Mode, Need, Zone, parse_time
from .reservations import Owner

HOLD_PREFIX = "cr-"


@dataclass(frozen=True, kw_only=True)
class Wish:
    """The resource's properties, old or new."""

    need: Need
    mode: Mode
    zones: tuple[str, ...]  # zone names, best first
    subnets: Mapping[str, str]  # zone name -> subnet id; empty for CapacityProbe
    preferred_zone: str
    reservation_id: str
    limit_at: datetime | None
    account: str
    region: str

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> Wish:
        """Raises ``KeyError`` or ``ValueError`` for properties that the constructs never write."""
        zones: Sequence[str] = properties["Zones"]
        ids: Sequence[str] = properties.get("SubnetIds", ())
        return cls(
            need=Need(
                instance_type=str(properties["InstanceType"]),
                nodes=int(properties["NodeCount"]),
                vcpus_per_node=int(properties["VcpusPerNode"]),
                quota_code=str(properties["QuotaCode"]),
            ),
            mode=Mode(properties["Capacity"]),
            zones=tuple(dict.fromkeys(zones)),
            subnets=dict(reversed(list(zip(zones, ids, strict=False)))),  # the first of a zone wins
            preferred_zone=str(properties.get("PreferredZone", "")),
            reservation_id=str(properties.get("ReservationId", "")),
            limit_at=parse_time(str(properties.get("LimitAt", ""))),
            account=str(properties.get("AccountId", "")),
            region=str(properties.get("Region", "")),
        )


@dataclass(frozen=True, kw_only=True)
class Request:
    """One Create or Update event."""

    request_id: str
    owner: Owner
    physical_id: str  # empty on Create
    wish: Wish
    old: Wish | None  # None on Create

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> Request:
        old = event.get("OldResourceProperties") if event["RequestType"] == "Update" else None
        return cls(
            request_id=str(event["RequestId"]),
            owner=owner_of(event),
            physical_id=str(event.get("PhysicalResourceId", "")),
            wish=Wish.from_properties(event["ResourceProperties"]),
            old=Wish.from_properties(old) if old else None,
        )


def owner_of(event: Mapping[str, Any]) -> Owner:
    """Works for any event, however incomplete its properties: Delete must never fail over them."""
    properties = event.get("ResourceProperties") or {}
    return Owner(stack_id=str(event["StackId"]), claim=str(properties.get("Owner") or event["LogicalResourceId"]))


def plain_id(kind: str, owner: Owner, zone: Zone | None = None) -> str:
    """A physical id that lasts: it names the construct and the zone that Create chose, never a user's reservation."""
    mark = hashlib.sha256(f"{owner.stack_id}/{owner.claim}".encode()).hexdigest()[:12]
    return ":".join([kind, mark, *((zone.zone_id, zone.name) if zone else ())])


def zone_of(physical_id: str) -> Zone | None:
    """The zone inside a :func:`plain_id`; None where there is none."""
    parts = physical_id.split(":")
    return Zone(zone_id=parts[2], name=parts[3]) if len(parts) == 4 and parts[3] else None
