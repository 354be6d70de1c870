"""``eks-ray-train capacity``: where the GPU nodes can be had, and whether a reservation fits."""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eks_ray_train.errors import EksRayTrainError, ExitCode, NoCapacityError, UsageError

if TYPE_CHECKING:
    from eks_ray_train.capacity.find import Candidate, Market
    from eks_ray_train.capacity.model import Need
    from eks_ray_train.cli.capacity_account import Account
    from eks_ray_train.settings import Settings

EPILOG = """\
examples:
  eks-ray-train capacity find                              the settings' type and number of nodes, in their region
  eks-ray-train capacity find --all-regions --instance-type p5.48xlarge --nodes 4
  eks-ray-train capacity find --regions us-east-2,us-west-2 --probe --yes --write
  eks-ray-train capacity check cr-0123456789abcdef0        which field of a reservation does not fit

exit codes: 0 a place fits, 5 none does, 1 it could not be known (a permission is missing), 2 wrong use
"""
# An early look at a Capacity Block costs nothing; a day is the shortest that is sold.
BLOCK_HOURS = 24
# A reservation is cancelled within seconds; a minute is charged at least (not confirmed by AWS's pages).
PROBE_MINUTES = 1
# The tag by which a later run finds a test reservation that a killed one left.
PROBE_CLAIM = "capacity-find"


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``capacity`` with ``find`` and ``check``."""
    parser = subparsers.add_parser(
        "capacity",
        help="find a region and zone that can start the GPU nodes; check a reservation",
        description="GPU capacity: where it is, whether the quota suffices, whether a reservation fits.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="capacity_command", metavar="find|check", required=True)
    find = commands.add_parser(
        "find",
        help="rank regions and zones for the GPU nodes",
        description="Ranks zones: own reservations, proven, offered with enough quota. Costs nothing without --probe.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = find.add_mutually_exclusive_group()
    where.add_argument("--regions", metavar="R,R", help="regions to search (default: the settings', else yours)")
    where.add_argument("--all-regions", action="store_true", help="every region that the account has enabled")
    find.add_argument("--instance-type", metavar="T", help="GPU instance type (default: cdk.json's)")
    find.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: cdk.json's)")
    find.add_argument("--probe", action="store_true", help="reserve and cancel, best first, until a zone has the nodes")
    find.add_argument("--yes", action="store_true", help="do not ask before --probe spends")
    find.add_argument("--write", action="store_true", help="put region, zones and reservation into cdk.json")
    check = commands.add_parser(
        "check",
        help="does this reservation or Capacity Block fit the settings",
        description="Checks a Capacity Reservation or Capacity Block field by field against the settings.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("id", metavar="ID", help="id of the reservation: cr-…")
    check.add_argument("--region", metavar="R", help="its region (default: the settings', else yours)")
    check.add_argument("--instance-type", metavar="T", help="GPU instance type (default: cdk.json's)")
    check.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: cdk.json's)")
    for command in (find, check):
        command.add_argument("--json", action="store_true", help="one JSON document on stdout, human text on stderr")
        command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Dispatch; returns the exit code."""
    return run_find(args) if args.capacity_command == "find" else run_check(args)


def open_account(region: str | None) -> Account:
    """The caller's account; tests put a stand-in here."""
    from eks_ray_train.cli.capacity_account import Account

    return Account(region)


def _asked(args: argparse.Namespace) -> tuple[Settings, Need]:
    from eks_ray_train.capacity.model import Need
    from eks_ray_train.instances import get_instance_type
    from eks_ray_train.settings import load_settings

    settings = load_settings(Path("cdk.json"))
    nodes = settings.gpu_node_count if args.nodes is None else args.nodes
    if nodes < 1:
        raise UsageError(f"--nodes must be at least 1, got {nodes}")
    # Where a type may be had does not depend on its interface layout.
    gpu = get_instance_type(args.instance_type or settings.gpu_instance_type, accept_unverified_layout=True)
    need = Need(instance_type=gpu.name, nodes=nodes, vcpus_per_node=gpu.vcpus, quota_code=gpu.quota_code)
    return settings, need


