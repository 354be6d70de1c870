"""Whether a file or folder that a command will write at its end can be written: asked before anything is started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from eks_ray_train.errors import UsageError


def check_writable(path: Path, flag: str, *, folder: bool = False) -> None:
    """Raises UsageError where ``path`` (a ``folder``, else a file) cannot be made or written. Makes nothing."""
    if not folder and path.is_dir():
        raise UsageError(f"{flag} {path} is a folder; give a file in it, for example {path / 'report.xml'}")
    nearest = path if folder or path.exists() else path.parent
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if nearest is not path or folder:
        if not nearest.is_dir():
            raise UsageError(f"{flag} {path}: {nearest} is a file, not a folder; choose another place")
        needed = os.W_OK | os.X_OK
    else:
        needed = os.W_OK
    if not os.access(nearest, needed):
        raise UsageError(f"{flag} {path} cannot be written: no permission for {nearest}; choose another place")


@contextlib.contextmanager
def told_as_usage(flag: str, path: Path) -> Iterator[None]:
    """What fails below when writing (a full disk, a folder taken away) is told with the flag that chose the place."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{flag} {path} cannot be written: {error.strerror or error}; choose another place") from None
