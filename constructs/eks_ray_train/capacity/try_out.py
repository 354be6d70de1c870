"""One real question to EC2 from the command line: a reservation is made and cancelled, and never forgotten."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .aws import AWS_ERRORS, Aws, Refusal
from .model import Need, Reservation, Zone
from .reservations import NotEnded, Owner, Purpose, Refused, cancel, end, ends_text, reserve, sweep


def try_out(
    aws: Aws, owner: Owner, need: Need, zone: Zone, request_id: str, on_left: Callable[[str], None]
) -> Reservation | Refused:
    """Reserves and cancels; returns what EC2 gave, which is over by then, or its refusal.

    Raises :class:`NotEnded`. ``on_left`` is told what an interruption left, or may have left.
    """
    made: list[Reservation] = []
    try:
        try:
            got = reserve(aws, owner, Purpose.PROBE, need.instance_type, zone, need.nodes, request_id, made.append)
        except NotEnded as error:
            _end_again(aws, error)
            return Refused(reason=Refusal.CAPACITY, text=f"{error.held.id} never became active; it is cancelled")
        if isinstance(got, Reservation):
            try:
                end(aws, got)
            except NotEnded as error:
                _end_again(aws, error)
        elif got.reason is Refusal.UNREACHABLE:  # a lost answer may hide a success
            _tell(on_left, sweep(aws, owner))
        return got
    except NotEnded:
        raise
    except BaseException:  # Ctrl-C too: nothing may stay
        left = [f"{held.id} may be left; {ends_text(held)}" for held in made]
        try:
            left = [*_ended(aws, made), *sweep(aws, owner, keep=[held.id for held in made])]
        finally:  # a second Ctrl-C, too
            _tell(on_left, left)
        raise


def _tell(on_left: Callable[[str], None], texts: Sequence[str]) -> None:
    for text in texts:
        on_left(text)


def _end_again(aws: Aws, failed: NotEnded) -> None:
    """Once more, since nobody else will: what stood in the way may be over. Raises ``failed`` where it is not."""
    try:
        cancel(aws, failed.held.id, fresh=True)
    except AWS_ERRORS:
        raise failed from None


def _ended(aws: Aws, made: Sequence[Reservation]) -> list[str]:
    """Cancels by id, since a listing may not show yet what was made a moment ago; returns what could not be."""
    failures = []
    for held in made:
        try:
            end(aws, held)
        except NotEnded as error:
            failures.append(str(error))
    return failures