def run_find(args: argparse.Namespace) -> int:
    """Search, show, optionally prove and write. Raises UsageError for a wrong flag or missing credentials."""
    from eks_ray_train.capacity.find import GOOD, Verdict, find, with_market
    from eks_ray_train.capacity.limit import limit_after
    from eks_ray_train.cli import capacity_view as view
    from eks_ray_train.cli.proving import owner
    from eks_ray_train.instances import get_instance_type

    settings, need = _asked(args)
    named = [r.strip() for r in args.regions.split(",") if r.strip()] if args.regions else []
    if args.regions is not None and not named:
        raise UsageError(f"--regions must name at least one region, got {args.regions!r}")
    account = open_account(named[0] if named else settings.region)
    regions = named or (_enabled(account) if args.all_regions else [account.home])
    gpu = get_instance_type(need.instance_type, accept_unverified_layout=True)
    with _progress(len(regions)) as bar, ThreadPoolExecutor(max_workers=1) as pool:
        market = pool.submit(_market, account, need, regions, gpu.usd_per_hour)
        findings = find(
            regions,
            account.aws_of,
            need,
            account=account.id,
            run_until=limit_after(account.aws_of(account.home).now(), settings.max_hours),
            block_hours=BLOCK_HOURS if gpu.capacity_block else 0,
            on_done=lambda region: bar.update(),
            leftovers_of=owner(account, PROBE_CLAIM) if args.probe else None,
        )
        prices, problems = market.result()
    candidates = with_market(findings, prices)
    if args.probe:
        candidates = _probe(args, account, need, candidates)
    best = candidates[0]
    fits = best.verdict in GOOD
    unknown = any(c.verdict is Verdict.UNKNOWN for c in candidates)
    code = ExitCode.OK if fits else ExitCode.UNEXPECTED if unknown else ExitCode.NO_CAPACITY
    commands = [] if fits else view.increases(candidates, need)
    written = _write(candidates, need) if args.write and fits else {}
    out = sys.stderr if args.json else sys.stdout
    print(f"{need}, best first\n\n{view.table(candidates)}\n", file=out)
    for line in [*view.notes(findings, candidates), *problems]:
        print(line, file=out)
    print(f"\n{_conclusion(candidates, need, code, commands)}", file=out)
    for key, (old, new) in written.items():
        print(f"cdk.json: {key}: {json.dumps(old)} -> {json.dumps(new)}", file=out)
    if args.write and not fits:
        print("cdk.json: nothing written, since no place is known to fit", file=out)
    if args.json:
        print(json.dumps(view.document(need, findings, candidates, commands, written, problems, int(code), fits=fits)))
    return int(code)


def _enabled(account: Account) -> list[str]:
    from eks_ray_train.capacity.aws import AWS_ERRORS, explain

    try:
        return account.enabled_regions()
    except AWS_ERRORS as error:
        raise UsageError(f"--all-regions: {explain('ec2:DescribeRegions', error)}; name them with --regions") from None


def _market(account: Account, need: Need, regions: list[str], usd: float | None) -> tuple[Market, list[str]]:
    """Prices and Spot scores, asked once for all regions; what cannot be read is said, not raised."""
    from eks_ray_train.capacity.aws import AWS_ERRORS, explain
    from eks_ray_train.capacity.find import Market
    from eks_ray_train.capacity.market import on_demand_prices, spot_scores

    aws, problems = account.aws_of(account.home), []
    prices: dict[str, float] = {}
    scores: dict[str, int] = {}
    try:
        prices = on_demand_prices(aws, account.pricing, need.instance_type)
    except AWS_ERRORS as error:
        problems.append(f"price: {explain('pricing:GetProducts', error)}")
    try:
        scores = spot_scores(aws, need.instance_type, need.nodes, regions)
    except AWS_ERRORS as error:
        problems.append(f"spot: {explain('ec2:GetSpotPlacementScores', error)}")
    return Market(prices=prices, scores=scores, catalogue_usd=usd), problems


