"""Asking EC2 for the nodes from the command line: stoppable by any signal, and no reservation left without a word."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from eks_ray_train.errors import EksRayTrainError, UsageError

if TYPE_CHECKING:
    from eks_ray_train.capacity.find import Candidate
    from eks_ray_train.capacity.model import Need
    from eks_ray_train.capacity.reservations import NotEnded, Owner

    from .capacity_account import Account

_STOPPING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stopped_as_interrupt() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP end the command as Ctrl-C does: what it reserved is cancelled, where Python's default
    would end the process at once and leave it to be paid for. A further one changes nothing: the clean-up goes on.

    ``cdk_runner`` puts its own handlers in their place while ``cdk`` works. A signal that is ignored (nohup) stays so.
    """
    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield
        return
    seen = 0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.getsignal(number) for number in _STOPPING}
    ours = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    try:
        for number in ours:
            signal.signal(number, stop)
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def owner(account: Account, claim: str) -> Owner:
    """Whose the test reservations of a command are: found again by these tags."""
    from eks_ray_train.capacity.reservations import Owner

    return Owner(stack_id=f"eks-ray-train-cli/{account.id}", claim=claim)


def prove(
    candidates: Sequence[Candidate],
    account: Account,
    need: Need,
    claim: str,
    request_id: str,
    on_try: Callable[[Candidate], None],
) -> list[Candidate]:
    """``capacity.find.probe``, with its errors in the user's words.

    Raises UsageError (exit code 2) where the credentials are over, else EksRayTrainError; each names a reservation that
    could not be cancelled, and when it ends by itself.
    """
    from eks_ray_train.capacity.find import probe
    from eks_ray_train.capacity.reservations import NotEnded

    from .aws_session import aws_errors
    from .consent import note

    try:
        with aws_errors("ec2:CreateCapacityReservation"):
            return probe(
                candidates, account.aws_of, need, owner(account, claim), request_id, on_try=on_try, on_left=note
            )
    except NotEnded as left:
        raise _not_ended(left) from None


def _not_ended(left: NotEnded) -> EksRayTrainError:
    from .aws_session import aws_errors

    try:
        with aws_errors("ec2:CancelCapacityReservation"):
            raise left.error
    except UsageError as error:  # the credentials: how to log in comes first
        return UsageError(f"{error}\n{left}")
    except EksRayTrainError:
        return EksRayTrainError(str(left))
