"""``eks-ray-train init``: asks AWS who calls and from where, and writes region, zones and access into cdk.json."""

from __future__ import annotations

import argparse
import difflib
import ipaddress
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eks_ray_train.errors import EksRayTrainError, ExitCode, UsageError

if TYPE_CHECKING:
    from eks_ray_train.cli.aws_session import Caller, Session
    from eks_ray_train.settings import Settings

CDK_JSON = Path("cdk.json")
# AWS's own service for this; it answers with the address and a line end.
ADDRESS_URL = "https://checkip.amazonaws.com"
ADDRESS_SECONDS = 5
_ASSUMED = re.compile(r"arn:(?P<partition>[\w-]+):sts::(?P<account>\d{12}):assumed-role/(?P<role>[^/]+)/.+")

EPILOG = """\
examples:
  eks-ray-train init                     your region, its zones, your IAM role, your address; asks before it writes
  eks-ray-train init --region us-east-2 --yes
  eks-ray-train init --private           private endpoint only: submit then works inside the VPC or through a tunnel

exit codes: 0 good, 2 wrong use, nobody agreed, credentials that cannot administer a cluster, or stacks that stand
in the region that cdk.json names until now, 1 something was not answered
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``init``."""
    parser = subparsers.add_parser(
        "init",
        help="write region, zones, administrators and your address into cdk.json",
        description="Writes region, zones, administrators and your address into cdk.json, after showing the change.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--private", action="store_true", help="no access from outside: public_access_cidrs becomes empty"
    )
    parser.add_argument("--region", metavar="R", help="region (default: cdk.json's, else yours)")
    parser.add_argument("--yes", action="store_true", help="write without asking")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, human text on stderr")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns the exit code; raises UsageError and EksRayTrainError with what to do."""
    from eks_ray_train.cli import aws_session

    return initialize(args, session_of=aws_session.open_session, fetch=fetch_address)


def fetch_address() -> str:
    """The caller's public address as AWS sees it. Raises OSError where there is no answer within seconds."""
    import urllib.request

    with urllib.request.urlopen(ADDRESS_URL, timeout=ADDRESS_SECONDS) as answer:
        return bytes(answer.read(64)).decode("ascii", "replace").strip()


def initialize(
    args: argparse.Namespace, *, session_of: Callable[[str | None], Session], fetch: Callable[[], str]
) -> int:
    """The command with its clients given."""
    from eks_ray_train.cli.aws_session import aws_errors
    from eks_ray_train.cli.cdk_json import check_move, edit, read_text, write_settings
    from eks_ray_train.cli.consent import agree, note, out
    from eks_ray_train.settings import BLOCK, from_mapping, load_settings, read_cdk_json

    settings = load_settings(CDK_JSON)
    block = read_cdk_json(CDK_JSON).get(BLOCK)
    if block is None:
        raise UsageError(f'cdk.json has no "{BLOCK}" block under "context"; restore it')
    session = session_of(args.region or settings.region)
    caller = session.caller()
    check_move(settings.region, session.home, lambda region: session.client("cloudformation", region))
    principal = _principal(session, caller, settings)
    with aws_errors("ec2:DescribeAvailabilityZones"):
        zones = _zones(session, session.home)
    updates: dict[str, Any] = {"region": session.home, **_zone_settings(settings, session.home, zones)}
    if principal and principal not in settings.admin_principals:
        updates["admin_principals"] = [*settings.admin_principals, principal]
    address = None if args.private else _address(fetch, settings)
    if args.private:
        updates["public_access_cidrs"] = []
    elif address and not any(
        ipaddress.ip_address(address) in ipaddress.ip_network(c) for c in settings.public_access_cidrs
    ):
        updates["public_access_cidrs"] = [*settings.public_access_cidrs, f"{address}/32"]
    bootstrapped = _bootstrapped(session)
    changed = {key: value for key, value in updates.items() if block.get(key) != value}
    from_mapping({**block, **changed})  # every problem is told before anything is written
    before = read_text(CDK_JSON)
    after = edit(before, changed)

    out(args, f"account {caller.account}, {caller.arn}\nregion {session.home}, zones {', '.join(zones)}")
    if address:
        out(args, f"your address {address}")
    if args.private:
        out(args, "private endpoint: submit and kubectl reach the cluster from inside the VPC or through a tunnel")
    if bootstrapped is False:
        out(
            args,
            f"not bootstrapped: `eks-ray-train up` does it, or: cdk bootstrap aws://{caller.account}/{session.home}",
        )
    if changed:
        difference = difflib.unified_diff(
            before.splitlines(), after.splitlines(), "cdk.json", "cdk.json (new)", lineterm="", n=1
        )
        out(args, "\n" + "\n".join(difference) + "\n")
        agree(args, "Write this into cdk.json?", refused="cdk.json is as it was")
        # The question may have stood for an hour: what was edited meanwhile stays, unless it is what was agreed to.
        now = read_cdk_json(CDK_JSON).get(BLOCK) or {}
        if moved := [key for key in changed if now.get(key) != block.get(key)]:
            raise UsageError(
                f"{', '.join(moved)} in cdk.json changed while init asked; cdk.json is as it is now: run init again"
            )
        write_settings(CDK_JSON, changed)
        note("cdk.json: written")
    else:
        out(args, "cdk.json: nothing to change")
    if args.json:
        print(
            json.dumps(
                {
                    "account": caller.account,
                    "caller": caller.arn,
                    "principal": principal,
                    "region": session.home,
                    "zones": zones,
                    "address": address,
                    "bootstrapped": bootstrapped,
                    "written": changed,
                    "exit_code": 0,
                }
            )
        )
    return int(ExitCode.OK)


