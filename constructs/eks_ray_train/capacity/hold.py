"""Holding capacity: a reservation that the nodes are launched into, grown in place, renewed while it is worth it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from .aws import AWS_ERRORS, Aws, error_text
from .model import CapacityError, Need, Reservation, parse_time
from .reservations import LIFETIME, Owner, Purpose, cancel, log, mine, purpose_of, sweep
from .stack import whole_since

#: No run of the handler takes longer: an older probe belongs to nobody.
PROBE_AT_MOST = timedelta(minutes=15)


def end_of_hold(now: datetime, limit_at: datetime | None) -> datetime:
    """The next end date: at most an hour ahead, and not after the spending limit."""
    end = now + LIFETIME
    return min(end, limit_at) if limit_at is not None and limit_at > now else end


def adoptable(aws: Aws, owner: Owner, need: Need, zone_ids: Collection[str] | None) -> Reservation | None:
    """A hold of ours that exists already (an earlier delivery, or the one before a rollback); used ones first.

    ``zone_ids``: where it may be; None means anywhere.
    """
    found = [
        held
        for held in mine(aws, owner)
        if purpose_of(held) == Purpose.HOLD
        and held.state == "active"
        and held.instance_type == need.instance_type
        and (zone_ids is None or held.zone.zone_id in zone_ids)
    ]
    return max(found, key=lambda held: (held.used, -abs(held.total - need.nodes)), default=None)


def resize(aws: Aws, held: Reservation, nodes: int, limit_at: datetime | None) -> None:
    """Makes the hold ``nodes`` large, asking EC2 only for what it lacks, and gives it a fresh end date.

    It never shrinks below the slots in use: the nodes go later, then the schedule trims it. Raises
    :class:`CapacityError` where it cannot grow; the hold is then as it was.
    """
    target = nodes if nodes > held.total else max(nodes, held.used, 1)
    try:
        aws.call(
            aws.ec2.modify_capacity_reservation,
            CapacityReservationId=held.id,
            InstanceCount=target,
            EndDateType="limited",
            EndDate=end_of_hold(aws.now(), limit_at),
        )
    except AWS_ERRORS as error:
        if target <= held.total:
            log("not-resized", reservation=held.id, error=error_text(error))
            return
        raise CapacityError(
            f"No capacity for {nodes - held.total} more x {held.instance_type} in {held.zone}, where the running nodes "
            f"are: {error_text(error)}\nThe {held.total} nodes held stay as they are.\n"
            "What to do: try again later, ask for fewer nodes, or move: `eks-ray-train scale 0`, then scale up again"
        ) from error
    log("resized", reservation=held.id, nodes=target)


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What the schedule tells the handler: whose hold, which, for how many nodes, and when spending ends."""

    owner: Owner
    reservation_id: str
    nodes: int
    limit_at: datetime | None

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> Watch:
        return cls(
            owner=Owner(stack_id=str(event["StackId"]), claim=str(event["Owner"])),
            reservation_id=str(event["ReservationId"]),
            nodes=int(event["NodeCount"]),
            limit_at=parse_time(str(event.get("LimitAt", ""))),
        )


def watch(event: Mapping[str, Any], aws: Aws) -> dict[str, list[str]]:
    """One tick of the schedule. Renews only while the stack is whole, the limit is ahead, and slots are used; trims slots
    that nobody will use; sweeps probes that nobody waits for. Never makes anything.

    Slots that nobody uses yet need no renewal: the claim gives the hold most of an hour at every change, and a stack is
    whole only when its nodes have come. Slots that nobody uses any more (``scale 0``) must get none: the schedule knows
    the template's number of nodes, not the one that EKS was told since.
    """
    told = Watch.from_event(event)
    now = aws.now()
    since = whole_since(aws, told.owner.stack_id)
    ahead = told.limit_at is None or told.limit_at > now
    done: dict[str, list[str]] = {"renewed": [], "ending": [], "cancelled": []}
    sweep(aws, told.owner, older_than=now - PROBE_AT_MOST)
    for held in mine(aws, told.owner):
        if purpose_of(held) != Purpose.HOLD or held.state != "active":
            continue
        current = held.id == told.reservation_id  # another one is about to be deleted by CloudFormation
        if current and since is not None and told.nodes == 0 and held.used == 0:
            cancel(aws, held.id)
            done["cancelled"].append(held.id)
        elif not current or since is None or not ahead or not held.used:
            done["ending"].append(held.id)
        else:
            resize(aws, held, min(held.total, max(told.nodes, held.used)), told.limit_at)
            done["renewed"].append(held.id)
    log("watch", **done)
    return done
