"""Stop processes by their ids, with all that they started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PR_SET_PDEATHSIG = 1  # https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html


def end_with_parent() -> Callable[[], None]:
    """For ``preexec_fn`` on Linux: the child gets SIGTERM when this process dies, even by SIGKILL."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl

    def apply() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    return apply


def _table() -> dict[int, tuple[int, str]]:
    """Process id -> (parent's id, when it started). Zombies are left out."""
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="], capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}
    ).stdout
    table = {}
    for line in listing.splitlines():
        pid, parent, state, started = line.split(None, 3)
        if not state.startswith("Z"):
            table[int(pid)] = (int(parent), started)
    return table


def descendants(roots: list[int]) -> list[int]:
    """``roots`` that live, and all their children's children."""
    table = _table()
    found = [pid for pid in roots if pid in table]
    for pid in found:
        found += [child for child, (parent, _) in table.items() if parent == pid and child not in found]
    return found


def children(parents: list[int]) -> dict[int, dict[int, tuple[str, bool]]]:
    """For each of ``parents`` its children: id -> (the program's name, on Linux its first 15 characters; does it live?)."""
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat=,comm="], capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}
    ).stdout
    found: dict[int, dict[int, tuple[str, bool]]] = {parent: {} for parent in parents}
    for line in listing.splitlines():
        pid, parent, state, name = line.split(None, 3)
        if int(parent) in found:
            found[int(parent)][int(pid)] = (Path(name.removesuffix("<defunct>").strip()).name, not state.startswith("Z"))
    return found


def given_folder(folder: Path) -> list[int]:
    """Ids of processes that were started with a flag that names something in ``folder``, whoever their parent is now."""
    listing = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,args="], capture_output=True, text=True, check=True).stdout
    found = []
    for line in listing.splitlines():
        pid, *words = line.split()
        if any(word.startswith("--") and f"={folder}/" in word for word in words):
            found.append(int(pid))
    return found


def stop_all(roots: list[int], *, patience_s: float = 8.0) -> None:
    """SIGTERM to ``roots``, newest first, then SIGKILL to whatever of their offspring still lives after ``patience_s``.

    The offspring is noted before: orphans would be out of reach. An id that meanwhile belongs to another process (it
    started at another time) is left alone.
    """
    before = _table()
    family = {pid: before[pid][1] for pid in descendants(roots) if pid in before}
    for pid in reversed(roots):
        if pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    give_up = time.monotonic() + patience_s
    while alive := _alive(family):
        if time.monotonic() > give_up:
            break
        time.sleep(0.1)
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _alive(family: dict[int, str]) -> list[int]:
    now = _table()
    return [pid for pid, started in family.items() if pid in now and now[pid][1] == started]
