"""``eks-ray-train up``: finds capacity, bootstraps where needed, deploys in the best place, else the next."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eks_ray_train.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from eks_ray_train.cli.deployment import Deployment
    from eks_ray_train.cli.places import Search
    from eks_ray_train.settings import Settings

EPILOG = """\
what it does: `capacity find`, `cdk bootstrap` where missing, `cdk deploy --all` in the best place. Where the
deploy fails for lack of capacity, only the training stack is taken away and the region's next zone is tried, then
the next region of --regions. Any other failure stops, with CloudFormation's reason. The place is written into
cdk.json before anything is made, so that a second run goes on where the first was interrupted, and `down` finds
it.

examples:
  eks-ray-train up                                  cdk.json's region, else yours; asks before it costs money
  eks-ray-train up --regions us-east-2,us-west-2 --yes

exit codes: 0 deployed, 5 no capacity or quota, 2 wrong use, nobody agreed or no credentials, 1 another failure,
130 interrupted
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``up``."""
    parser = subparsers.add_parser(
        "up",
        help="find capacity, bootstrap and deploy everything",
        description="Deploys everything where the GPU nodes can be had.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--regions", metavar="R,R", help="regions to try (default: cdk.json's, else yours)")
    where.add_argument("--all-regions", action="store_true", help="every region that the account has enabled")
    parser.add_argument("--yes", action="store_true", help="do not ask before it costs money")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, human text on stderr")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns the exit code; raises the errors of errors.py with what to do."""
    from eks_ray_train.cli.aws_session import open_session
    from eks_ray_train.cli.cdk_runner import find_cdk
    from eks_ray_train.cli.deployment import Deployment
    from eks_ray_train.cli.proving import stopped_as_interrupt
    from eks_ray_train.settings import load_settings

    settings = load_settings(Path("cdk.json"))
    named = [r.strip() for r in args.regions.split(",") if r.strip()] if args.regions else []
    if args.regions is not None and not named:
        raise UsageError(f"--regions must name at least one region, got {args.regions!r}")
    cdk = find_cdk(quiet_stdout=args.json)
    _check_cdk_json()
    session = open_session(settings.region or (named[0] if named else None))
    with stopped_as_interrupt(), Deployment.open(cdk, session, again="eks-ray-train up") as deployment:
        return deploy(args, settings, named, deployment)


def _check_cdk_json() -> None:
    """Raises UsageError where cdk.json could not be written later: told before EC2 is asked and anybody pays."""
    from eks_ray_train.cli.cdk_json import check_changeable
    from eks_ray_train.cli.writable import check_writable

    path = Path("cdk.json")
    check_changeable(path, "up writes cdk.json anew, and the folder")
    check_writable(path, "up writes the place that it finds into the settings, and")


def deploy(args: argparse.Namespace, settings: Settings, named: list[str], deployment: Deployment) -> int:
    """In place where a training stack stands; else the search, the question, and attempt after attempt."""
    from eks_ray_train.cli.attempts import Attempts

    home = deployment.session.home
    deployment.settle(home)
    if deployment.training_stands(home):
        return _in_place(args, settings, home, deployment)
    regions = named or (_every_region(deployment) if args.all_regions else [home])
    if deployment.network_stands(home) and home not in regions:
        raise UsageError(
            f"a network of this app stands in {home}, which --regions leaves out; run `eks-ray-train down` first"
        )
    if (settings.existing_cluster or settings.existing_vpc_id) and regions != [home]:
        raise UsageError(
            f"the settings name an existing VPC or cluster, which is in {home}; leave --regions and --all-regions out"
        )
    found = _search(settings, regions, deployment)
    found.network_stands = deployment.network_stands(home)
    if not found.promising:
        from eks_ray_train.cli.attempts import no_place

        raise no_place(found, [])
    _agree(args, settings, found)
    attempts = Attempts(search=found, deployment=deployment, home=home if found.network_stands else None)
    place = attempts.run()
    return _finish(args, deployment, place.region, attempts.document())


def _search(settings: Settings, regions: list[str], deployment: Deployment) -> Search:
    from eks_ray_train.cli import capacity
    from eks_ray_train.cli.consent import note
    from eks_ray_train.cli.places import search
    from eks_ray_train.instances import get_instance_type

    account = capacity.open_account(deployment.session.home)
    usd = get_instance_type(settings.gpu_instance_type, accept_unverified_layout=True).usd_per_hour
    note(f"looking for {settings.gpu_node_count} x {settings.gpu_instance_type} in {', '.join(regions)} …")
    return search(
        settings,
        account,
        regions,
        zones_of=deployment.allowed_zones(settings),
        market_of=lambda need: capacity._market(account, need, regions, usd)[0],
    )


