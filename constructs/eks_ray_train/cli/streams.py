"""stdout and stderr that outlive their reader: ``eks-ray-train submit ... | head`` must not end between two steps of the work."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Within it ``sys.stdout`` and ``sys.stderr`` forgive a reader that has gone; left, they are flushed and as before."""
    before = sys.stdout, sys.stderr
    lasting = [_Lasting(stream) for stream in before]
    sys.stdout, sys.stderr = (cast(TextIO, stream) for stream in lasting)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in lasting:
            stream.flush()


def to_nowhere(stream: TextIO) -> None:
    """What this stream still holds, and all that comes, goes to the null device: nothing is left to fail at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
