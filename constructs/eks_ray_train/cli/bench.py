"""``eks-ray-train bench transport | nccl``: the same job over EFA and over TCP; bus bandwidth by message size."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .connect import add_address
from .numbers import seconds, whole

if TYPE_CHECKING:
    from .bench_runs import Counted, Over
    from .connect import Target

    # What was found, the runs, and the error that kept the rest from being measured.
    Measured = tuple[dict[str, Any], list[Counted], BaseException | None]

JOB_ARGUMENTS = "after-dashes"
DEFAULT_STEPS = 30
WARM_UP_STEPS = 5
NCCL_SCRIPT = "nccl_bench.py"

DESCRIPTION = """\
transport: the same job over EFA and over TCP, several times in turn. A run counts only where the gate has proven its transport;
warm-up steps are left out; the spread over the runs is shown.
nccl: all-reduce by message size through torch.distributed inside Ray Train, bus bandwidth against the instance's line rate.
"""
EXAMPLES = """\
examples:
  eks-ray-train bench transport --repeat 3 -- --model_id Qwen/Qwen2.5-1.5B --batch_size 4
  eks-ray-train bench nccl
  eks-ray-train bench nccl --over efa,tcp -- --max-bytes 268435456

Over `none` (a cluster without EFA and NCCL) each run is proven by the bytes that the nodes' interfaces sent.
Exit code 0 where every transport has a run that counts; 3 where the gate proved none, 4 where the jobs failed.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Both benchmarks and their flags."""
    parser = subparsers.add_parser(
        "bench", help="the same job over EFA and over TCP; NCCL bus bandwidth", description=DESCRIPTION, epilog=EXAMPLES
    )
    kinds = parser.add_subparsers(dest="bench", metavar="BENCH", required=True)
    for name, help_, repeat in (
        ("transport", "the same job over each transport", 3),
        ("nccl", "bus bandwidth by message size", 1),
    ):
        one = kinds.add_parser(name, help=help_, usage=f"eks-ray-train bench {name} [options] -- ARGS")
        add_address(one)
        one.add_argument(
            "--over", metavar="LIST",
            help="transports, with commas: efa, tcp, none (default: "
            + ("efa,tcp" if name == "transport" else "efa") + " where the cluster has EFA, else none)",
        )  # fmt: skip
        one.add_argument(
            "--repeat",
            type=whole(1, 1000),
            default=repeat,
            metavar="N",
            help=f"runs over each transport (default: {repeat})",
        )
        one.add_argument(
            "--timeout",
            type=seconds("leave it out for no limit"),
            metavar="S",
            help="stop each run after so many seconds",
        )
        one.add_argument(
            "--job-dir", type=Path, default=Path("job"), metavar="DIR", help="folder to upload (default: job)"
        )
        one.add_argument(
            "--report-dir", type=Path, default=Path("runs"), metavar="DIR", help="where the report goes (default: runs)"
        )


def run(args: argparse.Namespace) -> int:
    """Measure and report. Raises UsageError before anything is submitted where it can."""
    import json

    from .bench_page import write_bench
    from .connect import connect
    from .job_check import check_job
    from .package_dir import build_package
    from .runs import new_submission_id
    from .waiting import ClusterWait
    from .writable import check_writable

    check_writable(args.report_dir, "--report-dir", folder=True)
    transport = args.bench == "transport"
    chosen = _transports(args.over)
    package = build_package(args.job_dir, entry="train.py" if transport else NCCL_SCRIPT)
    check_job(f"bench {args.bench}", args.job_dir, args.job_args, where="elsewhere" if transport else "nccl-bench")
    with connect(args.address, wait=ClusterWait(out=sys.stderr)) as target:
        has_efa = target.instance is not None and target.instance.efa_interfaces > 0 and (target.nodes or 0) > 1
        over: list[Over] = chosen or (
            (["efa", "tcp"] if transport else ["efa"]) if has_efa else ["none"]
        )
        measure = _transport if transport else _nccl
        document, runs, problem = measure(args, target, over, package)
    if problem is not None and not runs:
        raise problem
    document = {
        "benchmark": args.bench,
        **target.to_json(),
        **document,
        "runs": [run.to_json() for run in runs],
        "exit_code": _exit_code(over, runs),
    }
    if problem is not None:
        document["incomplete"] = str(problem) or "interrupted"
        document["exit_code"] = int(getattr(problem, "exit_code", 130 if isinstance(problem, KeyboardInterrupt) else 1))
    name = new_submission_id(f"bench-{args.bench}")
    document["report"] = str(write_bench(args.report_dir / name, document, runs))
    print(f"report: {document['report']}" + (f" (of {len(runs)} runs; the next one broke off)" if problem else ""), file=sys.stderr)
    if problem is not None:
        raise problem  # its own message and exit code, and under --json the one document
    if args.json:
        print(json.dumps(document))
    return int(document["exit_code"])


def _transports(text: str | None) -> list[Over]:
    from eks_ray_train.errors import UsageError

    names: list[Any] = [name.strip() for name in (text or "").split(",") if name.strip()]
    wrong = [name for name in names if name not in ("efa", "tcp", "none")]
    if wrong or len(set(names)) != len(names):
        raise UsageError(
            f"--over takes efa, tcp and none, each once, with commas, got {text!r}; for example --over efa,tcp"
        )
    return names


def _exit_code(over: list[Over], runs: list[Counted]) -> int:
    from eks_ray_train.errors import ExitCode

    without = [kind for kind in over if not any(run.counts for run in runs if run.over == kind)]
    if not without:
        return int(ExitCode.OK)
    failed = any(run.result.info.status != "SUCCEEDED" for run in runs if run.over in without)
    return int(ExitCode.JOB_FAILED if failed else ExitCode.GATE_FAILED)


def _tell(run: Counted, figure: str) -> None:
    said = f"counts: {figure}; {run.proof}" if run.counts else f"does not count: {run.why_not}"
    print(f"{run.over} {run.repeat}: {said}", file=sys.stderr, flush=True)


def _transport(
    args: argparse.Namespace, target: Target, over: list[Over], package: Any
) -> Measured:
    from .bench_figures import spread
    from .bench_runs import run_all, run_counted
    from .run_figures import figures
    from .runs import RunRequest, flag_value

    job_args = list(args.job_args)
    if flag_value(job_args, "--steps") is None:
        job_args.append(f"--steps={DEFAULT_STEPS}")
    if flag_value(job_args, "--warmup_steps") is None:
        job_args.append(f"--warmup_steps={WARM_UP_STEPS}")

    def one(kind: Over, repeat: int) -> Counted:
        request = RunRequest(job_args=job_args, package=package, expect=kind, timeout_s=args.timeout)
        done = run_counted(target, request, over=kind, repeat=repeat)
        middle = figures(done.record, usd=None)["median_step_s"]
        _tell(done, f"median step {middle:.4f} s" if middle is not None else "no step time")
        return done

    runs, problem = run_all(over, args.repeat, one)
    found = {}
    for kind in over:
        each = [figures(run.record, usd=None) for run in runs if run.over == kind and run.counts]
        found[kind] = {
            "median_step_s": spread([f["median_step_s"] for f in each if f["median_step_s"] is not None]),
            "median_tokens_per_s": spread(
                [f["median_tokens_per_s"] for f in each if f["median_tokens_per_s"] is not None]
            ),
        }
    middles = [float(middle) for kind in over if (middle := found[kind]["median_step_s"]["median"])]
    ratio = middles[1] / middles[0] if len(over) == len(middles) == 2 else None
    for kind in over:
        step = found[kind]["median_step_s"]
        if step["count"]:
            print(
                f"{kind}: {step['median']:.4f} s a step ({step['low']:.4f} to {step['high']:.4f} over {step['count']} runs)",
                file=sys.stderr,
            )
    if ratio:
        print(f"a step over {over[1]} takes {ratio:.2f} times as long as over {over[0]}", file=sys.stderr)
    return {"job_args": job_args, "transports": found, "ratio": ratio}, runs, problem


def _nccl(
    args: argparse.Namespace, target: Target, over: list[Over], package: Any
) -> Measured:
    from .bench_figures import bandwidths, exchanged_bytes
    from .bench_runs import prove, run_all, run_counted
    from .runs import RunRequest
    from .svg_chart import size_text

    line = target.instance.network_gbps if target.instance else None

    def one(kind: Over, repeat: int) -> Counted:
        request = RunRequest(
            job_args=args.job_args, package=package, script=NCCL_SCRIPT, expect=kind, timeout_s=args.timeout
        )
        done = run_counted(target, request, over=kind, repeat=repeat, least_bytes=0)
        # How much must have crossed is only known once the sizes are.
        proof, why_not = prove(done.result, over=done.over, least_bytes=exchanged_bytes(done.record.bandwidth))
        done = type(done)(over=done.over, repeat=repeat, result=done.result, proof=proof, why_not=why_not)
        _tell(done, f"{len(done.record.bandwidth)} message sizes")
        return done

    runs, problem = run_all(over, args.repeat, one)
    found = {}
    for kind in over:
        events: dict[int, dict[str, Any]] = {}
        for run in (run for run in runs if run.over == kind and run.counts):
            for event in run.record.bandwidth:
                known = events.setdefault(event["bytes"], {**event, "seconds": []})
                known["seconds"] = [*known["seconds"], *event["seconds"]]
        found[kind] = bandwidths(list(events.values()), line_gbps=line)
        for row in found[kind]:
            share = f"  {row['line_rate_share']:6.1%} of the line rate" if row["line_rate_share"] is not None else ""
            bus = row["bus_gb_s"]
            print(
                f"{kind:<5}{size_text(row['bytes']):>8}B  {row['seconds']['median'] * 1e6:12,.1f} us  bus {bus['median']:8.3f} GB/s "
                f"({bus['low']:.3f} to {bus['high']:.3f}){share}",
                file=sys.stderr if args.json else sys.stdout,
            )  # fmt: skip
    return {"line_rate_gb_s": line / 8 if line else None, "bandwidth": found}, runs, problem
