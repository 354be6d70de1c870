"""``eks-ray-train gate``: the verdict on logs that exist already."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from eks_ray_train.errors import EksRayTrainError, UsageError

from .numbers import MOST_NODES, whole
from .streams import to_nowhere

if TYPE_CHECKING:
    from eks_ray_train.gate import ExpectedFabric, Verdict

EPILOG = """\
example session:
  eks-ray-train gate train.log --job-status SUCCEEDED --nodes 2
  eks-ray-train gate worker-*.log.gz --job-status SUCCEEDED --nodes 4 --instance-type p5.48xlarge --junit gate.xml
  eks-ray-train logs ID | eks-ray-train gate - --job-status SUCCEEDED
  eks-ray-train gate tcp.log --expect tcp --job-status SUCCEEDED      # the comparison run must not have used EFA

The files are taken as one run. Exit code 0: pass, or nothing to judge; 2: wrong use; 3: gate failed; 4: the job failed
where no transport was to be judged.
"""

JOB_STATES = ("PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "gate",
        help="judge the transport by logs that exist already",
        description="Says from NCCL's log lines which transport carried the traffic between nodes, and whether that passes.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="log files of one run (.gz too); - reads standard input"
    )
    parser.add_argument(
        "--job-status", type=_job_status, metavar="S", help="how the job ended, as Ray says it; only SUCCEEDED can pass"
    )
    parser.add_argument(
        "--nodes",
        type=whole(1, MOST_NODES, remedy="leave it out to take the nodes that the log names"),
        metavar="N",
        help="GPU nodes of the run (default: as the log says, at least 2)",
    )
    parser.add_argument(
        "--expect", choices=["efa", "tcp", "none"], help="transport to expect (default: efa; none for one node)"
    )
    parser.add_argument("--instance-type", metavar="T", help="check EFA interfaces and GPUDirect RDMA of this type too")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the verdict as JUnit XML")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, human text on stderr")
    parser.set_defaults(run=run)


def _job_status(text: str) -> str:
    """One of the states that Ray knows (https://docs.ray.io/en/latest/cluster/running-applications/job-submission/doc/ray.job_submission.JobStatus.html)."""
    if text.upper() not in JOB_STATES:
        raise argparse.ArgumentTypeError(
            f"must be one of {', '.join(JOB_STATES)}, got {text[:40]!r}; eks-ray-train status ID prints it"
        )
    return text


def run(args: argparse.Namespace) -> int:
    """Judge and print; returns the exit code. Raises UsageError for files and values that cannot be used."""
    from eks_ray_train.gate import RunJudge, read_log

    if args.files.count("-") > 1:
        raise UsageError("standard input (-) can be given only once; name files for the rest")
    fabric = fabric_of(args.instance_type) if args.instance_type else None
    judge = RunJudge(nodes_expected=args.nodes, expected=args.expect, instance=fabric)
    for name in args.files:
        read_log(judge, name)
    verdict = judge.verdict(args.job_status or judge.done_status)
    if args.junit:
        write_junit(args.junit, verdict, run=", ".join(Path(name).name for name in args.files[:3]))
    _print(verdict, as_json=args.json)
    return verdict.exit_code


def _print(verdict: Verdict, *, as_json: bool) -> None:
    """The answer on stdout, in characters that any encoding of it has. Raises EksRayTrainError where it cannot be written."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = summary(verdict)
    failed = None
    try:
        if as_json:
            print(json.dumps(verdict.to_json()), flush=True)
        else:
            print(text.encode(encoding, "replace").decode(encoding), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        to_nowhere(sys.stdout)  # or what could not be written fails once more at exit
        failed = error
    if as_json:
        print(text, file=sys.stderr)
    if failed is not None:
        raise EksRayTrainError(
            f"cannot write the verdict ({verdict.outcome}) to standard output: {failed.strerror or failed}; "
            "make room there, or send it elsewhere"
        )


def fabric_of(instance_type: str) -> ExpectedFabric:
    """What the catalogue says that each node of this type must show. Raises UsageError for a type it does not know."""
    from eks_ray_train.gate import ExpectedFabric
    from eks_ray_train.instances import get_instance_type

    row = get_instance_type(instance_type, accept_unverified_layout=True, asked_by="--instance-type")
    return ExpectedFabric(nics=row.efa_interfaces, gpudirect_rdma=row.gpudirect_rdma)


def write_junit(path: Path, verdict: Verdict, *, run: str) -> None:
    """Write the JUnit file. Raises UsageError where it cannot be written."""
    from datetime import UTC, datetime

    from eks_ray_train.gate import junit_xml

    text = junit_xml(verdict, run=run, timestamp=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S"))
    try:
        path.write_text(text, encoding="utf-8", errors="replace")  # a file's name may be no UTF-8
    except OSError as error:
        raise UsageError(
            f"cannot write --junit {path}: {error.strerror or error}; give a file in a folder that exists and has room"
        ) from None


def summary(verdict: Verdict) -> str:
    """The verdict for people: one line, then a line a node, then the reasons."""
    from eks_ray_train.gate.reasons import quote

    lines = [
        f"{verdict.outcome.upper()}: transport {verdict.transport.json_value}, expected {verdict.expected}; "
        f"job {verdict.job_status}; {verdict.nodes_seen} of {verdict.nodes_expected} nodes, {verdict.ranks_seen} ranks seen"
    ]
    for node in verdict.nodes[:32]:
        moved = f", {node.sent} B sent and {node.received} B received over EFA" if node.sent or node.received else ""
        first = f"  {quote(node.evidence[0], 120)}" if node.evidence else ""
        lines.append(f"  {quote(node.node)[1:-1]}: {node.transport.json_value}{moved}{first}")
    if len(verdict.nodes) > 32:
        lines.append(f"  … and {len(verdict.nodes) - 32} more nodes")
    lines += [f"  - {reason}" for reason in verdict.reasons[:40]]
    if len(verdict.reasons) > 40:
        lines.append(f"  - … and {len(verdict.reasons) - 40} more (all of them with --json)")
    return "\n".join(lines)
