"""Follow a job to its end. The job's status decides what became of it, never the end of its log stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from eks_ray_train.errors import ClusterNotReadyError, JobFailedError

from .job_log import JobLog
from .jobs_api import JobInfo, JobsClient, NoSuchJob, Unreachable

POLL_S = 1.5
LOST_AFTER_S = 180.0  # a head that Kubernetes starts anew takes a minute or two
VANISHED_POLLS = 3
BATCH_BYTES = 4 * 1024**2

Sink = Callable[[list[bytes]], None]


@dataclass(frozen=True, kw_only=True)
class Followed:
    """How a job ended. ``log_problem``: why the end of the log is missing, None where it is complete."""

    info: JobInfo
    reconnects: int
    log_problem: str | None = None
    timed_out: bool = False


def follow(
    client: JobsClient,
    job_id: str,
    *,
    on_lines: Sink,
    notice: Callable[[str], None],
    timeout_s: float | None = None,
    lost_after_s: float = LOST_AFTER_S,
) -> Followed:
    """Hand the log's lines to ``on_lines`` until the job has ended, through lost connections and a restarted dashboard.

    ``timeout_s``: stop the job after so many seconds. Raises JobFailedError where the cluster no longer knows the job,
    ClusterNotReadyError where it has not answered for ``lost_after_s`` seconds.
    """
    state = _Watch(client, job_id, notice=notice, lost_after_s=lost_after_s)
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    timed_out = False
    with JobLog(client, job_id) as log:
        while True:
            lines = list(log.lines(0.25))
            if lines:
                on_lines(lines)
            info = state.poll(log)
            if info is not None and info.is_terminal:
                break
            if give_up is not None and time.monotonic() > give_up and not timed_out:
                timed_out = True
                notice(f"the limit of {timeout_s:g} s is reached (--timeout): stopping job {job_id}")
                client.stop(job_id)
        problem = None
        try:
            for batch in _batches(log.finish(info)):
                on_lines(batch)
        except Unreachable as error:
            problem = str(error)
            notice(problem)
        return Followed(info=info, reconnects=log.reconnects, log_problem=problem, timed_out=timed_out)


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
        except NoSuchJob as error:
            self._missing += 1
            if self._missing >= VANISHED_POLLS:
                raise JobFailedError(
                    f"job {self._job_id} has vanished: the cluster no longer knows it. The head was probably replaced and its "
                    "memory with it; submit again (--resume auto goes on from the last checkpoint of the same --run-name)"
                ) from error
        except ClusterNotReadyError as error:
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

    def _away(self, error: ClusterNotReadyError) -> None:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        away = now - self._away_since
        if away > self._lost_after_s:
            raise ClusterNotReadyError(
                f"the cluster has not answered for {away:.0f} s, so what became of job {self._job_id} is unknown ({error}). "
                f"It may be running still: `eks-ray-train status {self._job_id}`"
            ) from error
        if away > 3 and not self._told:
            self._told = True
            self._notice(f"the dashboard does not answer ({error}); trying again for {self._lost_after_s:.0f} s")
