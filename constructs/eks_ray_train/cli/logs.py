"""``eks-ray-train logs ID``: the log of a job so far, or followed to its end."""

from __future__ import annotations

import argparse
import sys

from .connect import add_address

EXAMPLES = """\
examples:
  eks-ray-train logs run-20261129-213000-1a2b3c
  eks-ray-train logs run-20261129-213000-1a2b3c --follow     exit code: the job's (0 or 4)
  eks-ray-train logs run-20261129-213000-1a2b3c | eks-ray-train gate - --job-status SUCCEEDED
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's flags."""
    parser = subparsers.add_parser("logs", help="log of a job", epilog=EXAMPLES)
    parser.add_argument("id", metavar="ID", help="submission id (eks-ray-train status lists them)")
    parser.add_argument("--follow", "-f", action="store_true", help="stay until the job has ended")
    add_address(parser)


def run(args: argparse.Namespace) -> int:
    """Print the log's bytes as they are; with ``--follow`` the exit code is the job's, else 0."""
    import json

    from eks_ray_train.errors import ExitCode

    from .connect import connect
    from .follow import follow
    from .job_log import JobLog
    from .status import job_document

    out = (sys.stderr if args.json else sys.stdout).buffer

    def write(lines: list[bytes]) -> None:
        out.write(b"\n".join(lines) + b"\n")
        out.flush()

    def notice(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with connect(args.address) as target:
        info = target.client.info(args.id)
        if args.follow:
            info = follow(target.client, args.id, on_lines=write, notice=notice).info
            target.clear_busy(args.id)
        elif info.driver_node_id:
            for chunk in JobLog(target.client, args.id).chunks(info):
                out.write(chunk)
            out.flush()
        else:
            notice(f"job {args.id} is {info.status} and has no log yet")
    if args.json:
        print(json.dumps(job_document(info)))
    return int(ExitCode.JOB_FAILED if args.follow and info.status != "SUCCEEDED" else ExitCode.OK)
