"""CapacityClaim's answer: the zone, subnet and reservation that the node group of the same stack is launched with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .aws import AWS_ERRORS, Aws, error_text
from .check import describe_misfits, misfits, not_started
from .hold import adoptable, resize
from .limit import DRAIN_BEFORE, earliest_limit
from .model import CapacityError, Mode, Reservation, Zone, format_time
from .nodes import Ground, read_ground
from .offers import availability_zones
from .prove import Field, first_reserved, none_usable, open_zone, prove, survey
from .report import fit
from .request import HOLD_PREFIX, Request, owner_of, plain_id, zone_of
from .reservations import Owner, Purpose, cancel, log, read, sweep
from .stack import rolling_back

Result = dict[str, Any]


def answer_claim(event: Mapping[str, Any], aws: Aws) -> Result:
    """Claims capacity on Create and Update; raises :class:`CapacityError` with the table. Delete never raises."""
    if event["RequestType"] == "Delete":
        return _release(event, aws)
    request = Request.from_event(event)
    keep = {request.physical_id} - {""}
    try:
        result = _claim(request, aws)
    except (CapacityError, *AWS_ERRORS) as error:
        # Nothing of a failed Create stays; of a failed Update only the hold that CloudFormation knows.
        sweep(aws, request.owner, holds=True if request.old is None else None, keep=keep)
        if request.old is None or not rolling_back(aws, request.owner.stack_id):
            raise error if isinstance(error, CapacityError) else CapacityError(fit(error_text(error))) from error
        log("kept", reason=f"rolling back: {error}")
        result = _as_before(request, aws, error)
    spent = request.old is not None or request.wish.mode in (Mode.PROBE, Mode.HOLD)
    left = sweep(aws, request.owner, holds=None, keep=keep | {result["PhysicalResourceId"]}) if spent else []
    log("claim", result=result, left=left)
    return result


def _release(event: Mapping[str, Any], aws: Aws) -> Result:
    """Cancels the hold named by the physical id if it is ours, and any probe left over; always succeeds."""
    owner, physical_id = owner_of(event), str(event.get("PhysicalResourceId", ""))
    if physical_id.startswith(HOLD_PREFIX):
        try:
            if _may_be_ours(aws, owner, physical_id):
                cancel(aws, physical_id)
        except AWS_ERRORS as error:
            log("left-behind", reservation=physical_id, error=error_text(error))
    left = sweep(aws, owner)
    if left:
        log("left-behind", failures=left)
    return {"PhysicalResourceId": physical_id}


def _may_be_ours(aws: Aws, owner: Owner, reservation_id: str) -> bool:
    """Looked at first, so that nothing but our own is cancelled. Where EC2 does not answer, the function's permission,
    which asks for our tag, is the guard."""
    try:
        held = read(aws, reservation_id)
    except AWS_ERRORS:
        return True
    return held is not None and owner.owns(held)


def _claim(request: Request, aws: Aws) -> Result:
    wish = request.wish
    if wish.mode is Mode.NONE:
        return _unproven(request, aws)
    names = (wish.preferred_zone,) if wish.preferred_zone else wish.zones
    field = survey(aws, wish.need.instance_type, names)
    ground = read_ground(request, aws)
    if ground.zone is not None and ground.live and ground.zone.zone_id not in {z.zone_id for z in field.usable}:
        raise _move_with_nodes(ground, wish.need.instance_type, names)
    if not field.usable:
        raise none_usable(wish.need, names, field)
    if wish.mode in (Mode.RESERVATION, Mode.BLOCK):
        return _reserved(request, aws, field, ground)
    if ground.zone is not None and any(z.zone_id == ground.zone.zone_id for z in field.usable):
        field = Field(usable=(ground.zone,), rows=field.rows, offering=field.offering)
    return _held(request, aws, field, ground) if wish.mode is Mode.HOLD else _proven(request, aws, field, ground)


def _unproven(request: Request, aws: Aws) -> Result:
    """``none`` asks EC2 for nothing but names: the given zone, the one chosen before, or the first that may work."""
    wish = request.wish
    named = {zone.name: zone for zone in availability_zones(aws)}
    names = (wish.preferred_zone,) if wish.preferred_zone else wish.zones
    zones = [named.get(name, Zone(name=name, zone_id="")) for name in names]
    ground = read_ground(request, aws)
    if ground.zone is not None and any(ground.zone.zone_id == zone.zone_id for zone in zones):
        return _result(request, ground.zone)
    if ground.live:
        raise _move_with_nodes(ground, wish.need.instance_type, names)
    usable = survey(aws, wish.need.instance_type, names).usable
    return _result(request, (usable or zones)[0])


def _proven(request: Request, aws: Aws, field: Field, ground: Ground) -> Result:
    wish = request.wish
    lacking = max(0, wish.need.nodes - ground.live_of(wish.need.instance_type))
    if lacking == 0:
        return _result(request, field.usable[0])
    ready = open_zone(aws, wish.need.instance_type, lacking, field.usable)
    if ready:
        return _result(request, ready[0], note=f"open reservation {ready[1].id} has free slots")
    zone = prove(aws, request, lacking, field)
    return _result(request, zone, note="capacity was there when asked")


def _held(request: Request, aws: Aws, field: Field, ground: Ground) -> Result:
    wish = request.wish
    if wish.need.nodes == 0:
        # Nothing to hold. The template keeps naming the last hold: a launch template has no way to name none.
        if not request.physical_id.startswith(HOLD_PREFIX):
            raise CapacityError("capacity hold needs at least 1 node, got 0; set gpu_node_count or capacity to probe")
        return _result(request, field.usable[0], reservation_id=request.physical_id)
    zone_ids = {zone.zone_id for zone in field.usable}
    held = ground.held
    if held is None or held.instance_type != wish.need.instance_type or held.zone.zone_id not in zone_ids:
        held = adoptable(aws, request.owner, wish.need, zone_ids)
    if held is not None:
        resize(aws, held, wish.need.nodes, wish.limit_at)
    else:
        held = first_reserved(aws, request, Purpose.HOLD, wish.need.nodes, field)
    zone = next(zone for zone in field.usable if zone.zone_id == held.zone.zone_id)
    return _result(request, zone, reservation_id=held.id)


def _reserved(request: Request, aws: Aws, field: Field, ground: Ground) -> Result:
    wish = request.wish
    held = read(aws, wish.reservation_id)
    if held is None:
        raise CapacityError(
            f"Reservation {wish.reservation_id} does not exist in {wish.region or 'this region'}; set "
            "capacity_reservation_id to one of `eks-ray-train capacity find`"
        )
    zones = field.usable
    same = request.old is not None and request.old.reservation_id == held.id
    lacking = max(0, wish.need.nodes - (ground.live_of(wish.need.instance_type) if same else 0))
    found = misfits(held, wish.need, zones, now=aws.now(), run_until=wish.limit_at, mode=wish.mode, lacking=lacking)
    # Scaling to zero must work after the reservation's end as well.
    if found and not (wish.need.nodes == 0 and request.old is not None):
        raise CapacityError(fit(describe_misfits(held.id, wish.need, found)))
    zone = next((zone for zone in zones if zone.zone_id == held.zone.zone_id), ground.zone or held.zone)
    if ground.zone is not None and ground.live and ground.zone.zone_id != zone.zone_id:
        raise _move_with_nodes(ground, wish.need.instance_type, [zone.name])
    return _result(request, zone, reservation_id=held.id, held=held, waiting=not_started(held, aws.now()))


def _as_before(request: Request, aws: Aws, error: Exception) -> Result:
    """A rollback's answer where nothing can be claimed: what CloudFormation has already, so that it can finish.

    Raises ``error`` where not even the zone is known: a wrong one would move the node group, and a rollback that failed
    can be continued.
    """
    wish = request.wish
    if wish.mode is not Mode.HOLD:
        # A hold given up by this answer is deleted by its id.
        zone = zone_of(request.physical_id) or _zone_before(request, aws, error)
        return _result(request, zone, reservation_id=wish.reservation_id)
    try:
        # Where the update replaced a hold, the one before still stands, with the nodes in it.
        held = adoptable(aws, request.owner, wish.need, None)
    except AWS_ERRORS:
        raise error from None
    zone = held.zone if held is not None else _zone_before(request, aws, error)
    physical_id = held.id if held is not None else request.physical_id
    return {**_result(request, zone, reservation_id=physical_id), "PhysicalResourceId": physical_id}


def _zone_before(request: Request, aws: Aws, error: Exception) -> Zone:
    try:
        zone = read_ground(request, aws).zone
    except AWS_ERRORS:
        raise error from None
    # No zone and no failure means that no node lives: any zone does.
    return zone or Zone(name=request.wish.preferred_zone or request.wish.zones[0], zone_id="")


def _result(
    request: Request,
    zone: Zone,
    *,
    reservation_id: str = "",
    held: Reservation | None = None,
    waiting: bool = False,
    note: str = "",
) -> Result:
    wish = request.wish
    block = held is not None and held.kind == "capacity-block"
    limit_at = earliest_limit(wish.limit_at, held.end if held is not None and block else None)
    starts = held.start if held is not None and waiting else None
    if waiting:
        note = (
            f"the Capacity Block starts at {format_time(starts)} UTC: run `eks-ray-train scale {wish.need.nodes}` then"
        )
    if wish.mode is Mode.HOLD:
        physical_id = reservation_id
    else:
        physical_id = plain_id("claim", request.owner, zone)
    return {
        "PhysicalResourceId": physical_id,
        "Data": {
            "ZoneName": zone.name,
            "ZoneId": zone.zone_id,
            "SubnetId": wish.subnets.get(zone.name, ""),
            "ReservationId": reservation_id,
            "DesiredNodes": "0" if waiting else str(wish.need.nodes),
            "LimitAt": format_time(limit_at),
            "DrainAt": format_time(limit_at - DRAIN_BEFORE if limit_at else None),
            "StartsAt": format_time(starts),
            "Note": note or f"capacity {wish.mode}",  # a stack output may not be empty
        },
    }


def _move_with_nodes(ground: Ground, instance_type: str, names: Sequence[str]) -> CapacityError:
    assert ground.zone is not None
    if ground.zone.name in names:
        why = f"{instance_type} is not offered there"
    else:
        why = f"the zone asked for now is {', '.join(names)}"
    return CapacityError(
        f"{ground.live} nodes run in {ground.zone}, but {why}: a node group with nodes cannot move.\n"
        "What to do: `eks-ray-train scale 0`, then deploy again; or destroy only the training stack and deploy"
    )
