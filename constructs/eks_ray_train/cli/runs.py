"""One run from submission to verdict: shared by ``submit`` (any cluster) and ``train`` (the cluster on this machine)."""

from __future__ import annotations

import math
import secrets
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from eks_ray_train.errors import ExitCode, UsageError
from eks_ray_train.gate import ExpectedFabric, RunJudge, Verdict

from .connect import Target
from .follow import Followed, Interrupted, follow
from .jobs_api import JobInfo
from .package_dir import Package
from .run_env import Expect, build_env
from .run_figures import clock
from .run_record import RunRecord
from .run_view import RunView


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What to run and how to judge it. ``package`` None: the files that the stack put into the pods.

    ``expect`` None: ``none`` where the declared cluster has one node or no EFA, or where nothing is declared; else ``efa``.
    """

    job_args: Sequence[str]
    package: Package | None
    expect: Expect | None = None
    allow_tcp: bool = False
    gate: bool = True
    env: dict[str, str] = field(default_factory=dict)
    runtime_env: dict[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None
    script: str = "train.py"

    def nodes(self, target: Target) -> int | None:
        """GPU nodes that this run uses: the declared ones, fewer where ``--num_workers`` fills fewer. None: not known."""
        if target.nodes is None or target.instance is None:
            return target.nodes
        return nodes_used(self.job_args, target.nodes, target.instance.gpus)

    def expected(self, target: Target) -> Expect:
        """What the gate asks of this run."""
        if self.expect is not None:
            return self.expect
        nodes = self.nodes(target)
        has_efa = target.instance is not None and target.instance.efa_interfaces > 0
        return "efa" if has_efa and nodes is not None and nodes > 1 else "none"


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended. ``verdict`` None: the gate was switched off. ``detached``: nobody waited for the end."""

    submission_id: str
    info: JobInfo
    record: RunRecord
    verdict: Verdict | None = None
    failure: str | None = None
    reconnects: int = 0
    log_problem: str | None = None
    timed_out: bool = False
    detached: bool = False
    usd: float | None = None

    @property
    def exit_code(self) -> ExitCode:
        """The job's own end comes first (4), then the gate (3)."""
        if self.detached:
            return ExitCode.OK
        if self.info.status != "SUCCEEDED":
            return ExitCode.JOB_FAILED
        if self.verdict is not None and self.verdict.outcome == "fail":
            return ExitCode.GATE_FAILED
        return ExitCode.OK

    def to_json(self) -> dict[str, Any]:
        """The document of ``submit --json``."""
        return {
            "submission_id": self.submission_id,
            "status": self.info.status,
            "exit_code": int(self.exit_code),
            "verdict": self.verdict.outcome if self.verdict else None,
            "final_loss": self.record.final_loss,
            "steps": self.record.steps_done,
            "wall_time_s": self.info.seconds,
            "started_utc": clock(self.info.started_at) or None,
            "ended_utc": clock(self.info.ended_at) or None,
            "usd": self.usd,
            "detached": self.detached,
            "timed_out": self.timed_out,
            "failure": self.failure,
            "reconnects": self.reconnects,
            "log_problem": self.log_problem,
            "gate": self.verdict.to_json() if self.verdict else None,
        }


def nodes_used(job_args: Sequence[str], declared: int, gpus_per_node: int) -> int:
    """Nodes that the job's ranks fill: all declared ones, fewer where ``--num_workers`` asks for fewer."""
    workers = whole_number(flag_value(job_args, "--num_workers") or "")
    return min(declared, math.ceil(workers / gpus_per_node)) if workers else declared


def whole_number(text: str) -> int | None:
    """A whole number of at most nine digits, None for anything else (the job itself says what is wrong with it)."""
    return int(text) if len(text) < 10 and text.isascii() and text.isdigit() else None


def new_submission_id(prefix: str = "run") -> str:
    """An id of our own, so that a lost answer never means a second job: ``run-20261129-213000-1a2b3c``."""
    return f"{prefix}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def entrypoint(job_args: Sequence[str], *, script: str = "train.py") -> str:
    """The command that Ray's shell runs."""
    return shlex.join(["python", script, *job_args])


def submit_run(target: Target, request: RunRequest, *, submission_id: str, tell: TextIO) -> None:
    """Upload and submit; returns once the cluster has the job. Raises UsageError before anything is sent where it can."""
    expect = request.expected(target)
    user = {**request.runtime_env.get("env_vars", {}), **request.env}
    env = build_env(user=user, expect=expect, allow_tcp=request.allow_tcp, gate=request.gate)
    runtime_env: dict[str, Any] = {**request.runtime_env, "env_vars": env}
    script = request.script
    if request.package is None:
        from eks_ray_train.manifests.names import JOB_DIR
        from eks_ray_train.manifests.ray_job import DEPLOYED_CODE_ENV

        script = f"{JOB_DIR}/{request.script}"
        env.update({name: value for name, value in DEPLOYED_CODE_ENV.items() if name not in user})
    else:
        sent = target.client.upload(request.package)
        size = f"{len(request.package.data) / 1024:.0f} KiB, {request.package.files} files"
        print(f"job's folder: {size}" + ("" if sent else " (the cluster has it already)"), file=tell, flush=True)
        runtime_env["working_dir"] = request.package.uri
    target.client.submit(
        submission_id=submission_id,
        entrypoint=entrypoint(request.job_args, script=script),
        runtime_env=runtime_env,
        metadata={"eks-ray-train/expect": expect},
    )
    print(f"submitted {submission_id} to {target.name} (Ray {target.ray_version})", file=tell, flush=True)


