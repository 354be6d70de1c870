"""Trying zones in order: which may be tried at all, and what EC2 answers when asked for a real reservation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .aws import AWS_ERRORS, Aws, Refusal
from .model import PLATFORM, CapacityError, Need, Reservation, Zone
from .offers import availability_zones, offering_zone_ids
from .quota import Quota, increase_command, read_quota
from .report import Rank, Row, reason
from .request import Request, Wish
from .reservations import Purpose, Refused, end, live, reserve

_NEXT_ZONE = (Refusal.CAPACITY, Refusal.UNSUPPORTED, Refusal.THROTTLED, Refusal.UNREACHABLE)
#: Less than this before the function is killed, and no further zone is tried: the clean-up needs the time.
_ZONE_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Field:
    """The zones of a request: ``usable`` in the stated order, ``rows`` about those that are not."""

    usable: tuple[Zone, ...]
    rows: tuple[Row, ...]
    offering: tuple[Zone, ...]  # every zone of the region that could take the nodes, for the remedy


def survey(aws: Aws, instance_type: str, names: Sequence[str]) -> Field:
    """Looks up the zones ``names`` (the order is kept) and whether EC2 offers the type and EKS accepts the zone."""
    region = availability_zones(aws)
    known = {zone.name: zone for zone in region}
    try:
        offers = offering_zone_ids(aws, instance_type)
    except AWS_ERRORS:
        offers = {zone.zone_id for zone in region}  # unknown: let the attempt itself tell
    usable: list[Zone] = []
    rows: list[Row] = []
    for name in names:
        zone = known.get(name)
        if zone is None:
            result = "not an availability zone of this account and region"
            rows.append(Row(rank=Rank.IMPOSSIBLE, zone=name, zone_id="-", result=result))
        elif zone.excluded:
            result = "EKS accepts no subnet in this zone"
            rows.append(Row(rank=Rank.IMPOSSIBLE, zone=name, zone_id=zone.zone_id, result=result))
        elif zone.zone_id not in offers:
            result = f"{instance_type} is not offered"
            rows.append(Row(rank=Rank.IMPOSSIBLE, zone=name, zone_id=zone.zone_id, result=result))
        else:
            usable.append(zone)
    offering = tuple(zone for zone in region if zone.zone_id in offers and not zone.excluded)
    return Field(usable=tuple(usable), rows=tuple(rows), offering=offering)


def none_usable(need: Need, names: Sequence[str], field: Field) -> CapacityError:
    """The error where no zone asked for offers the type: names zone, type and the zones that do."""
    wanted = ", ".join(names)
    if field.offering:
        where = ", ".join(str(zone) for zone in field.offering)
        remedy = f"use a zone that offers it ({where}): set availability_zones or gpu_zone"
    else:
        remedy = "this region does not offer the type: run `eks-ray-train capacity find --all-regions`"
    return CapacityError(reason(f"{need.instance_type} is not offered in {wanted}.", field.rows, (), (remedy,)))


def fits_openly(held: Reservation, instance_type: str, slots: int) -> bool:
    """An ``open`` reservation that plain launches would use: paid for already, so nothing need be proven."""
    return (
        held.state == "active"
        and held.match == "open"
        and held.kind == "default"
        and held.instance_type == instance_type
        and held.platform == PLATFORM
        and held.tenancy == "default"
        and not held.placement_group
        and held.available >= slots
    )


def open_zone(aws: Aws, instance_type: str, slots: int, zones: Iterable[Zone]) -> tuple[Zone, Reservation] | None:
    """First zone in which the account already pays for enough free ``open`` slots. Unknown counts as none."""
    try:
        found = live(aws)
    except AWS_ERRORS:
        return None
    for zone in zones:
        for held in found:
            if held.zone.zone_id == zone.zone_id and fits_openly(held, instance_type, slots):
                return zone, held
    return None


def first_reserved(aws: Aws, request: Request, purpose: Purpose, count: int, field: Field) -> Reservation:
    """Reserves ``count`` nodes in the first zone that has them. The caller cancels or keeps the reservation.

    Raises :class:`CapacityError` with the ranked table: quota, permission and malformed requests stop at once (every
    zone would answer the same); lack of capacity goes on to the next zone.
    """
    need = request.wish.need
    rows = list(field.rows)
    for zone in field.usable:
        if aws.seconds_left() < _ZONE_SECONDS:
            rows.append(Row(rank=Rank.UNKNOWN, zone=zone.name, zone_id=zone.zone_id, result="not tried: out of time"))
            continue
        got = reserve(aws, request.owner, purpose, need.instance_type, zone, count, request.request_id)
        if isinstance(got, Reservation):
            return got
        result = f"{got.reason}: {got.text}"
        rows.append(Row(rank=Rank.TRIED, zone=zone.name, zone_id=zone.zone_id, result=result))
        if got.reason not in _NEXT_ZONE:
            raise _stopped(aws, got, request.wish, count, rows)
    head = f"No capacity for {count} x {need.instance_type} in {', '.join(z.name for z in field.usable)} now."
    raise CapacityError(
        reason(
            head,
            rows,
            (),
            (
                "try again later, or run `eks-ray-train capacity find --all-regions --probe` for a place that has it",
                "give more zones (availability_zones), fewer nodes, another gpu_instance_type, or a reservation's id",
            ),
        )
    )


def prove(aws: Aws, request: Request, count: int, field: Field) -> Zone:
    """The first zone that gave a reservation, which is cancelled at once. Costs the seconds in between.

    Raises :class:`CapacityError`, also where the reservation could not be cancelled.
    """
    held = first_reserved(aws, request, Purpose.PROBE, count, field)
    end(aws, held)
    return next(zone for zone in field.usable if zone.zone_id == held.zone.zone_id)


def _stopped(aws: Aws, got: Refused, wish: Wish, count: int, rows: list[Row]) -> CapacityError:
    need, region = wish.need, wish.region
    head = f"EC2 refused {count} x {need.instance_type}: {got.text}"
    if got.reason is Refusal.QUOTA:
        quota = read_quota(aws, need, wish.account)
        remedies = [increase_command(need, quota, region)]
        return CapacityError(reason(head, rows, (str(quota), *quota_note(quota)), remedies))
    if got.reason is Refusal.DENIED:
        return CapacityError(reason(head, rows, (), ("allow ec2:CreateCapacityReservation, or set capacity to none",)))
    if got.reason is Refusal.NOT_ENABLED:
        return CapacityError(reason(head, rows, (), (f"enable region {region} or verify the account, then try again",)))
    return CapacityError(reason(head, rows, (), ("set capacity to none to deploy without the proof",)))


def quota_note(quota: Quota) -> tuple[str, ...]:
    """Why a quota that looks free may be short."""
    return (
        "Running On-Demand instances and unused reservation slots count; Spot and Capacity Blocks do not.",
        *(() if quota.free is None or quota.free <= 0 else ("Nodes outside a new reservation count beside it.",)),
    )
