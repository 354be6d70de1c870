"""Follow a job to its end. The job's status decides what became of it, never the end of its log stream."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from eks_ray_train.errors import ClusterNotReadyError, EksRayTrainError, JobFailedError

from .job_log import JobLog
from .jobs_api import JobInfo, JobsClient, NoSuchJob, Unreachable

POLL_S = 1.5
LOST_AFTER_S = 180.0  # a head that Kubernetes starts anew takes a minute or two
STOP_WAIT_S = 60.0  # from a stop that Ray has taken to the job's end; Ray itself needs 3 s
VANISHED_POLLS = 3
BATCH_BYTES = 4 * 1024**2

Sink = Callable[[list[bytes]], None]


class JobVanishedError(JobFailedError):
    """The cluster knew the job and no longer does (exit code 4): no run is left that could be protected or stopped."""


class JobStillRunsError(JobFailedError):
    """The job was to be stopped and goes on (exit code 4)."""


class Interrupted(Enum):
    """What Ctrl-C is to mean for the job."""

    DETACH = "let it go on, without us"
    STOP = "stop it, and follow it to its end"


@dataclass(frozen=True, kw_only=True)
class Followed:
    """How a job ended. ``log_problem``: why the end of the log is missing, None where it is complete.

    ``timed_out``: it was stopped at the limit. ``detached``: it goes on, and nobody waited for its end.
    """

    info: JobInfo
    reconnects: int
    log_problem: str | None = None
    timed_out: bool = False
    detached: bool = False


def follow(
    client: JobsClient,
    job_id: str,
    *,
    on_lines: Sink,
    notice: Callable[[str], None],
    timeout_s: float | None = None,
    lost_after_s: float = LOST_AFTER_S,
    on_interrupt: Callable[[], Interrupted] | None = None,
) -> Followed:
    """Hand the log's lines to ``on_lines`` until the job has ended, through lost connections and a restarted dashboard.

    ``timeout_s``: stop the job after so many seconds. ``on_interrupt``: asked what Ctrl-C means; without it KeyboardInterrupt
    is raised. Raises JobVanishedError where the cluster no longer knows the job, JobStillRunsError where it does not stop, and
    ClusterNotReadyError where the cluster has not answered for ``lost_after_s`` seconds.
    """
    watch = _Watch(client, job_id, notice=notice, lost_after_s=lost_after_s)
    limit = None if timeout_s is None else time.monotonic() + timeout_s
    at_limit: _Stop | None = None
    stop: _Stop | None = None
    with _Interrupts() as interrupts, JobLog(client, job_id) as log:
        while True:
            try:
                with interrupts.held():
                    if lines := list(log.lines(0.25)):
                        on_lines(lines)
                info = watch.poll(log)
                if info is not None and info.is_terminal:
                    break
                if stop is None and limit is not None and time.monotonic() > limit:
                    notice(f"the limit of {timeout_s:g} s is reached (--timeout): stopping job {job_id}")
                    stop = at_limit = _Stop(client, job_id, notice=notice, within_s=lost_after_s)
                if stop is not None:
                    stop.go_on(info)
            except KeyboardInterrupt:
                if on_interrupt is None:
                    raise
                if on_interrupt() is Interrupted.STOP:
                    stop = stop or _Stop(client, job_id, notice=notice, within_s=lost_after_s)
                    continue
                info = _state_now(client, job_id)
                if not info.is_terminal:  # what has ended meanwhile has a result, and needs nobody to go away from it
                    return Followed(info=info, reconnects=log.reconnects, detached=True)
        problem = None
        try:
            for batch in _batches(log.finish(info)):
                with interrupts.held():
                    on_lines(batch)
        except Unreachable as error:
            problem = str(error)
            notice(problem)
        except KeyboardInterrupt:
            if on_interrupt is None:
                raise
            problem = f"the end of the log was not read (Ctrl-C); all of it: {client.command('logs', job_id)}"
            notice(problem)
        timed_out = at_limit is not None and at_limit.taken
        return Followed(info=info, reconnects=log.reconnects, log_problem=problem, timed_out=timed_out)


def _state_now(client: JobsClient, job_id: str) -> JobInfo:
    try:
        return client.info(job_id)
    except (EksRayTrainError, KeyboardInterrupt):  # who goes away need not hear that the dashboard is away too
        return JobInfo(submission_id=job_id, status="UNKNOWN")


def _batches(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line) + 1
        if size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Interrupts:
    """Ctrl-C, put off while lines are on their way from the log to the sink: whoever goes on after it misses none.

    A second one within that time is not put off (the sink may hang). Elsewhere than in the main thread, and where somebody
    else handles SIGINT, nothing is changed.
    """

    def __init__(self) -> None:
        self._ours = self._holding = self._pressed = False

    def __enter__(self) -> _Interrupts:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._ours = True
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, *_: object) -> None:
        put_off = self._holding and not self._pressed
        self._pressed = put_off
        if not put_off:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within it Ctrl-C waits for the end of the block."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._pressed:
            self._pressed = False
            raise KeyboardInterrupt


class _Stop:
    """Tells the job to stop until Ray has taken that, then waits for its end; both for a bounded time. ``taken``: Ray has."""

    def __init__(self, client: JobsClient, job_id: str, *, notice: Callable[[str], None], within_s: float) -> None:
        self._client = client
        self._job_id = job_id
        self._notice = notice
        self._within_s = within_s
        self._since = time.monotonic()
        self._next = 0.0
        self._problem = ""
        self.taken = False

    def go_on(self, info: JobInfo | None) -> None:
        """Called again and again, with the job's state where it was just asked for. Raises JobStillRunsError."""
        if not self.taken and time.monotonic() >= self._next:
            try:
                self.taken = self._client.stop(self._job_id)
                problem = "" if self.taken else "Ray finds nothing to stop"
            except EksRayTrainError as error:
                problem = str(error)
            self._next = time.monotonic() + POLL_S
            if self.taken:
                self._since = time.monotonic()
            elif not self._problem:
                self._notice(f"job {self._job_id} is not stopped yet ({problem}); trying again for {self._within_s:.0f} s")
            self._problem = problem
        waited = time.monotonic() - self._since
        if info is None or waited <= (STOP_WAIT_S if self.taken else self._within_s):
            return
        what = "was told to stop" if self.taken else f"could not be told to stop ({self._problem})"
        raise JobStillRunsError(
            f"job {self._job_id} {what} and is still {info.status} after {waited:.0f} s, so it goes on and costs; "
            f"stop it: {self._client.command('stop', self._job_id)}; look: {self._client.command('status', self._job_id)}"
        )


