"""``eks-ray-train down``: destroys everything, says why where it stops half-way, then lists what is left."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eks_ray_train.errors import EksRayTrainError, ExitCode, UsageError

if TYPE_CHECKING:
    from eks_ray_train.cli.deployment import Deployment
    from eks_ray_train.settings import Settings

EPILOG = """\
what it does: waits for what CloudFormation still works on, `cdk destroy --all`, then `teardown check`. Storage is
kept unless keep_storage is false: it is listed with its price and does not count. The destroy takes 20 to 40
minutes.

examples:
  eks-ray-train down             asks first
  eks-ray-train down --yes

exit codes: 0 nothing that costs money is left, 7 something is, 1 the destroy stopped half-way or something could
not be looked at, 2 wrong use, nobody agreed or no credentials, 130 interrupted
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``down``."""
    parser = subparsers.add_parser(
        "down",
        help="destroy everything, then list what is left",
        description="Destroys the three stacks, then lists what is left and what it costs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, human text on stderr")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns the exit code; a destroy that stopped half-way is told after the list of what is left."""
    from eks_ray_train.cli.aws_session import open_session
    from eks_ray_train.cli.cdk_runner import find_cdk
    from eks_ray_train.cli.deployment import Deployment
    from eks_ray_train.settings import load_settings

    settings = load_settings(Path("cdk.json"))
    cdk = find_cdk(quiet_stdout=args.json)
    session = open_session(settings.region)
    session.caller()
    with Deployment.open(cdk, session, again="eks-ray-train down") as deployment:
        return take_away(args, settings, deployment)


def take_away(args: argparse.Namespace, settings: Settings, deployment: Deployment) -> int:
    """Destroy, then look. The destroy's failure does not stop the look: what is left matters most then."""
    from eks_ray_train.cli import teardown
    from eks_ray_train.cli.consent import agree, out
    from eks_ray_train.cli.leftovers import look

    region = deployment.session.home
    states = deployment.settle(region)
    problem = ""
    if states:
        keeps = settings.keep_storage and settings.storage != "none"
        kept = (
            "The checkpoint bucket is kept (keep_storage)."
            if keeps
            else "Storage goes too, with every checkpoint in it."
        )
        agree(args, f"down destroys {', '.join(states)} in {region}. {kept}", refused="nothing was destroyed")
        try:
            deployment.destroy(region, {"region": region})
        except UsageError:
            raise
        except EksRayTrainError as error:
            problem = str(error)
            out(args, problem)
    else:
        # A region that moved since the deploy must not make this look like the end of all costs.
        source = "cdk.json's region" if settings.region else "your own region, since cdk.json names none"
        out(
            args,
            f"no stack of this app in {region}; looked only there ({source}). If it was deployed in another region, "
            "set region in cdk.json to that one and run `eks-ray-train down` again",
        )
    report = look(deployment.session, region, settings)
    out(args, "\n" + teardown.text(report))
    code = report.exit_code or (ExitCode.UNEXPECTED if problem else ExitCode.OK)
    if args.json:
        document = {
            "region": region,
            "destroyed": sorted(states),
            "problem": problem or None,
            **teardown.document(report),
        }
        print(json.dumps({**document, "exit_code": int(code)}))
    return int(code)