def _every_region(deployment: Deployment) -> list[str]:
    from eks_ray_train.cli.aws_session import aws_errors

    with aws_errors("ec2:DescribeRegions", "name them with --regions"):
        found = deployment.session.client("ec2").describe_regions()["Regions"]
    names = sorted(r["RegionName"] for r in found if r.get("OptInStatus") != "not-opted-in")
    home = deployment.session.home
    return [home, *(name for name in names if name != home)]


def price_line(settings: Settings, nodes: int) -> str:
    """``about $9.77 an hour (…)``: what stands costs, by the catalogue."""
    from eks_ray_train.instances import get_instance_type
    from eks_ray_train.plan.cost import run_cost

    each = get_instance_type(settings.gpu_instance_type, accept_unverified_layout=True).usd_per_hour
    cost = run_cost(gpu_usd_per_hour=None if each is None else each * nodes, nodes=nodes, seconds=3600, tokens=0)
    other = f"${cost.other_usd_per_hour:.2f} for cluster, NAT gateway, system node and disks"
    if cost.usd_per_hour is None:
        return f"the GPU nodes' price (not in the catalogue) and {other} an hour"
    return f"about ${cost.usd_per_hour:.2f} an hour (${cost.gpu_usd_per_hour:.2f} for the GPU nodes, {other})"


def limit_line(settings: Settings) -> str:
    if not settings.max_hours:
        return "There is no spending limit (max_hours is 0)."
    limit = f"The GPU nodes go to zero {settings.max_hours} hours after the deploy (max_hours)"
    return f"{limit}; the rest stays until `eks-ray-train down`."


def _agree(args: argparse.Namespace, settings: Settings, found: Search) -> None:
    from eks_ray_train.cli import capacity_view
    from eks_ray_train.cli.consent import agree, out

    best = found.promising[0]
    out(args, f"\n{capacity_view.table(found.candidates)}\n")
    asks = settings.capacity in ("probe", "hold")
    first = f"First {best.region}, {best.zone} ({best.verdict}: {best.why})"
    first += (
        "; EC2 is asked for the nodes before each attempt, at most a minute of their price each time." if asks else "."
    )
    agree(
        args,
        f"up deploys {found.need}: {price_line(settings, found.need.nodes)}. {limit_line(settings)} {first}",
        refused="nothing was deployed",
    )


def _in_place(args: argparse.Namespace, settings: Settings, region: str, deployment: Deployment) -> int:
    """A training stack stands: its zone and its nodes are a fact, so nothing is searched."""
    from eks_ray_train.cli.consent import agree

    nodes = settings.gpu_node_count
    asleep = (
        ""
        if _gpu_nodes(deployment, region) != 0
        else (" No GPU node runs now, and up starts them only where a change makes a new or larger node group.")
    )
    agree(
        args,
        f"The training stack stands in {region}: up deploys what changed since, in place: "
        f"{price_line(settings, nodes)}.{asleep}",
        refused="nothing was deployed",
    )
    deployment.bootstrap(region)
    deployment.deploy_in_place(region, {"region": region})
    return _finish(args, deployment, region, [])


def _gpu_nodes(deployment: Deployment, region: str) -> int | None:
    """How many GPU nodes EKS is told to run: `scale 0` and the spending limit tell it so past CloudFormation. None where it
    is not known, which changes no more than a sentence."""
    from eks_ray_train.capacity.aws import AWS_ERRORS
    from eks_ray_train.cli.stack_state import TRAINING

    state = deployment.states(region).get(TRAINING)
    outputs = state.outputs if state else {}
    try:
        group = deployment.session.client("eks", region).describe_nodegroup(
            clusterName=outputs["ClusterName"], nodegroupName=outputs["NodeGroupName"]
        )["nodegroup"]
        return int(group["scalingConfig"]["desiredSize"])
    except (KeyError, *AWS_ERRORS):
        return None


def _finish(args: argparse.Namespace, deployment: Deployment, region: str, attempts: list[dict[str, Any]]) -> int:
    from eks_ray_train.cli.consent import out
    from eks_ray_train.cli.stack_state import TRAINING

    outputs = deployment.states(region)[TRAINING].outputs if TRAINING in deployment.states(region) else {}
    zone, limit = outputs.get("GpuZone", ""), outputs.get("SpendingLimitAt", "")
    out(args, f"deployed in {region}{f', GPU nodes in {zone}' if zone else ''}")
    if _gpu_nodes(deployment, region) == 0:
        out(args, "no GPU node runs: run `eks-ray-train scale N` to have nodes")
    else:
        if limit:
            out(args, f"GPU nodes go to zero at {limit} UTC; `eks-ray-train scale N` re-arms, `scale 0` stops earlier")
        out(args, f"next: {outputs.get('SubmitCommand', 'eks-ray-train submit -- --steps 10')}")
    if args.json:
        print(json.dumps({"region": region, "zone": zone, "outputs": outputs, "attempts": attempts, "exit_code": 0}))
    return int(ExitCode.OK)
