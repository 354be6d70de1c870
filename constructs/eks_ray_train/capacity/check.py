"""Does a reservation, or a Capacity Block, fit? Checked field by field; every misfit names field, value and need."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from .model import PLATFORM, Mode, Need, Reservation, Zone, format_time

#: EKS scales a block's node group to zero about 40 minutes before the block ends, EC2 terminates 30 minutes before.
#: https://docs.aws.amazon.com/eks/latest/userguide/capacity-blocks-mng.html
BLOCK_WIND_DOWN = timedelta(minutes=60)
MIN_TIME_LEFT = timedelta(minutes=90)
_NOT_STARTED = ("scheduled", "payment-pending")


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """One field of a reservation that does not fit."""

    field: str
    got: str
    needed: str

    def __str__(self) -> str:
        return f"{self.field} is {self.got}, needed: {self.needed}"


def not_started(held: Reservation, now: datetime) -> bool:
    """A Capacity Block that is bought but not running yet: launches would only fail until it starts."""
    return held.kind == "capacity-block" and (
        held.state in _NOT_STARTED or (held.start is not None and held.start > now)
    )


def misfits(
    held: Reservation,
    need: Need,
    zones: Collection[Zone],
    *,
    now: datetime,
    run_until: datetime | None = None,
    mode: Mode = Mode.RESERVATION,
    lacking: int | None = None,
) -> list[Misfit]:
    """All reasons why ``held`` cannot carry ``need``; empty when it fits.

    ``zones``: where the nodes may be (the VPC's subnets); empty means anywhere. ``run_until``: when the run must be
    able to end. ``lacking``: slots still to be taken (running nodes hold theirs already); all nodes by default.
    """
    wanted = need.nodes if lacking is None else lacking
    waiting = not_started(held, now)
    found: list[Misfit] = []

    def require(ok: bool, name: str, got: str, needed: str) -> None:
        if not ok:
            found.append(Misfit(field=name, got=got, needed=needed))

    kind = "capacity-block" if mode is Mode.BLOCK else "default"
    setting = "block" if held.kind == "capacity-block" else "reservation"
    require(held.kind == kind, "ReservationType", held.kind, f"{kind} (or set capacity to {setting})")
    require(held.state == "active" or waiting, "State", held.state, "active")
    require(held.instance_type == need.instance_type, "InstanceType", held.instance_type, need.instance_type)
    require(held.platform == PLATFORM, "InstancePlatform", held.platform, PLATFORM)
    require(held.tenancy == "default", "Tenancy", held.tenancy, "default")
    inside = not zones or any(held.zone.zone_id == z.zone_id for z in zones)
    places = ", ".join(str(z) for z in zones)
    require(inside, "AvailabilityZone", str(held.zone), f"a zone with a subnet for the nodes: {places}")
    require(not held.zone.excluded, "AvailabilityZone", str(held.zone), "a zone in which EKS accepts subnets")
    if waiting:
        require(held.total >= wanted, "TotalInstanceCount", f"{held.total} in total", f"{wanted} needed")
    else:
        got = f"{held.available} available of {held.total}"
        require(held.available >= wanted, "AvailableInstanceCount", got, f"{wanted} needed")
    require(held.match in ("targeted", "open"), "InstanceMatchCriteria", held.match, "targeted (or open)")
    # Nodes are launched outside any placement group unless asked; such a launch never matches this reservation.
    require(not held.placement_group, "PlacementGroupArn", held.placement_group, "a reservation outside any group")
    if held.end is not None:
        until = f"{format_time(held.end)} UTC"
        soonest = max(now, held.start or now) + MIN_TIME_LEFT
        require(held.end >= soonest, "EndDate", until, f"at least {format_time(soonest)} UTC")
        # A block cannot be prolonged at will: its spending limit is moved before its end instead (claim.py).
        if mode is not Mode.BLOCK and run_until is not None and held.end >= soonest:
            require(held.end >= run_until, "EndDate", until, f"after the run may end, {format_time(run_until)} UTC")
    return found


def describe_misfits(held_id: str, need: Need, found: Collection[Misfit]) -> str:
    """The error text for a reservation that does not fit."""
    lines = "\n".join(f"- {misfit}" for misfit in found)
    return f"Reservation {held_id} cannot carry {need}:\n{lines}"