def _probe(args: argparse.Namespace, account: Account, need: Need, candidates: list[Candidate]) -> list[Candidate]:
    from eks_ray_train.cli.proving import prove, stopped_as_interrupt

    usd = max((c.usd_per_hour for c in candidates if c.usd_per_hour is not None), default=None)
    cost = "an unknown price" if usd is None else f"about ${usd * need.nodes * PROBE_MINUTES / 60:.2f}"
    text = f"--probe reserves {need}, best place first, and cancels at the first success: {cost}; refusals cost nothing"
    if not args.yes:
        if args.json or not sys.stdin.isatty():
            raise UsageError(f"{text}. Add --yes to agree")
        print(f"{text}. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UsageError("--probe was not agreed to; nothing was reserved")
    with stopped_as_interrupt():
        return prove(
            candidates,
            account,
            need,
            PROBE_CLAIM,
            uuid.uuid4().hex,
            on_try=lambda c: print(f"trying {c.zone} …", file=sys.stderr, flush=True),
        )


def _write(candidates: list[Candidate], need: Need) -> dict[str, tuple[Any, Any]]:
    from eks_ray_train.capacity.find import settings_for
    from eks_ray_train.cli import aws_session
    from eks_ray_train.cli.cdk_json import check_move, write_settings
    from eks_ray_train.settings import load_settings

    old = load_settings(Path("cdk.json")).region
    check_move(old, candidates[0].region, lambda r: aws_session.open_session(r).client("cloudformation", r))
    updates = {
        **settings_for(candidates[0], candidates, need),
        "gpu_instance_type": need.instance_type,
        "gpu_node_count": need.nodes,
    }
    return write_settings(Path("cdk.json"), updates)


def _conclusion(candidates: list[Candidate], need: Need, code: ExitCode, commands: list[str]) -> str:
    best = candidates[0]
    if code is ExitCode.OK:
        return f"Best: {best.region}, {best.zone}: {best.why}"
    if code is ExitCode.UNEXPECTED:
        return f"Not known whether any place fits {need}: {best.why}\nAllow that action, or ask EC2 itself with --probe"
    text = f"No place fits {need} now; nearest: {best.region}: {best.verdict}: {best.why}"
    return "\n".join([text, *(f"ask for quota: {command}" for command in commands[:3])])


def run_check(args: argparse.Namespace) -> int:
    """Field by field. Raises NoCapacityError (exit code 5) with the misfits, UsageError for an id that is none."""
    from eks_ray_train.capacity.aws import AWS_ERRORS, explain
    from eks_ray_train.capacity.check import describe_misfits, misfits
    from eks_ray_train.capacity.limit import limit_after
    from eks_ray_train.capacity.model import RESERVATION_ID, Mode
    from eks_ray_train.capacity.offers import availability_zones
    from eks_ray_train.capacity.reservations import read
    from eks_ray_train.cli import capacity_view as view

    if not RESERVATION_ID.fullmatch(args.id):
        raise UsageError(
            f"ID must be a reservation's id such as cr-0123456789abcdef0 (8 or 17 hexadecimal digits), got {args.id!r}; "
            "`eks-ray-train capacity find` lists yours"
        )
    settings, need = _asked(args)
    account = open_account(args.region or settings.region)
    aws = account.aws_of(account.home)
    try:
        held = read(aws, args.id)
        zones = availability_zones(aws)
    except AWS_ERRORS as error:
        raise EksRayTrainError(f"{args.id}: {explain('ec2:DescribeCapacityReservations', error)}") from None
    if held is None:
        raise NoCapacityError(f"{args.id} does not exist in {account.home}; give its region with --region")
    wanted = [z for z in zones if not settings.availability_zones or z.name in settings.availability_zones]
    if settings.gpu_zone:
        wanted = [z for z in zones if z.name == settings.gpu_zone]
    mode = Mode.BLOCK if held.kind == "capacity-block" else Mode.RESERVATION
    found = misfits(held, need, wanted, now=aws.now(), run_until=limit_after(aws.now(), settings.max_hours), mode=mode)
    if args.json:
        fields = [{"field": m.field, "got": m.got, "needed": m.needed} for m in found]
        code = int(ExitCode.NO_CAPACITY if found else ExitCode.OK)
        print(json.dumps({"fits": not found, "exit_code": code, "misfits": fields, **view.reservation_json(held)}))
        print(describe_misfits(held.id, need, found) if found else f"{held.id} fits {need}", file=sys.stderr)
        return code
    if found:
        raise NoCapacityError(describe_misfits(held.id, need, found))
    print(f"{held.id} in {held.zone} fits {need}: set capacity to {mode} and capacity_reservation_id to {held.id}")
    return int(ExitCode.OK)


def _progress(total: int) -> Any:
    from tqdm import tqdm

    # None: only where stderr is a terminal.
    return tqdm(total=total, desc="regions", unit="region", leave=False, disable=None, file=sys.stderr)
