"""Judging a run while its log streams by, or a log file: by transport events where there are any, else by free lines."""

from __future__ import annotations

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from eks_ray_train.errors import UsageError
from eks_ray_train.gate.answer import Expected, Verdict
from eks_ray_train.gate.events import judge_events, nodes_of_last_attempt, read_event
from eks_ray_train.gate.evidence import Evidence, ExpectedFabric
from eks_ray_train.gate.nccl_log import LogParser
from eks_ray_train.gate.nodes import sort_into_nodes
from eks_ray_train.gate.verdict import judge

CHUNK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_PACKED = {
    b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip", b"7z\xbc\xaf\x27\x1c": "7-Zip",
    b"\x04\x22\x4d\x18": "lz4",
}  # fmt: skip
"""First bytes of what people pack logs with: read as text, such a file would look like a run without evidence."""
_EVENT_MARK = b'"event"'
_MAX_EVENT_BYTES = 256 << 20
"""Of all events together: far more than the largest run writes, so that a job that prints without end cannot fill memory."""


class RunJudge:
    """Feed the job's stream, then ask for the verdict with the job's final status.

    ``events_required``: never fall back to free lines, so that a run without transport events cannot pass.
    ``nodes_expected`` None: as many nodes as the log names or NCCL counts, at least two. ``expected`` None: ``none`` for one node, else
    ``efa``.
    """

    def __init__(
        self,
        *,
        nodes_expected: int | None = None,
        expected: Expected | None = None,
        instance: ExpectedFabric | None = None,
        events_required: bool = False,
    ) -> None:
        self.events_required = events_required
        self.nodes_expected, self.expected, self.instance = nodes_expected, expected, instance
        self.done_status: str | None = None
        """What the job's own ``done`` event says, for logs whose status nobody kept."""
        self._parser = LogParser()
        self._events: list[dict[str, Any]] = []
        self._broken = 0
        self._transport_events = 0
        self._event_bytes = 0

    def feed_line(self, line: str | bytes) -> None:
        """One line of the stream, with or without its end."""
        raw = line.encode("utf-8", "replace") if isinstance(line, str) else line
        if _EVENT_MARK in raw and self._take_event(raw.strip(b"\r\n")):
            return
        self._parser.feed(raw)

    def feed_chunk(self, chunk: bytes) -> None:
        """Whole lines, many at once."""
        if _EVENT_MARK not in chunk:
            self._parser.feed_chunk(chunk)
            return
        plain: list[bytes] = []
        for line in chunk.replace(b"\r", b"\n").split(b"\n"):
            if _EVENT_MARK not in line or not self._take_event(line):
                plain.append(line)
        self._parser.feed_chunk(b"\n".join(plain))

    def _take_event(self, line: bytes) -> bool:
        try:
            event = read_event(line)
        except ValueError:
            if b'"transport"' in line[:200]:
                self._broken += 1
                return True
            return False
        if event is None:
            return False
        kind = event["event"]
        if kind in ("transport", "restart"):
            self._event_bytes += len(line)
            if self._event_bytes > _MAX_EVENT_BYTES:
                self._broken += 1
                return True
            self._events.append(event)
            self._transport_events += kind == "transport"
        elif kind == "done" and isinstance(event.get("status"), str):
            self.done_status = event["status"]
        return True

    @property
    def by_events(self) -> bool:
        """Whether the run has transport events and is therefore judged by them."""
        return bool(self._transport_events or self._broken)

    def verdict(self, job_status: str | None) -> Verdict:
        """The verdict so far; ``job_status`` is the Jobs API's, None where unknown (which cannot pass)."""
        evidence = self._parser.evidence()
        nodes = self.nodes_expected or max(2, self._named_nodes(evidence))
        expected: Expected = self.expected or ("none" if nodes == 1 else "efa")
        if not (self.by_events or self.events_required):
            return judge(
                evidence, job_status=job_status, nodes_expected=nodes, expected=expected, instance=self.instance
            )
        broken = (
            [f"{self._broken} transport events broke off or were too many to read; get the job's whole log"]
            if self._broken
            else []
        )
        return judge_events(
            self._events,
            job_status=job_status,
            nodes_expected=nodes,
            expected=expected,
            instance=self.instance,
            problems=broken,
        )

    def _named_nodes(self, evidence: Evidence) -> int:
        if self.by_events:
            return len(nodes_of_last_attempt(self._events))
        nodes = [node for node in sort_into_nodes(evidence) if node.name is not None]
        others = evidence.ray_nodes - {node.ip for node in nodes if node.ip}
        return max(len(nodes) + len(others), evidence.nodes_by_nccl)


