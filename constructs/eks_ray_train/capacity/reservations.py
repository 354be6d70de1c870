"""Our own Capacity Reservations: made targeted, tagged and ending by themselves; found by tag; always cancellable.

Money safety rests on four properties of every reservation made here: nothing can use it by accident (``targeted``),
we find it again whatever was lost (tags), a repeated request makes no second one (``ClientToken``), and it ends without
us (``EndDateType=limited``, at most an hour ahead).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from .aws import AWS_ERRORS, Aws, Refusal, error_code, error_text, refusal_of
from .model import PLATFORM, TAG_CLAIM, TAG_PURPOSE, TAG_STACK, CapacityError, Reservation, Zone, format_time

_LOG = logging.getLogger(__package__)
LIVE_STATES = ("active", "pending", "assessing")
#: A little under the hour, so that clock skew cannot make it more. EC2 promises to end a reservation within an hour *after*
#: its end date, so what nobody cancels may in the worst case be paid for an hour longer than this.
LIFETIME = timedelta(minutes=55)
_POLL_SECONDS = 3.0
_POLL_AT_MOST = timedelta(minutes=3)
_ROUNDS = 3
#: EC2 is eventually consistent: for some seconds it may not know the id that it has just given.
#: https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html
_UNKNOWN_AT_MOST = timedelta(seconds=30)
#: Less than this before the process is killed, and a cancellation is not tried again: its caller has to say so.
_LAST_SECONDS = 15
#: A policy that the same deploy has just changed takes some seconds to be in force everywhere.
_DENIED_WAITS = (5.0, 10.0, 15.0)


class Purpose(StrEnum):
    PROBE = "probe"
    HOLD = "hold"


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Whose reservations: one construct (``claim``) of one stack."""

    stack_id: str
    claim: str

    def tags(self, purpose: Purpose) -> list[dict[str, str]]:
        pairs = {TAG_STACK: self.stack_id, TAG_CLAIM: self.claim, TAG_PURPOSE: purpose.value}
        return [{"Key": key, "Value": value} for key, value in pairs.items()]

    def owns(self, held: Reservation) -> bool:
        return held.tags.get(TAG_STACK) == self.stack_id and held.tags.get(TAG_CLAIM) == self.claim


@dataclass(frozen=True, kw_only=True)
class Refused:
    """EC2 gave no reservation, and why."""

    reason: Refusal
    text: str
    error: BaseException | None = None  # AWS's, where it was one


class NotEnded(CapacityError):
    """A reservation made here that could not be cancelled: it costs money until it ends by itself. ``error``: AWS's."""

    def __init__(self, held: Reservation, error: BaseException) -> None:
        self.held, self.error = held, error
        super().__init__(
            f"The reservation {described(held)} could not be cancelled ({error_text(error)}); it costs money and "
            f"quota until {ends_text(held)}.\nWhat to do: {cancel_command(held)}, then try again"
        )


def described(held: Reservation) -> str:
    return f"{held.id} ({held.total} x {held.instance_type} in {held.zone})"


def ends_text(held: Reservation) -> str:
    """When nobody has to do anything any more."""
    if held.end is None:
        return "it ends by itself, within two hours"  # every reservation made here has an end date
    return f"it ends by itself, at most an hour after {format_time(held.end)} UTC"


def cancel_command(held: Reservation) -> str:
    region = re.match(r"[a-z-]+\d+", held.zone.name)  # also of a zone such as us-west-2-lax-1a
    where = f" --region {region[0]}" if region else ""
    return f"aws ec2 cancel-capacity-reservation --capacity-reservation-id {held.id}{where}"


def purpose_of(held: Reservation) -> str:
    return held.tags.get(TAG_PURPOSE, "")


def client_token(owner: Owner, *parts: object) -> str:
    """Same request, same token (at most 64 characters): a repeated delivery of an event reserves nothing twice."""
    text = "\x1f".join(str(p) for p in (owner.stack_id, owner.claim, *parts))
    return hashlib.sha256(text.encode()).hexdigest()[:48]


