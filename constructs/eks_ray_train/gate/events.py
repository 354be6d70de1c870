"""Judging a run by its own ``transport`` events: every rank's NCCL lines and every node's EFA counters.

Free log lines may be lost, folded or printed by anybody; an event is a rank's own answer, written once at its end. The
job writes these lines (``job/fsdp_job``) and this module reads them: the JSON is their contract.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from eks_ray_train.gate.answer import Expected, Verdict
from eks_ray_train.gate.evidence import MAX_RANKS, Counters, Evidence, ExpectedFabric
from eks_ray_train.gate.nccl_log import LogParser
from eks_ray_train.gate.prefixes import read_prefix, strip_colour
from eks_ray_train.gate.verdict import judge

MAX_EVENT_BYTES = 4 << 20
"""A longer event line is not read; it counts as a rank that did not answer."""
_MAX_LINES_PER_EVENT = 20_000
# Sent and received, best source first: all traffic, else its parts (SENDRECV types move send/recv, RDMA types rdma).
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-working-monitor.html
_SENT = (("tx_bytes",), ("send_bytes", "rdma_write_bytes"), ("sent",))
_RECEIVED = (("rx_bytes",), ("recv_bytes", "rdma_read_bytes", "rdma_write_recv_bytes"), ("received",))


def read_event(line: str | bytes) -> dict[str, Any] | None:
    """The event that a line carries, or None. Only known prefixes may stand before the JSON.

    Raises ValueError for a line that begins an event and breaks off.
    """
    raw = line.encode("utf-8", "replace") if isinstance(line, str) else line
    if b'"event"' not in raw[:4096] or len(raw) > MAX_EVENT_BYTES:
        return None
    text = strip_colour(raw)
    body = text[read_prefix(text).end :]
    if not body.startswith(b"{"):
        return None
    try:
        event, _ = json.JSONDecoder().raw_decode(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise ValueError("an event line broke off") from error
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def judge_events(
    events: Iterable[Mapping[str, Any]],
    *,
    job_status: str | None,
    nodes_expected: int,
    expected: Expected,
    instance: ExpectedFabric | None = None,
    problems: Iterable[str] = (),
) -> Verdict:
    """Judge a run by its ``transport`` events, in the order they came.

    Pass needs, besides what :func:`judge` asks: an answer of every rank, channels between nodes from every node, and EFA
    counters that moved on every node. A rank that restarted answers again; what an earlier attempt said still counts
    against a pass, not for it. ``problems``: what else speaks against it (broken event lines).
    """
    evidence = evidence_of_events(events)
    evidence.problems += list(problems)
    return judge(evidence, job_status=job_status, nodes_expected=nodes_expected, expected=expected, instance=instance)


def evidence_of_events(events: Iterable[Mapping[str, Any]]) -> Evidence:
    """Parse the events' lines and counters; anything missing or malformed becomes a problem, never an exception."""
    problems: list[str] = []
    attempt = _Attempt()
    earlier: list[_Attempt] = []
    for event in events:
        if event.get("event") == "restart" and attempt.nodes:
            earlier.append(attempt)
            attempt = _Attempt()
        elif event.get("event") == "transport":
            attempt.add(event, problems)
    evidence = attempt.parser.evidence()
    evidence.strict, evidence.counters, evidence.world_size = True, attempt.counters, attempt.world or None
    evidence.earlier = [old.parser.evidence() for old in earlier]
    evidence.problems = problems + _missing(attempt.nodes, attempt.world)
    return evidence


def nodes_of_last_attempt(events: Iterable[Mapping[str, Any]]) -> set[str]:
    """Every node that a transport event of the last attempt names: one that was replaced before a restart is none of the run's."""
    nodes: set[str] = set()
    for event in events:
        if event.get("event") == "restart":
            nodes = set()
        elif event.get("event") == "transport":
            nodes.add(str(event.get("node")))
    return nodes


class _Attempt:
    """The answers of one attempt of the job; a restart begins another."""

    def __init__(self) -> None:
        self.parser = LogParser()
        self.nodes: dict[int, str] = {}
        self.counters: dict[str, Counters] = {}
        self.world = 0

    def add(self, event: Mapping[str, Any], problems: list[str]) -> None:
        rank, size = _count_of(event.get("rank")), _count_of(event.get("world_size"))
        node, lines = event.get("node"), event.get("nccl_lines") or []
        if rank is None or not isinstance(node, str) or not node or not isinstance(lines, list):
            problems.append(f"a transport event without a usable rank, node or list of NCCL lines: {_short(event)}")
            return
        if len(self.nodes) >= MAX_RANKS:
            return
        self.nodes[rank] = node
        self.world = max(self.world, size or 0)
        spoken = [text for text in lines[:_MAX_LINES_PER_EVENT] if isinstance(text, str)]
        if not spoken:
            problems.append(
                f"{node}: rank {rank} reports no NCCL line; check that NCCL_DEBUG=INFO reaches it and that its file is readable"
            )
        for text in spoken:
            self.parser.feed(text, (node, rank))
        _count(self.counters, node, event.get("efa_counters"))


def _missing(answered: Mapping[int, str], world: int) -> list[str]:
    if not answered:
        return [
            "no transport event: no rank said what it used; check that the job got as far as training and how it ended "
            "(a job of your own must print these events; `eks-ray-train gate FILE` judges a log without them)"
        ]
    if world <= 0:
        return ["no transport event says the world's size, so a rank may be missing; check the job's version"]
    missing = [rank for rank in range(min(world, MAX_RANKS)) if rank not in answered]
    if not missing:
        return []
    names = ", ".join(map(str, missing[:16])) + (" …" if len(missing) > 16 else "")
    return [f"rank {names} of {world} gave no transport event; check how these workers ended"]


def _count_of(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10_000_000 else None


def _short(event: Mapping[str, Any]) -> str:
    return str({key: event[key] for key in ("rank", "node", "world_size") if key in event})[:200]


def _count(counters: dict[str, Counters], node: str, reported: object) -> None:
    """Add one rank's view of its node's devices. All ranks of a node see the same devices, so the largest view counts."""
    entry = counters.setdefault(node, Counters())
    if not isinstance(reported, Mapping):
        return
    before, after = _by_device(reported.get("before")), _by_device(reported.get("after"))
    if before is None or after is None:
        return
    sent = sum(_delta(before[device], after[device], _SENT) for device in before.keys() & after.keys())
    received = sum(_delta(before[device], after[device], _RECEIVED) for device in before.keys() & after.keys())
    entry.sent, entry.received = max(entry.sent or 0, sent), max(entry.received or 0, received)


def _by_device(reading: object) -> dict[str, Mapping[str, Any]] | None:
    """Device -> counter -> value, from that shape or from flat totals; None where nothing was read."""
    if not isinstance(reading, Mapping) or not reading:
        return None
    if all(isinstance(value, Mapping) for value in reading.values()):
        return {str(device): value for device, value in reading.items()}
    return {"": reading}


def _delta(before: Mapping[str, Any], after: Mapping[str, Any], sources: Iterable[tuple[str, ...]]) -> int:
    """Bytes moved between two readings of one device; a counter that went backwards (reset) says nothing."""
    moved = 0
    for names in sources:
        parts = [
            after[name] - before[name] for name in names if _is_number(before.get(name)) and _is_number(after.get(name))
        ]
        moved = max(moved, sum(int(part) for part in parts if part > 0))
    return moved


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30