def read_log(judge_: RunJudge, source: str) -> None:
    """Feed one file, gzipped or not, or standard input ("-"), in bounded memory.

    Raises UsageError where the file is missing, a folder, unreadable, no whole gzip stream, or packed in another way.
    """
    if source == "-":
        if _closed(sys.stdin):
            raise UsageError("standard input (-) is closed; pipe a log into it, or give the path of a file")
        peeking = io.BufferedReader(cast(Any, sys.stdin.buffer))
        try:
            _read(judge_, peeking, "standard input")
        except OSError as error:
            raise UsageError(
                f"cannot read standard input: {error.strerror or error}; pipe a log into it, or give the path of a file"
            ) from None
        finally:
            peeking.detach()  # or standard input would be closed with it
        return
    try:
        with Path(source).open("rb") as file:
            _read(judge_, file, source)
    except FileNotFoundError:
        raise UsageError(f"no such log file: {source}; give a path, or - for standard input") from None
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror or error}; give a readable log file") from None


def _closed(stream: TextIO | None) -> bool:
    """Whether nothing was given to read: no stream at all, or the null device, which the command line puts in its place."""
    if stream is None:
        return True
    try:
        return os.path.samestat(os.fstat(stream.fileno()), Path(os.devnull).stat())
    except (OSError, ValueError):
        return False  # no file at all, or one that reading will tell of


def _read(judge_: RunJudge, file: io.BufferedReader, name: str) -> None:
    head = file.peek(8)
    packed = next((kind for magic, kind in _PACKED.items() if head.startswith(magic)), None)
    if packed:
        raise UsageError(f"{name} is packed by {packed}, and only gzip is read; unpack it and give what is in it")
    if name.endswith(".gz") and head[:2] != _GZIP and b"\0" in head:
        raise UsageError(f"{name} is no gzip file, though its name says so, and no text; copy it again")
    if head[:2] != _GZIP:
        _feed(judge_, file)
        return
    try:
        with gzip.GzipFile(fileobj=file) as unpacked:
            _feed(judge_, cast(BinaryIO, unpacked))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{name} is not a whole gzip file ({error}); copy it again") from None


def _feed(judge_: RunJudge, file: BinaryIO) -> None:
    for chunk in _whole_lines(file):
        judge_.feed_chunk(chunk)


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Chunks that end with a line; a line longer than four chunks is handed on in pieces."""
    rest = b""
    encoding = None
    first = True
    while chunk := file.read(CHUNK_BYTES):
        if first:
            encoding = _utf16(rest + chunk)
        first = False
        rest += chunk
        if encoding:
            continue_at = len(rest) & ~1
            yield from _recoded(rest[:continue_at], file, encoding)
            return
        end = max(rest.rfind(b"\n"), rest.rfind(b"\r"))
        if end >= 0:
            yield rest[: end + 1]
            rest = rest[end + 1 :]
        elif len(rest) > 4 * CHUNK_BYTES:
            yield rest
            rest = b""
    if rest:
        yield rest


def _utf16(start: bytes) -> str | None:
    """The encoding of a log that a Windows shell redirected, with its mark or without (every other byte of ASCII is 0)."""
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    start = start[: min(1024, len(start) & ~1)]
    zeros = [start[half::2].count(0) for half in (0, 1)]
    if len(start) < 8 or min(zeros) > len(start) // 20 or max(zeros) < len(start) * 9 // 20:
        return None
    return "utf-16-be" if zeros[0] > zeros[1] else "utf-16-le"


def _recoded(start: bytes, file: BinaryIO, encoding: str) -> Iterator[bytes]:
    import codecs

    decoder = codecs.getincrementaldecoder(encoding)("replace")
    rest = b""
    chunk = start
    while chunk:
        rest += decoder.decode(chunk).encode("utf-8", "replace")
        end = rest.rfind(b"\n")
        yield rest[: end + 1]
        rest = rest[end + 1 :][-4 * CHUNK_BYTES :]
        chunk = file.read(CHUNK_BYTES)
    yield rest
