"""Follow a job's log to its last byte: reconnects from the byte it has reached, so nothing is lost or told twice.

A thread reads the stream into a bounded queue; the consumer is one thread. What counts as the end is decided by the job's
status, never by the stream: ``finish`` reads the rest of the file once the job is over.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator

from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from eks_ray_train.errors import ClusterNotReadyError, EksRayTrainError

from .jobs_api import JobInfo, JobsClient, Unreachable

CHUNK = 64 * 1024
QUEUE_CHUNKS = 64  # at most 4 MiB wait for a slow reader
MAX_LINE = 8 * 1024**2  # a longer line is handed on in pieces
# A quiet job is normal; a dead connection is noticed by the status polls. Also the wait for the answer's head is this long:
# Ray sends it with the log's first byte, and goes on reading for a client that has given up (its HTTP server does not cancel),
# so that asking again every few seconds would pile up readers of a silent job on the head.
READ_TIMEOUT_S = 900.0
LEAVE_AFTER_S = 2.0  # a reader that neither ends nor brings anything any more, once the job is over


class LineSplitter:
    """Bytes in pieces -> whole lines without their ends. Memory is bounded: a line of ``max_line`` bytes is handed on as it is."""

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._parts: list[bytes] = []
        self._held = 0
        self._max = max_line

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Lines that ``data`` completes, without their ends."""
        *whole, rest = data.split(b"\n")
        for line in whole:
            yield self._take(line)
        if rest:
            self._parts.append(rest)
            self._held += len(rest)
            if self._held >= self._max:
                yield self._take(b"")

    def rest(self) -> Iterator[bytes]:
        """The last line, where it has no end."""
        if self._parts:
            yield self._take(b"")

    def _take(self, last: bytes) -> bytes:
        raw = b"".join([*self._parts, last]) if self._parts else last
        self._parts.clear()
        self._held = 0
        return raw.removesuffix(b"\r")


class JobLog:
    """The log of one job, as a stream of lines (bytes: a job may print anything). Use as a context manager; ``lines`` and ``finish`` from one thread only."""

    def __init__(self, client: JobsClient, job_id: str, *, on_reconnect: Callable[[int], None] | None = None) -> None:
        self._client = client
        self._job_id = job_id
        self._on_reconnect = on_reconnect
        self._queue: queue.Queue[bytes] = queue.Queue(maxsize=QUEUE_CHUNKS)
        self._splitter = LineSplitter()
        self._stop = threading.Event()
        self._retry = threading.Event()
        self._response: BaseHTTPResponse | None = None
        self._received = 0
        self._left = False
        self._thread = threading.Thread(target=self._read, name=f"log of {job_id}", daemon=True)
        self.reconnects = 0

    def __enter__(self) -> JobLog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_reader()

    @property
    def received(self) -> int:
        """Bytes of the log read so far."""
        return self._received

    def reconnect(self) -> None:
        """Drop the connection and open it again (called when the dashboard was away and is back)."""
        self._retry.set()
        self._wake()

    def lines(self, wait_s: float) -> Iterator[bytes]:
        """Lines that have arrived; waits at most ``wait_s`` seconds for the first and then takes what is there."""
        try:
            chunk = self._queue.get(timeout=wait_s)
        except queue.Empty:
            return
        for _ in range(QUEUE_CHUNKS):
            yield from self._splitter.feed(chunk)
            try:
                chunk = self._queue.get_nowait()
            except queue.Empty:
                return
        yield from self._splitter.feed(chunk)

    def finish(self, info: JobInfo, *, within_s: float = 60) -> Iterator[bytes]:
        """All that is left of an ended job's log. Raises Unreachable where it cannot be read to its end in ``within_s``."""
        self._stop.set()
        leave_at = time.monotonic() + LEAVE_AFTER_S
        while self._thread.is_alive() or not self._queue.empty():
            self._wake()
            try:
                chunk = self._queue.get(timeout=0.05)
            except queue.Empty:
                # It waits for an answer that may never come (the head of one cannot be woken). Told to stop, it hands on and
                # counts nothing more, so that it can be left behind.
                if self._left or time.monotonic() > leave_at:
                    self._left = True
                    break
                continue
            yield from self._splitter.feed(chunk)
            leave_at = time.monotonic() + LEAVE_AFTER_S
        if info.driver_node_id:  # a job that never started has no log
            for chunk in self.chunks(info, within_s=within_s):
                yield from self._splitter.feed(chunk)
        yield from self._splitter.rest()

    def chunks(self, info: JobInfo, *, within_s: float = 60) -> Iterator[bytes]:
        """The log's bytes behind what was received before, up to where it ends now; goes on where a connection broke.

        Raises Unreachable where that is not possible for ``within_s`` seconds without a byte.
        """
        give_up = time.monotonic() + within_s
        while True:
            had = self._received
            try:
                response = self._client.open_log(info, follow=False, read_timeout_s=60)
                try:
                    for chunk in self._skip(response):
                        self._received += len(chunk)
                        yield chunk
                    return
                finally:
                    response.close()
            except (ClusterNotReadyError, HTTPError, OSError) as error:
                if self._received > had:
                    give_up = time.monotonic() + within_s
                if time.monotonic() > give_up:
                    raise Unreachable(f"the end of the log of job {self._job_id} cannot be read: {error}; try again: {self._client.command('logs', self._job_id)}") from error
                time.sleep(1.0)

    # ---- the reader's thread ---------------------------------------------------------------------------------------
    def _read(self) -> None:
        opened = 0
        pause = 0.2
        while not self._stop.is_set():
            self._retry.clear()
            # What goes wrong here is not told: the follower polls the job's state and decides what it means.
            with contextlib.suppress(EksRayTrainError, HTTPError, OSError):
                info = self._client.info(self._job_id)
                if info.driver_node_id:
                    self._response = response = self._client.open_log(info, follow=True, read_timeout_s=READ_TIMEOUT_S)
                    opened += 1
                    self.reconnects = opened - 1
                    if self.reconnects and self._on_reconnect:
                        self._on_reconnect(self._received)
                    pause = 0.2
                    try:
                        if not (self._stop.is_set() or self._retry.is_set()):
                            self._copy(response)
                    finally:
                        self._response = None
                        response.close()
            self._stop.wait(pause)
            pause = min(pause * 1.5, 3.0)

    def _copy(self, response: BaseHTTPResponse) -> None:
        for chunk in self._skip(response):
            while not self._stop.is_set():
                try:
                    self._queue.put(chunk, timeout=0.5)
                    self._received += len(chunk)  # what is not handed on does not count: finish() reads it again
                    break
                except queue.Full:
                    continue
            else:
                return

    def _skip(self, response: BaseHTTPResponse) -> Iterator[bytes]:
        """Chunks of the log behind what was received before."""
        ahead = self._received
        while chunk := response.read1(CHUNK):
            if ahead >= len(chunk):
                ahead -= len(chunk)
                continue
            chunk, ahead = chunk[ahead:], 0
            yield chunk

    def _wake(self) -> None:
        """End a read that waits in the reader's thread; only that thread closes the response (http.client is not safe
        against a close in the middle of a read)."""
        response = self._response
        if response is not None:
            with contextlib.suppress(HTTPError, OSError, ValueError, RuntimeError):
                response.shutdown()

    def _stop_reader(self) -> None:
        self._stop.set()
        self._wake()
        if not self._left:
            self._thread.join(timeout=5)