def reserve(
    aws: Aws,
    owner: Owner,
    purpose: Purpose,
    instance_type: str,
    zone: Zone,
    count: int,
    request_id: str,
    on_made: Callable[[Reservation], None] = lambda held: None,
) -> Reservation | Refused:
    """Reserves ``count`` instances in ``zone`` and waits until they are ``active``. Billing starts with that.

    ``on_made`` is told of the reservation as soon as it exists, so that a caller that is interrupted can end it. Raises
    :class:`NotEnded` where it neither became active nor could be cancelled.
    """
    waits = list(_DENIED_WAITS)
    attempt = 0
    while attempt < _ROUNDS:
        try:
            answer = aws.call(
                aws.ec2.create_capacity_reservation,
                ClientToken=client_token(owner, request_id, purpose, instance_type, zone.zone_id, count, attempt),
                InstanceType=instance_type,
                InstancePlatform=PLATFORM,
                AvailabilityZoneId=zone.zone_id,
                InstanceCount=count,
                InstanceMatchCriteria="targeted",
                EndDateType="limited",
                EndDate=aws.now() + LIFETIME,
                TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": owner.tags(purpose)}],
            )
            held = Reservation.from_ec2(answer["CapacityReservation"])
        except AWS_ERRORS as error:
            refused = Refused(reason=refusal_of(error), text=error_text(error), error=error)
            # The end date differs between two deliveries of one event, so EC2 may call the repeated token a mismatch;
            # and a lost answer may hide a success. Either way the tags tell whether it exists.
            mismatch = error_code(error) == "IdempotentParameterMismatch"
            if refused.reason is Refusal.DENIED and waits:
                aws.sleep(waits.pop(0))
                continue
            if not mismatch and refused.reason not in (Refusal.UNREACHABLE, Refusal.THROTTLED):
                return refused
            try:
                twin = _twin(aws, owner, purpose, instance_type, zone, count)
            except AWS_ERRORS:
                return refused  # not known whether it exists: asking afresh could make a second one
            if twin is None:
                if mismatch:
                    attempt += 1
                    continue
                return refused
            held = twin
        if held.state in ("cancelled", "expired"):
            attempt += 1  # an earlier delivery of this request made and ended it: ask afresh
            continue
        on_made(held)
        return _await_active(aws, held)
    return Refused(reason=Refusal.INVALID, text="every attempt of this request was made and cancelled before")


def _twin(aws: Aws, owner: Owner, purpose: Purpose, instance_type: str, zone: Zone, count: int) -> Reservation | None:
    for held in mine(aws, owner):
        same_place = held.zone.zone_id == zone.zone_id and held.instance_type == instance_type
        if same_place and held.total == count and purpose_of(held) == purpose:
            return held
    return None


def _await_active(aws: Aws, held: Reservation) -> Reservation | Refused:
    """``pending`` becomes ``active`` or ``failed``; a reservation that stays pending is cancelled and refused.

    Raises :class:`NotEnded` where EC2 does not let it be cancelled: it may still become active, and be paid for.
    """
    give_up = aws.now() + _POLL_AT_MOST
    while held.state in ("pending", "assessing"):
        if aws.now() >= give_up or aws.seconds_left() < 60:
            end(aws, held)
            return Refused(reason=Refusal.CAPACITY, text=f"still {held.state} after {_POLL_AT_MOST}")
        aws.sleep(_POLL_SECONDS)
        try:
            held = read(aws, held.id) or held
        except AWS_ERRORS as error:
            end(aws, held)
            return Refused(reason=refusal_of(error), text=error_text(error), error=error)
    if held.state != "active":
        return Refused(reason=Refusal.CAPACITY, text=f"the reservation became {held.state}")
    return held


