"""The gate's answer: for a program (``to_json``, ``exit_code``) and for people (``reasons``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from eks_ray_train.gate.evidence import Transport

Expected = Literal["efa", "tcp", "none"]
Outcome = Literal["pass", "fail", "not-judged"]


@dataclass(frozen=True, kw_only=True)
class NodeVerdict:
    """What one node showed. ``efa_bytes``: bytes that its EFA devices moved during the run; 0 where unknown."""

    node: str
    ranks: tuple[int, ...]
    transport: Transport
    evidence: tuple[str, ...]
    sent: int = 0
    received: int = 0
    reasons: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "ranks": list(self.ranks),
            "transport": self.transport.json_value,
            "evidence": list(self.evidence),
            "efa_bytes": {"sent": self.sent, "received": self.received},
        }


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer. ``reasons`` explain a failure, or limit what a pass rests on."""

    outcome: Outcome
    transport: Transport
    expected: Expected
    job_status: str
    nodes_expected: int
    nodes_seen: int
    ranks_seen: int
    reasons: tuple[str, ...]
    nodes: tuple[NodeVerdict, ...]

    @property
    def exit_code(self) -> int:
        """0 pass; 3 fail; where nothing was to be judged, 0 or 4 by the job's status."""
        if self.outcome == "fail":
            return 3
        return 0 if self.outcome == "pass" or succeeded(self.job_status) else 4

    def to_json(self) -> dict[str, Any]:
        """The document of ``gate --json``."""
        return {
            "verdict": self.outcome,
            "transport": self.transport.json_value,
            "expected": self.expected,
            "job_status": self.job_status,
            "nodes_expected": self.nodes_expected,
            "nodes_seen": self.nodes_seen,
            "ranks_seen": self.ranks_seen,
            "reasons": list(self.reasons),
            "nodes": [node.to_json() for node in self.nodes],
        }


def succeeded(job_status: str | None) -> bool:
    """Only this one status of Ray's Jobs API is success; STOPPED is not."""
    return (job_status or "").strip().upper() == "SUCCEEDED"
