"""``eks-ray-train status [ID]``: the cluster's jobs, or one of them."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .connect import add_address

if TYPE_CHECKING:
    from .connect import Target
    from .jobs_api import JobInfo

EXAMPLES = """\
examples:
  eks-ray-train status                          all jobs of the cluster, newest last
  eks-ray-train status run-20261129-213000-1a2b3c

The exit code of one job follows its state: 0 pending, running or succeeded; 4 failed, stopped or unknown there.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's flags."""
    parser = subparsers.add_parser("status", help="state of the cluster's jobs, or of one", epilog=EXAMPLES)
    parser.add_argument("id", nargs="?", metavar="ID", help="submission id")
    add_address(parser)


def run(args: argparse.Namespace) -> int:
    """Print; exit code 4 for one job that failed, was stopped or is unknown."""
    import json

    from eks_ray_train.errors import ExitCode

    from .connect import connect

    with connect(args.address) as target, known_job(target, args.id):
        jobs = [target.client.info(args.id)] if args.id else target.client.jobs()
        if args.id and jobs[0].is_terminal:
            target.clear_busy(args.id)  # a run that nobody followed to its end still protects the cluster from updates
    if args.json:
        documents = [job_document(job) for job in jobs]
        print(json.dumps(documents[0] if args.id else {"cluster": target.name, "jobs": documents}))
    elif not jobs:
        print(f"no jobs on {target.name}", file=sys.stderr)
    else:
        for job in jobs:
            print(job_line(job))
        if args.id and jobs[0].message and jobs[0].status != "SUCCEEDED":
            print(jobs[0].message.strip())
    bad = bool(args.id) and jobs[0].status in ("FAILED", "STOPPED")
    return int(ExitCode.JOB_FAILED if bad else ExitCode.OK)


@contextlib.contextmanager
def known_job(target: Target, job_id: str | None) -> Iterator[None]:
    """A run that Ray does not know (any more) has no pods to protect: within it NoSuchJob takes the run's busy mark away."""
    from .jobs_api import NoSuchJob
    from .submit import mark

    try:
        yield
    except NoSuchJob:
        if job_id:
            mark(target.clear_busy, job_id)
        raise


def job_document(job: JobInfo) -> dict[str, Any]:
    """One job, for ``--json``."""
    return {
        "submission_id": job.submission_id,
        "status": job.status,
        "entrypoint": job.entrypoint,
        "message": job.message,
        "error_type": job.error_type,
        "driver_exit_code": job.driver_exit_code,
        "wall_time_s": job.seconds,
    }


def job_line(job: JobInfo) -> str:
    """``run-…  RUNNING    132 s  python train.py …``"""
    wall = f"{job.seconds:.0f} s" if job.seconds is not None else "-"
    return f"{job.submission_id:<30} {job.status:<10} {wall:>8}  {job.entrypoint}"
