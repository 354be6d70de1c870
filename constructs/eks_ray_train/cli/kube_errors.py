"""How a call to the Kubernetes API can fail, told apart by what to do about it, and in what time."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from eks_ray_train.errors import ClusterNotReadyError

from .eks_access import NoAnswer

Answer = TypeVar("Answer")


class NotThere(ClusterNotReadyError):
    """The API server knows no such object."""


class UnknownCaller(ClusterNotReadyError):
    """The cluster has no access entry for this identity."""


class Forbidden(ClusterNotReadyError):
    """This identity may not do that."""


def status_of(error: Any) -> int:
    """HTTP status of a refused call; where a WebSocket was refused (exec, port forwarding) the client only puts it into the text."""
    found = re.search(r"Handshake status (\d+)", str(error.reason)) if not error.status else None
    return int(found[1]) if found else int(error.status or 0)


def within(seconds: float, what: str, call: Callable[[], Answer]) -> Answer:
    """The answer of ``call``; NoAnswer where it takes longer than ``seconds``.

    For WebSockets, whose time the kubernetes client does not limit: neither the handshake nor half a frame. What is late goes
    on in a daemon thread, which does not keep the process.
    """
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # raised again below, in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name=what, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise NoAnswer(f"{what}: no answer within {seconds:.0f} s; see whether a proxy or firewall lets WebSockets through, and try again")
    return answers[0]