def read(aws: Aws, reservation_id: str) -> Reservation | None:
    """One reservation, whoever owns it; None where EC2 knows no such id."""
    try:
        answer = aws.call(aws.ec2.describe_capacity_reservations, CapacityReservationIds=[reservation_id])
    except AWS_ERRORS as error:
        if error_code(error).startswith("InvalidCapacityReservationId"):
            return None
        raise
    found = answer.get("CapacityReservations", [])
    return Reservation.from_ec2(found[0]) if found else None


def live(aws: Aws) -> list[Reservation]:
    """All reservations that the account sees and that cost or may soon cost money."""
    # EC2 has no tag filter for reservations: ours are picked here.
    pages = aws.pages(
        aws.ec2.describe_capacity_reservations,
        "CapacityReservations",
        Filters=[{"Name": "state", "Values": list(LIVE_STATES)}],
    )
    return [held for held in map(Reservation.from_ec2, pages) if held.state in LIVE_STATES]


def mine(aws: Aws, owner: Owner) -> list[Reservation]:
    """The live reservations that ``owner`` made."""
    return [held for held in live(aws) if owner.owns(held)]


def cancel(aws: Aws, reservation_id: str, *, fresh: bool = False) -> None:
    """Ends one reservation; one that has ended, or never was, is as good as cancelled. Raises other errors.

    ``fresh``: EC2 has given us the id a moment ago, so an answer that it knows no such id, or that the reservation is in
    no state to be cancelled, is tried again for half a minute, then raised. Without it the age of the id is not known.
    """
    give_up = aws.now() + _UNKNOWN_AT_MOST
    wait = 1.0
    while True:
        try:
            aws.call(aws.ec2.cancel_capacity_reservation, CapacityReservationId=reservation_id)
        except AWS_ERRORS as error:
            code = error_code(error)
            if not code.startswith("InvalidCapacityReservation"):
                raise
            if code.startswith("InvalidCapacityReservationId"):
                ended = not fresh
            else:
                # A state that cannot be cancelled: any more, or, while it is pending, not yet.
                held = read(aws, reservation_id)
                ended = not fresh if held is None else held.state not in LIVE_STATES
            if ended:
                return
            if not fresh or aws.now() >= give_up or aws.seconds_left() < _LAST_SECONDS:
                raise
        else:
            log("cancelled", reservation=reservation_id)
            return
        aws.sleep(wait)
        wait = min(8.0, wait * 2)


def end(aws: Aws, held: Reservation) -> None:
    """Cancels a reservation that was made a moment ago. Raises :class:`NotEnded`, which names it and its end."""
    try:
        cancel(aws, held.id, fresh=True)
    except AWS_ERRORS as error:
        raise NotEnded(held, error) from error


def sweep(
    aws: Aws,
    owner: Owner,
    *,
    holds: bool | None = False,
    keep: Collection[str] = (),
    older_than: datetime | None = None,
) -> list[str]:
    """Cancels what is left of ``owner``'s reservations; returns what could not be cancelled, as text.

    Probes always go. Holds: ``False`` keeps them, ``None`` cancels those of which no slot is used, ``True`` all.
    ``keep``: ids to leave alone. ``older_than``: only what was created before.
    """
    failures: list[str] = []
    try:
        found = mine(aws, owner)
    except AWS_ERRORS as error:
        return [f"reservations could not be listed ({error_text(error)})"]
    for held in found:
        probe = purpose_of(held) == Purpose.PROBE
        wanted = probe or holds is True or (holds is None and held.used == 0)
        recent = older_than is not None and (held.created is None or held.created >= older_than)
        if not wanted or held.id in keep or recent:
            continue
        try:
            cancel(aws, held.id)
        except AWS_ERRORS as error:
            failures.append(f"{held.id} could not be cancelled ({error_text(error)}); {ends_text(held)}")
    return failures


def log(what: str, **details: object) -> None:
    """One JSON line in the function's log; on the command line nobody listens, and stdout stays clean."""
    _LOG.info(json.dumps({"event": what, **details}, default=str))
