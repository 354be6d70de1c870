"""Runs of a benchmark: each marked, followed in silence, and counted only where its transport is proven."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eks_ray_train.errors import EksRayTrainError, JobFailedError

from .bench_figures import order
from .connect import Target
from .run_figures import number
from .run_record import RunRecord
from .runs import RunRequest, RunResult, follow_run, make_judge, new_submission_id, submit_run

Over = Literal["efa", "tcp", "none"]
ONE_MACHINE = "nodes on one machine talk over its loopback, which no network sees: use a cluster whose nodes are two machines"


@dataclass(frozen=True, kw_only=True)
class Counted:
    """One run. ``why_not`` None: it succeeded and its transport is proven, so it counts; ``proof`` says by what."""

    over: Over
    repeat: int
    result: RunResult
    proof: str
    why_not: str | None

    @property
    def counts(self) -> bool:
        return self.why_not is None

    @property
    def record(self) -> RunRecord:
        return self.result.record

    def to_json(self) -> dict[str, Any]:
        return {
            "transport": self.over,
            "repeat": self.repeat,
            "submission_id": self.result.submission_id,
            "status": self.result.info.status,
            "counts": self.counts,
            "why_not": self.why_not,
            "proof": self.proof,
            "gate": self.result.verdict.to_json() if self.result.verdict else None,
        }


def run_all(
    over: Sequence[Over], repeats: int, one: Callable[[Over, int], Counted]
) -> tuple[list[Counted], BaseException | None]:
    """All runs in turn, up to the first that ends in an error or by Ctrl-C. That error comes second: what ran before is paid for."""
    runs: list[Counted] = []
    for repeat, kind in order(over, repeats):
        try:
            runs.append(one(kind, repeat))
        except (Exception, KeyboardInterrupt) as error:
            return runs, error
    return runs, None


def run_counted(
    target: Target, request: RunRequest, *, over: Over, repeat: int, least_bytes: float | None = None
) -> Counted:
    """Submit, follow to the end, judge. ``least_bytes``: what each node must have sent where no gate can judge (over ``none``).

    Raises JobFailedError where the run was detached from: a benchmark has no use for half of its runs.
    """
    from .run_view import RunView
    from .submit import mark, marked

    submission_id = new_submission_id(f"bench-{over}")
    with marked(target, submission_id):
        submit_run(target, request, submission_id=submission_id, tell=sys.stderr)
        judge = make_judge(target, request)
        view = RunView(out=sys.stderr, judge=judge, quiet=True, usd_per_hour=target.usd_per_hour)
        result = follow_run(target, request, submission_id=submission_id, view=view, judge=judge)
    if result.detached:
        stop = target.client.command("stop", submission_id)
        raise JobFailedError(f"the benchmark was interrupted; {submission_id} goes on; stop it: {stop}")
    mark(target.clear_busy, submission_id)
    proof, why_not = prove(result, over=over, least_bytes=least_bytes)
    return Counted(over=over, repeat=repeat, result=result, proof=proof, why_not=why_not)


def prove(result: RunResult, *, over: Over, least_bytes: float | None = None) -> tuple[str, str | None]:
    """(proof, why it does not count): the gate's verdict, or without a gate the bytes that every node's interfaces sent."""
    if result.info.status != "SUCCEEDED":
        return "", f"the job ended as {result.info.status}: {(result.failure or 'no reason').splitlines()[0]}"
    if over != "none":
        verdict = result.verdict
        if verdict is None:
            raise EksRayTrainError("a benchmark's run was not judged, which should not happen; report it")
        if verdict.outcome == "pass":
            return (
                f"gate: {verdict.transport.json_value} on {verdict.nodes_seen} of {verdict.nodes_expected} nodes",
                None,
            )
        return "", "; ".join(verdict.reasons) or f"the gate says {verdict.outcome}"
    sent = {node: _most(entry.get("interfaces") or {}) for node, entry in result.record.transports.items()}
    if len(sent) < 2:
        return "", f"{len(sent)} node said what it sent, and a comparison of networks needs two: use a cluster of two machines"
    needed = least_bytes if least_bytes is not None else least_of_training(result.record)
    if needed is None:
        return "", "the run does not say how much it must have sent"
    low = min(sent, key=lambda node: sent[node][1])
    said = ", ".join(f"{node} {name} {count / 1e6:,.1f} MB" for node, (name, count) in sorted(sent.items()))
    if sent[low][1] < needed:
        why_not = f"node {low} sent {sent[low][1] / 1e6:,.1f} MB over its interfaces, less than the {needed / 1e6:,.1f} MB that the run exchanges"
        one_machine = not sent[low][1] or any(_is_loopback(node) for node in sent)
        return "", f"{why_not}; {ONE_MACHINE}" if one_machine else why_not
    return f"sent by interface: {said} (at least {needed / 1e6:,.1f} MB are exchanged)", None


def least_of_training(record: RunRecord) -> float | None:
    """Bytes that each node must send: every step every parameter's gradient crosses, at least half of it in two bytes."""
    parameters, steps = number(record.config.get("parameters")), record.steps_done
    return parameters * steps if parameters and steps else None


def _is_loopback(node: str) -> bool:
    try:
        return ipaddress.ip_address(node).is_loopback
    except ValueError:  # a name
        return False


def _most(interfaces: dict[str, int]) -> tuple[str, int]:
    return max(interfaces.items(), key=lambda item: item[1], default=("no interface", 0))