def _principal(session: Session, caller: Caller, settings: Settings) -> str | None:
    """The IAM ARN that EKS accepts for the caller; None where it cannot be read but somebody administers already.

    EKS knows no assumed-role ARNs, and wants a role's path as IAM has it (SSO roles have one).
    https://docs.aws.amazon.com/eks/latest/userguide/creating-access-entries.html
    """
    from botocore.exceptions import BotoCoreError, ClientError

    from eks_ray_train.cli.aws_session import explain
    from eks_ray_train.cli.consent import note

    if match := _ASSUMED.fullmatch(caller.arn):
        try:
            return str(session.client("iam").get_role(RoleName=match["role"])["Role"]["Arn"])
        except (ClientError, BotoCoreError) as error:
            text = f"the IAM role behind {caller.arn} could not be read ({explain('iam:GetRole', error)})"
            if settings.admin_principals:
                note(f"{text}; admin_principals stays as it is")
                return None
            raise EksRayTrainError(
                f"{text}; allow iam:GetRole on it, or put its ARN into admin_principals of cdk.json yourself (IAM's "
                "console shows "
                "it; an SSO role's has a path) and run init again"
            ) from None
    if re.fullmatch(r"arn:[\w-]+:iam::\d{12}:user/.+", caller.arn):
        return caller.arn
    if caller.arn.endswith(":root"):
        who = "the account's root user"
    elif ":federated-user/" in caller.arn:
        who = f"a federated user ({caller.arn})"
    else:
        who = caller.arn
    raise UsageError(
        f"{who} cannot administer an EKS cluster, which knows IAM roles and users only; use a role (aws sso login, or "
        "AWS_PROFILE=…)"
    )


def _zones(session: Session, region: str) -> list[str]:
    """Names of the region's availability zones in which EKS accepts subnets; EksRayTrainError for fewer than two."""
    from eks_ray_train.capacity.aws import Aws
    from eks_ray_train.capacity.offers import availability_zones

    zones = [z.name for z in availability_zones(Aws(ec2=session.client("ec2", region))) if not z.excluded]
    if len(zones) < 2:
        raise EksRayTrainError(
            f"EKS needs two availability zones, {region} has {len(zones)} for this account "
            f"({', '.join(zones) or 'none'}); "
            "choose another with --region"
        )
    return zones


def _zone_settings(settings: Settings, region: str, zones: list[str]) -> dict[str, Any]:
    """Zones that are set and exist stay, with their order; an existing VPC or cluster brings its own."""
    if settings.existing_cluster or settings.existing_vpc_id:
        return {}
    found: dict[str, Any] = {}
    kept = settings.availability_zones and set(settings.availability_zones) <= set(zones)
    if not kept:
        found["availability_zones"] = zones
    if settings.gpu_zone is not None and settings.gpu_zone not in (settings.availability_zones if kept else zones):
        found["gpu_zone"] = None
    return found


def _address(fetch: Callable[[], str], settings: Settings) -> str | None:
    """The caller's public IPv4 address; None where it is unknown but ``public_access_cidrs`` names somebody already."""
    from eks_ray_train.cli.consent import note

    try:
        answer = fetch()
        address = ipaddress.ip_address(answer)
        if address.version != 4 or not address.is_global:
            raise ValueError(f"{answer} is not a public IPv4 address")
        return str(address)
    except (OSError, ValueError) as error:
        text = f"your address could not be found ({ADDRESS_URL}: {error})"
        if settings.public_access_cidrs:
            note(f"{text}; public_access_cidrs stays as it is")
            return None
        raise EksRayTrainError(
            f"{text}; run init --private, or put your address as /32 into public_access_cidrs of cdk.json and run "
            "init again"
        ) from None


def _bootstrapped(session: Session) -> bool | None:
    from eks_ray_train.cli.consent import note
    from eks_ray_train.cli.stack_state import is_bootstrapped

    try:
        return is_bootstrapped(session, session.home)
    except UsageError:
        raise
    except EksRayTrainError as error:
        note(f"whether {session.home} is bootstrapped is not known: {error}")
        return None
