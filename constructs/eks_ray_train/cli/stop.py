"""``eks-ray-train stop ID``: stop a job and wait until it has ended."""

from __future__ import annotations

import argparse
import sys

from .connect import add_address

EXAMPLES = """\
example:
  eks-ray-train stop run-20261129-213000-1a2b3c

The job gets SIGTERM and 3 s to end (RAY_JOB_STOP_WAIT_TIME_S of the cluster), then SIGKILL.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's flags."""
    parser = subparsers.add_parser("stop", help="stop a job", epilog=EXAMPLES)
    parser.add_argument("id", metavar="ID", help="submission id")
    add_address(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 0 once the job has ended, also where it had ended before; 6 where it still runs after a minute."""
    import json
    import time

    from eks_ray_train.errors import ClusterNotReadyError

    from .connect import connect
    from .follow import STOP_WAIT_S
    from .status import job_document, known_job

    with connect(args.address) as target, known_job(target, args.id):
        stopped = target.client.stop(args.id)
        info = target.client.info(args.id)
        give_up = time.monotonic() + STOP_WAIT_S
        while not info.is_terminal:
            if time.monotonic() > give_up:
                raise ClusterNotReadyError(
                    f"job {args.id} was told to stop and is still {info.status} after {STOP_WAIT_S:.0f} s; "
                    f"look again: {target.client.command('status', args.id)}"
                )
            time.sleep(0.5)
            info = target.client.info(args.id)
        target.clear_busy(args.id)
    if args.json:
        print(json.dumps({**job_document(info), "stopped": stopped}))
    else:
        print(f"{args.id}: {info.status}" + ("" if stopped else " (it had ended before)"), file=sys.stderr)
    return 0
