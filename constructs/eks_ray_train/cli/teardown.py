"""``eks-ray-train teardown check``: what is left after a destroy, and what it costs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eks_ray_train.cli.leftovers import Leftover, Report

EPILOG = """\
Looks by CloudFormation's tag, by the tags that EKS and its controllers put on what they make, inside the app's
own VPC, and at known names. What is tagged keep=true is listed with its price and does not count; neither does
what costs less than a cent a month. A kind that may not be read is named with the missing permission.

exit codes: 0 nothing that costs money is left, 7 something is, 1 nothing was found but a kind that can cost money
could not be looked at, 2 wrong use or no credentials
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``teardown`` with ``check``."""
    parser = subparsers.add_parser(
        "teardown",
        help="what is left after destroy",
        description="What a destroy left behind.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="teardown_command", metavar="check", required=True)
    check = commands.add_parser(
        "check",
        help="list what is left and what it costs",
        description="Lists what is left in one region and what it costs. Changes nothing.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("--region", metavar="R", help="region (default: cdk.json's, else yours)")
    check.add_argument("--json", action="store_true", help="one JSON document on stdout, human text on stderr")
    check.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns the exit code."""
    from eks_ray_train.cli.aws_session import open_session
    from eks_ray_train.cli.consent import out
    from eks_ray_train.cli.leftovers import look
    from eks_ray_train.settings import load_settings

    settings = load_settings(Path("cdk.json"))
    session = open_session(args.region or settings.region)
    session.caller()
    report = look(session, session.home, settings)
    out(args, text(report))
    if args.json:
        print(json.dumps({**document(report), "exit_code": int(report.exit_code)}))
    return int(report.exit_code)


def text(report: Report) -> str:
    """For people: what costs first, each with the command that takes it away."""
    kept = [i for i in report.items if i.keep]
    free = [i for i in report.items if not i.counts and not i.keep]
    lines: list[str] = []
    if report.costing:
        known = sum(i.usd_per_month or 0.0 for i in report.costing)
        more = " and what has no known price" if any(i.usd_per_month is None for i in report.costing) else ""
        lines.append(f"left in {report.region}, costs money (${known:,.2f} a month{more}, us-east-1 list prices):")
        for item in report.costing:
            lines += [_line(item), f"      {item.remove}"]
    elif report.blind:
        lines.append(f"nothing that costs money was found in {report.region}, but not everything could be looked at")
    else:
        lines.append(f"nothing that costs money is left in {report.region}")
    if kept:
        lines += ["kept on purpose (keep=true), not counted:", *map(_line, kept)]
    if free:
        lines += ["left, costs less than a cent a month (may block the deletion of the VPC):", *map(_line, free)]
    lines += [f"could not be looked at: {kind}: {why}" for kind, why in report.unknown.items()]
    return "\n".join(lines)


def _line(item: Leftover) -> str:
    price = "       $?" if item.usd_per_month is None else f"{f'${item.usd_per_month:,.2f}':>9}"
    return f"  {price}/month  {item.kind} {item.id}{f' ({item.note})' if item.note else ''}"


def document(report: Report) -> dict[str, Any]:
    """For programs."""

    def entry(item: Leftover) -> dict[str, Any]:
        return {
            "kind": item.kind,
            "id": item.id,
            "usd_per_month": None if item.usd_per_month is None else round(item.usd_per_month, 4),
            "keep": item.keep,
            "counts": item.counts,
            "note": item.note,
            "remove": item.remove,
        }

    return {
        "region": report.region,
        "left": [entry(i) for i in report.items],
        "unknown": dict(report.unknown),
        "blind": list(report.blind),
    }
