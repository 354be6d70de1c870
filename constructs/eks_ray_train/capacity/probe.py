"""CapacityProbe's answer: early, before the cluster is paid for. No other resource reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .aws import AWS_ERRORS, Aws, error_text
from .check import describe_misfits, misfits
from .model import CapacityError, Mode, Zone
from .prove import Field, none_usable, open_zone, prove, quota_note, survey
from .quota import Quota, increase_command, read_quota
from .report import Rank, Row, fit, reason
from .request import Request, owner_of, plain_id
from .reservations import log, read, sweep
from .stack import rolling_back


def answer_probe(event: Mapping[str, Any], aws: Aws) -> dict[str, Any]:
    """Raises :class:`CapacityError` where the deploy could only fail later; Delete always succeeds."""
    owner = owner_of(event)
    if event["RequestType"] == "Delete":
        failures = sweep(aws, owner)
        if failures:
            log("left-behind", failures=failures)
        return {"PhysicalResourceId": event["PhysicalResourceId"]}
    request = Request.from_event(event)
    physical_id = request.physical_id or plain_id("probe", owner)
    try:
        zones, note = _look(request, aws)
    except (CapacityError, *AWS_ERRORS) as error:
        sweep(aws, owner)
        if request.old is None or not rolling_back(aws, owner.stack_id):
            raise error if isinstance(error, CapacityError) else CapacityError(fit(error_text(error))) from error
        # The state before was good enough to deploy; a rollback that fails here would only wedge the stack.
        zones, note = (), f"not checked while rolling back: {error}"
    else:
        sweep(aws, owner)
    log("probe", zones=[str(zone) for zone in zones], note=note)
    data = {"Zones": ",".join(zone.name for zone in zones), "Note": fit(note, 800)}
    return {"PhysicalResourceId": physical_id, "Data": data}


def _look(request: Request, aws: Aws) -> tuple[tuple[Zone, ...], str]:
    wish = request.wish
    if wish.mode is Mode.NONE or wish.need.nodes == 0:
        return (), "nothing asked"
    field = survey(aws, wish.need.instance_type, wish.zones)
    if not field.usable:
        raise none_usable(wish.need, wish.zones, field)
    if wish.reservation_id:
        return _reserved(request, aws, field)
    ready = open_zone(aws, wish.need.instance_type, wish.need.nodes, field.usable)
    if ready:
        zone, held = ready
        return (zone,), f"open reservation {held.id} has {held.available} free slots in {zone}"
    quota = _enough_quota(request, aws, field)
    # The claim proves growth in the zone where the nodes are; only the first deploy has nothing running yet.
    if request.old is None and wish.mode in (Mode.PROBE, Mode.HOLD):
        proven = prove(aws, request, wish.need.nodes, field)
        return (proven,), f"capacity was there; {quota}"
    return field.usable, str(quota)


def _reserved(request: Request, aws: Aws, field: Field) -> tuple[tuple[Zone, ...], str]:
    wish = request.wish
    held = read(aws, wish.reservation_id)
    if held is None:
        raise CapacityError(
            f"Reservation {wish.reservation_id} does not exist in {wish.region or 'this region'}; set "
            "capacity_reservation_id to one of `eks-ray-train capacity find`"
        )
    lacking = wish.need.nodes
    if request.old and request.old.reservation_id == held.id:
        lacking = max(0, lacking - request.old.need.nodes)
    mode = Mode.BLOCK if wish.mode is Mode.BLOCK else Mode.RESERVATION
    found = misfits(held, wish.need, field.usable, now=aws.now(), mode=mode, lacking=lacking)
    if found:
        raise CapacityError(fit(describe_misfits(held.id, wish.need, found)))
    return (held.zone,), f"reservation {held.id} fits"


def _enough_quota(request: Request, aws: Aws, field: Field) -> Quota:
    need, old = request.wish.need, request.old
    quota = read_quota(aws, need, request.wish.account)
    running = old.need.vcpus if old and old.need.quota_code == need.quota_code else 0
    more = max(0, need.vcpus - running)
    short = quota.covers(more) is False if more else False
    if short:
        rows = [
            Row(rank=Rank.CANDIDATE, zone=zone.name, zone_id=zone.zone_id, result="offered, not tried: quota too small")
            for zone in field.usable
        ]
        head = f"The On-Demand quota is too small for {need}: {more} more vCPUs needed, {quota.free} free."
        remedies = (increase_command(need, quota, request.wish.region),)
        raise CapacityError(reason(head, [*rows, *field.rows], (str(quota), *quota_note(quota)), remedies))
    return quota