class _Watch:
    """Polls the job's state, and decides when an absent dashboard or job is lost."""

    def __init__(self, client: JobsClient, job_id: str, *, notice: Callable[[str], None], lost_after_s: float) -> None:
        self._client = client
        self._job_id = job_id
        self._notice = notice
        self._lost_after_s = lost_after_s
        self._next = 0.0
        self._away_since: float | None = None
        self._told = False
        self._missing = 0
        self._status = ""

    def poll(self, log: JobLog) -> JobInfo | None:
        """The job's state, or None where it is not time to ask yet or nobody answers at the moment."""
        if time.monotonic() < self._next:
            return None
        info: JobInfo | None = None
        try:
            info = self._client.info(self._job_id)
        except NoSuchJob as error:  # in Ray's own words; a 404 of somebody in between is an absent dashboard
            self._missing += 1
            if self._missing >= VANISHED_POLLS:
                raise JobVanishedError(
                    f"job {self._job_id} has vanished: the cluster no longer knows it. The head was probably replaced and its "
                    "memory with it; submit again (--resume auto goes on from the last checkpoint of the same --run-name)"
                ) from error
        except EksRayTrainError as error:
            self._away(error)
        if info is not None:
            self._missing = 0
            if self._away_since is not None:
                if self._told:
                    self._notice(f"the dashboard answers again after {time.monotonic() - self._away_since:.0f} s")
                self._away_since, self._told = None, False
                log.reconnect()
            if info.status != self._status:
                self._status = info.status
                self._notice(f"job {self._job_id}: {info.status}")
        self._next = time.monotonic() + POLL_S
        return info

    def _away(self, error: EksRayTrainError) -> None:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        away = now - self._away_since
        if away > self._lost_after_s:
            raise ClusterNotReadyError(
                f"the cluster has not answered for {away:.0f} s, so what became of job {self._job_id} is unknown ({error}). "
                f"It may be running still: `{self._client.command('status', self._job_id)}`"
            ) from error
        if away > 3 and not self._told:
            self._told = True
            self._notice(f"the dashboard does not answer ({error}); trying again for {self._lost_after_s:.0f} s")
