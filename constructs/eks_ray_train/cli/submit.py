"""``eks-ray-train submit``: run job/ on a cluster, follow all ranks' logs, judge the transport, write a report."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .connect import add_address
from .numbers import seconds

if TYPE_CHECKING:
    from .connect import Target

JOB_ARGUMENTS = "after-dashes"

DESCRIPTION = """\
Upload job/ and run `python train.py ARGS` on the cluster that cdk.json declares, or on any Ray dashboard.
The job's status decides the exit code: 0 succeeded (and the gate did not fail), 3 gate failed, 4 failed, stopped or lost,
6 cluster not reachable. Ctrl-C asks whether to detach or to stop; without a terminal it detaches.
A run whose end, by the plan, comes after the spending limit is asked about first (exit code 2 where nobody can be asked).
"""
EXAMPLES = """\
examples:
  eks-ray-train submit -- --model_id Qwen/Qwen2.5-1.5B --steps 100 --dataset s3://bucket/text/*.parquet
  eks-ray-train submit --detach -- --steps 10000 --checkpoint-every 500
  eks-ray-train submit --expect tcp -- --steps 20            the same over TCP, to compare
  eks-ray-train submit --address http://127.0.0.1:8265 -- --model-config configs/qwen2-tiny.json --tokenizer bytes --steps 5
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's flags; the job's own come behind ``--``."""
    parser = subparsers.add_parser(
        "submit", help="run job/ on the cluster, follow its logs, judge its transport", description=DESCRIPTION, epilog=EXAMPLES,
        usage="eks-ray-train submit [options] -- ARGS of train.py",
    )  # fmt: skip
    add_address(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--follow", dest="follow", action="store_true", default=True, help="stay until the end (the default)")
    how.add_argument("--detach", dest="follow", action="store_false", help="return as soon as the cluster has the job")
    parser.add_argument(
        "--gate", action=argparse.BooleanOptionalAction, default=True, help="judge the transport (exit code 3 where it fails)"
    )
    parser.add_argument(
        "--expect", choices=("efa", "tcp", "none"),
        help="transport that the gate asks for (default: efa; none with one node, without EFA, or by --address)",
    )  # fmt: skip
    parser.add_argument("--allow-tcp", action="store_true", help="let NCCL fall back to TCP instead of refusing to start")
    parser.add_argument(
        "--timeout", type=seconds("leave it out for no limit of the run"), metavar="S",
        help="give up after so many seconds in all: waiting for the cluster (exit code 6; 1800 s where this is not given), then "
        "stopping the job (exit code 4)",
    )  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="do not ask where the run would end after the spending limit")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the verdict as JUnit XML")
    parser.add_argument("--runtime-env-json", metavar="J", help="more of Ray's runtime_env, for example '{\"pip\": [\"einops\"]}'")
    parser.add_argument("--env", action="append", default=[], metavar="K=V", help="environment variable of the run; may be repeated")
    parser.add_argument("--deployed-code", action="store_true", help="run the files that the stack carries instead of uploading")
    parser.add_argument("--job-dir", type=Path, default=Path("job"), metavar="DIR", help="folder to upload (default: job)")
    parser.add_argument("--report-dir", type=Path, default=Path("runs"), metavar="DIR", help="where reports go (default: runs)")


def run(args: argparse.Namespace) -> int:
    """Submit, and follow unless ``--detach``. Raises errors with the contract's exit codes."""
    import json
    from dataclasses import replace

    from eks_ray_train.errors import ExitCode, UsageError

    from .connect import connect
    from .consent import agree
    from .job_check import check_job
    from .package_dir import build_package
    from .run_env import parse_env, parse_runtime_env
    from .run_report import write_report
    from .run_view import RunView
    from .runs import (
        RunRequest,
        follow_run,
        make_judge,
        new_submission_id,
        nodes_used,
        submit_run,
        tell_result,
        write_junit,
    )
    from .spending import LimitCheck
    from .waiting import ClusterWait
    from .writable import check_writable

    if args.junit and not args.gate:
        raise UsageError("--junit writes the gate's verdict, which --no-gate switches off; leave one of them out")
    if args.junit and not args.follow:
        raise UsageError("--junit needs the end of the run, which --detach does not wait for; use `eks-ray-train gate` later")
    if args.follow:
        check_writable(args.report_dir, "--report-dir", folder=True)
    if args.junit:
        check_writable(args.junit, "--junit")
    if not args.deployed_code:
        check_job("submit", args.job_dir, args.job_args, where="elsewhere")
    request = RunRequest(
        job_args=args.job_args,
        # Packed before anything is reached: a folder that is too large costs no waiting.
        package=None if args.deployed_code else build_package(args.job_dir),
        expect=args.expect,
        allow_tcp=args.allow_tcp,
        gate=args.gate,
        env=parse_env(args.env),
        runtime_env=parse_runtime_env(args.runtime_env_json),
        timeout_s=args.timeout,
    )
    out = sys.stderr if args.json else sys.stdout
    limit = LimitCheck(
        args.job_args, tcp=args.expect == "tcp", ask=lambda question: agree(args, question, refused="nothing was submitted")
    )
    wait = ClusterWait(
        out=sys.stderr, timeout_s=args.timeout, check=limit,
        nodes=lambda declared, gpus: nodes_used(args.job_args, declared, gpus),
    )  # fmt: skip
    with connect(args.address, wait=wait) as target:
        submission_id = new_submission_id()
        if request.timeout_s is not None:
            request = replace(request, timeout_s=max(1.0, request.timeout_s - wait.waited_s))
        with marked(target, submission_id):
            submit_run(target, request, submission_id=submission_id, tell=sys.stderr)
            if not args.follow:
                command = target.client.command
                again = f"follow it: {command('logs', submission_id, '--follow')}; stop it: {command('stop', submission_id)}"
                print(again, file=sys.stderr)
                if args.json:
                    print(json.dumps({"submission_id": submission_id, "status": "PENDING", "detached": True, "exit_code": 0}))
                else:
                    print(submission_id)
                return 0
            judge = make_judge(target, request)
            view = RunView(out=out, judge=judge, usd_per_hour=target.usd_per_hour, watch=limit.observe)
            result = follow_run(target, request, submission_id=submission_id, view=view, judge=judge)
        if not result.detached:
            mark(target.clear_busy, submission_id)
    tell_result(result, sys.stderr)
    document = result.to_json()
    code = int(result.exit_code)
    if not result.detached:
        document.update(target.to_json())
        try:
            if args.junit and result.verdict is not None:
                write_junit(result, args.junit)
            document["report"] = str(write_report(args.report_dir / submission_id, document, result.record))
            print(f"report: {document['report']}", file=sys.stderr)
        except UsageError as error:  # the disk filled up meanwhile: the run's own end is still the answer
            document["report_problem"] = str(error)
            code = code or int(ExitCode.UNEXPECTED)
            print(error, file=sys.stderr)
        except Exception as error:  # a fault of the report's own: it costs the page, never the result, nor an exit code that is not 0
            document["report_problem"] = f"the report could not be made ({type(error).__name__}: {error}); please report it"
            code = code or int(ExitCode.UNEXPECTED)
            print(document["report_problem"], file=sys.stderr)
    document["exit_code"] = code
    if args.json:
        print(json.dumps(document))
    return code


@contextlib.contextmanager
def marked(target: Target, submission_id: str) -> Iterator[None]:
    """Marks the cluster as busy with this run. An error takes the mark away only where surely no run is left that it protects."""
    from .follow import JobVanishedError

    mark(target.mark_busy, submission_id)
    try:
        yield
    except BaseException as error:
        if isinstance(error, JobVanishedError) or not target.client.may_have(submission_id):
            mark(target.clear_busy, submission_id)
        raise


def mark(how: Callable[[str], None], submission_id: str) -> None:
    """The mark protects a run from updates; not being allowed to set it is no reason to refuse the run."""
    from eks_ray_train.errors import EksRayTrainError

    try:
        how(submission_id)
    except EksRayTrainError as error:
        print(f"the RayCluster's busy mark could not be changed: {error}", file=sys.stderr)
