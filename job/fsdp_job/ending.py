"""How a driver ends: one ``done`` event and one exit code on every ending, stops at any moment included."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from fsdp_job import events
from fsdp_job.errors import EXIT_OK, EXIT_STOPPED, EXIT_UNEXPECTED, JobError

STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
"""Ray's variable: seconds between SIGTERM and SIGKILL of a stopped job (3 by default, ray/dashboard/modules/job)."""

CLEAN_UP_S = 20.0
"""How much longer than the ``done`` event of a stop the process may take to end."""


class Stopped(KeyboardInterrupt):
    """SIGTERM reached the driver (``ray job stop`` and Kubernetes send it).

    A KeyboardInterrupt, since of what a signal handler raises inside a waiting ``ray.get`` Ray passes on that and SystemExit
    only (check_signals in ray/_raylet.pyx).
    """


@dataclass
class Ending:
    """What the ``done`` event says; filled as the run goes on, told once."""

    began: float = field(default_factory=time.time)
    status: str = "failed"
    code: int = EXIT_UNEXPECTED
    run_name: str | None = None
    error: dict[str, Any] | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)
    _told: bool = False
    _lock: Any = field(default_factory=threading.RLock)

    def emit(self) -> None:
        """Print the ``done`` event; what was told stays: later calls of this class's methods change nothing."""
        with self._lock:
            if self._told:
                return
            self._told = True
        steps = self.summary.get("step", self.seen.get("last_step", 0))
        events.write_line(
            events.render(
                "done", status=self.status, exit_code=self.code, steps=steps, run_name=self.run_name, error=self.error,
                final_loss=self.summary.get("final_loss", self.seen.get("final_loss")),
                wall_s=round(time.time() - self.began, 3), attempts=self.seen.get("attempts", 0), time=events.now(),
                **{key: value for key, value in self.summary.items() if key not in ("status", "step", "final_loss", "rank", "error")},
            )
        )  # fmt: skip

    def fail(self, code: int, error: dict[str, Any]) -> None:
        self._become("failed", code, error)

    def succeed(self) -> None:
        self._become("succeeded", EXIT_OK, None)

    def stop(self) -> None:
        self._become("stopped", EXIT_STOPPED, None)

    def _become(self, status: str, code: int, error: dict[str, Any] | None) -> None:
        with self._lock:
            if not self._told:
                self.status, self.code, self.error = status, code, error


@contextlib.contextmanager
def telling(ending: Ending, program: str) -> Iterator[None]:
    """Runs a driver's body: whatever ends it is told by ``ending``, whose ``code`` is then the process's exit code.

    An exception that is no JobError and no stop is told and passed on.
    """
    with _stops(ending):
        try:
            yield
        except JobError as error:
            print(f"{program}: {error}", file=sys.stderr)
            ending.fail(error.exit_code, {"type": type(error).__name__, "message": str(error)})
        except KeyboardInterrupt:
            ending.stop()
        except SystemExit as error:
            # Ray's own handlers: of SIGTERM from the first line of ray.init, of SIGINT while Ray Train runs.
            if error.code not in (None, 0, int(signal.SIGTERM)):
                ending.fail(EXIT_UNEXPECTED, {"type": "SystemExit", "message": str(error.code)[:2000]})
                raise
            ending.stop()
        except Exception as error:
            ending.fail(EXIT_UNEXPECTED, {"type": type(error).__name__, "message": str(error)[:2000]})
            raise
        finally:
            ending.emit()


def listen() -> None:
    """Make SIGTERM raise ``Stopped`` in the main thread; called again after ``ray.init``, which puts its own handler there."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _raise_stopped)


def _raise_stopped(_signal: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped


@contextlib.contextmanager
def _stops(ending: Ending) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    listen()
    deaf = _Deaf(ending)
    try:
        yield
    finally:
        deaf.close()
        signal.signal(signal.SIGTERM, before)


class _Deaf:
    """A thread for a main thread that does not hear: no Python handler runs while it is inside a C call, such as connecting
    to a head that does not answer, and what a handler raises inside a destructor is lost.

    The interpreter writes each signal's number into a pipe at once (``signal.set_wakeup_fd``). Where the run has not ended
    shortly after a SIGTERM, this thread says ``done`` before Ray's SIGKILL comes, and later ends the process.
    """

    def __init__(self, ending: Ending, leave: Callable[[int], None] = os._exit) -> None:
        self._ending, self._leave = ending, leave
        self._patience_s = max(0.5, float(os.environ.get(STOP_WAIT) or 3) - 1.0)
        self._over = threading.Event()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._run, name="stop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while data := os.read(self._read, 64):
            if int(signal.SIGTERM) in data:
                if not self._over.wait(self._patience_s):
                    self._ending.stop()
                    self._ending.emit()
                    if not self._over.wait(CLEAN_UP_S):
                        self._leave(EXIT_STOPPED)
                return

    def close(self) -> None:
        self._over.set()
        signal.set_wakeup_fd(self._before, warn_on_full_buffer=False)
        os.close(self._write)
        self._thread.join()
        os.close(self._read)