def follow_run(target: Target, request: RunRequest, *, submission_id: str, view: RunView, judge: RunJudge | None) -> RunResult:
    """Follow a submitted run to its end and judge it. Ctrl-C asks (on a terminal) or detaches."""
    end = follow(
        target.client, submission_id, on_lines=view.on_lines, notice=view.notice, timeout_s=request.timeout_s,
        on_interrupt=lambda: _ask(submission_id, view),
    )  # fmt: skip
    view.close()
    if end.detached:
        command = target.client.command
        again = f"follow it again: {command('logs', submission_id, '--follow')}; stop it: {command('stop', submission_id)}"
        view.notice(f"detached from {submission_id}, which goes on; {again}")
        return RunResult(submission_id=submission_id, info=end.info, record=view.record, detached=True, usd=view.usd())
    return finish_run(end, submission_id=submission_id, view=view, judge=judge)


def finish_run(end: Followed, *, submission_id: str, view: RunView, judge: RunJudge | None) -> RunResult:
    """The result of a run that has ended."""
    return RunResult(
        submission_id=submission_id,
        info=end.info,
        record=view.record,
        verdict=judge.verdict(end.info.status) if judge else None,
        failure=None if end.info.status == "SUCCEEDED" else _failure(end.info, view),
        reconnects=end.reconnects,
        log_problem=end.log_problem,
        timed_out=end.timed_out,
        usd=view.usd(),
    )


def make_judge(target: Target, request: RunRequest) -> RunJudge | None:
    """The gate for this run, None where it is switched off.

    Where a transport is to be judged, the ranks' own ``transport`` events must show it: what else a job prints, from a
    library or from another run, proves nothing.
    """
    if not request.gate:
        return None
    expected = request.expected(target)
    instance = target.instance
    fabric = ExpectedFabric(nics=instance.efa_interfaces, gpudirect_rdma=instance.gpudirect_rdma) if instance else None
    return RunJudge(
        nodes_expected=request.nodes(target), expected=expected, instance=fabric, events_required=expected != "none"
    )


def tell_result(result: RunResult, tell: TextIO) -> None:
    """The last words on a run: why it failed, what the gate says, how to look again."""
    if result.failure:
        print(f"why: {result.failure}", file=tell)
    verdict = result.verdict
    if verdict is not None and verdict.outcome == "not-judged":
        print("gate: not-judged (no transport between nodes is expected of this run)", file=tell)
    elif verdict is not None:
        print(
            f"gate: {verdict.outcome} (transport {verdict.transport.json_value}, expected {verdict.expected}; "
            f"{verdict.nodes_seen} of {verdict.nodes_expected} nodes, {verdict.ranks_seen} ranks seen)",
            file=tell,
        )
        for reason in verdict.reasons:
            print(f"  - {reason}", file=tell)
    if not result.detached:
        price = f", ${result.usd:.2f}" if result.usd is not None else ""
        wall = f" after {result.info.seconds:.0f} s" if result.info.seconds is not None else ""
        print(f"{result.submission_id}: {result.info.status}{wall}{price}", file=tell, flush=True)


def write_junit(result: RunResult, path: Path) -> None:
    """The verdict as JUnit XML. Raises UsageError where the file cannot be written."""
    from eks_ray_train.gate import junit_xml

    assert result.verdict is not None  # the command refuses --junit together with --no-gate
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}"
    text = junit_xml(result.verdict, run=result.submission_id, timestamp=now, seconds=result.info.seconds or 0.0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write --junit {path}: {error.strerror or error}; give a file in a folder that can be written") from None


def flag_value(words: Sequence[str], flag: str) -> str | None:
    """Value of the job's flag, written with - or _, as one word or two; None where it is absent."""
    value = None
    for index, word in enumerate(words):
        name, sep, rest = word.partition("=")
        if name.replace("-", "_") == flag.replace("-", "_"):
            value = rest if sep else (words[index + 1] if index + 1 < len(words) else None)
    return value


def _failure(info: JobInfo, view: RunView) -> str:
    found = view.failure.summary()
    if found:
        return found
    if info.status == "STOPPED":
        return "the job was stopped"
    return info.message.strip()[-2000:] or f"Ray says {info.status} and no reason"


def _ask(submission_id: str, view: RunView) -> Interrupted:
    """What Ctrl-C means. Without a terminal the job goes on: a closed window must not kill a run."""
    view.close()
    answer = ""
    if sys.stdin is not None and sys.stdin.isatty():
        # On stderr: stdout may be one JSON document.
        question = f"\n{submission_id} is running. [d]etach and let it go on, or [s]top it? [d] "
        print(question, end="", file=sys.stderr, flush=True)
        try:
            answer = sys.stdin.readline()
        except (KeyboardInterrupt, OSError, ValueError):  # pressed again, a terminal that has gone, bytes that are no text
            answer = ""
    if not answer.strip().lower().startswith("s"):
        return Interrupted.DETACH
    view.notice(f"stopping {submission_id}")
    return Interrupted.STOP
