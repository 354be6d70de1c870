"""stdin, stdout and stderr that are always there: ``eks-ray-train submit ... | head`` must not end between two steps of the work,
nor must ``eks-ray-train submit ... >&-``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO, cast


class _Lasting:
    """A text stream that writes to nowhere once its reader has gone; everything else is the stream's own.

    Only a closed pipe is forgiven: who closed it wants no more. A full disk stays an error, since something is missing there.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            to_nowhere(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            to_nowhere(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def lasting_output() -> Iterator[None]:
    """Within it ``sys.stdout`` and ``sys.stderr`` forgive a reader that has gone, and a stream that is closed is the null device;
    left, they are flushed and as before."""
    before = sys.stdin, sys.stdout, sys.stderr
    with ExitStack() as opened:
        given = [stream or opened.enter_context(_null_device(number)) for number, stream in enumerate(before)]
        lasting = [_Lasting(stream) for stream in given[1:]]
        sys.stdin = given[0]
        sys.stdout, sys.stderr = (cast(TextIO, stream) for stream in lasting)
        try:
            yield
        finally:
            sys.stdin, sys.stdout, sys.stderr = before
            for stream in lasting:
                stream.flush()


def _null_device(number: int) -> TextIO:
    """In place of a standard stream that the caller closed (``>&-``; Python then has None there).

    At the stream's own number: else the next file or connection would get it, and a program that is started would write there.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    os.set_inheritable(nowhere, nowhere == number)
    return cast(TextIO, os.fdopen(nowhere, "r" if number == 0 else "w", encoding="utf-8"))


def to_nowhere(stream: TextIO) -> None:
    """What this stream still holds, and all that comes, goes to the null device: nothing is left to fail at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
