"""The search over regions: what each zone offers, whether it would work, and which place is best, with the reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from .aws import AWS_ERRORS, Aws, Refusal, explain, refusal_of
from .check import misfits
from .market import BlockOffer, block_offers
from .model import Mode, Need, Reservation, Zone
from .offers import availability_zones, offering_zone_ids
from .prove import fits_openly
from .quota import Quota, read_quota
from .reservations import Owner, live, sweep
from .try_out import try_out

_MAX_THREADS = 32


class Verdict(StrEnum):
    """What a place is good for, best first: the order of the members is the order of the ranking."""

    RESERVED = "reserved"  # the account already pays for enough free slots there
    PROVEN = "proven"  # EC2 gave the nodes a moment ago
    LIKELY = "likely"  # offered, and the quota suffices; capacity itself is not known
    UNKNOWN = "unknown"  # something that decides could not be read
    REFUSED = "refused"  # EC2 had no capacity when asked
    QUOTA_SHORT = "quota too small"
    NOT_OFFERED = "not offered"
    UNREACHABLE = "not enabled"


GOOD = (Verdict.RESERVED, Verdict.PROVEN, Verdict.LIKELY)
_ORDER = {verdict: place for place, verdict in enumerate(Verdict)}


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One zone of one region (or a region without a usable zone: ``zone`` is None) and what was found out about it."""

    region: str
    zone: Zone | None
    verdict: Verdict
    why: str
    quota: Quota | None = None
    spot_score: int | None = None
    usd_per_hour: float | None = None  # per node
    price_source: str = "unknown"
    reservation: Reservation | None = None
    blocks: tuple[BlockOffer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RegionFinding:
    """One region. ``unknown``: column -> why it could not be read."""

    region: str
    candidates: tuple[Candidate, ...]
    reservations: tuple[tuple[Reservation, tuple[str, ...]], ...] = ()  # own ones of this type, with their misfits
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Market:
    """Facts that are asked once for all regions."""

    prices: Mapping[str, float] = field(default_factory=dict)
    scores: Mapping[str, int] = field(default_factory=dict)
    catalogue_usd: float | None = None

    def price(self, region: str) -> tuple[float | None, str]:
        if region in self.prices:
            return self.prices[region], "price list"
        return (self.catalogue_usd, "catalogue, us-east-1") if self.catalogue_usd is not None else (None, "unknown")


def rank(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Best first: verdict, then price, then Spot score (a weak hint), then name."""

    def key(c: Candidate) -> tuple[int, bool, float, int, str, str]:
        price = c.usd_per_hour
        name = c.zone.name if c.zone else ""
        return _ORDER[c.verdict], price is None, price or 0.0, -(c.spot_score or 0), c.region, name

    return sorted(candidates, key=key)


def find(
    regions: Sequence[str],
    aws_of: Callable[[str], Aws],
    need: Need,
    *,
    account: str = "",
    run_until: datetime | None = None,
    block_hours: int = 0,
    on_done: Callable[[str], None] = lambda region: None,
    leftovers_of: Owner | None = None,
) -> list[RegionFinding]:
    """All regions at once. ``block_hours`` > 0 also lists Capacity Blocks for sale. No region's failure stops another's.

    ``leftovers_of``: whose test reservations are cancelled first, since a killed run's would count as used quota; absent,
    nothing is changed anywhere.
    """

    def look(region: str) -> RegionFinding:
        try:
            if leftovers_of is not None:
                sweep(aws_of(region), leftovers_of)
            return survey_region(region, aws_of(region), need, account, run_until, block_hours)
        finally:
            on_done(region)

    with ThreadPoolExecutor(max_workers=max(1, min(_MAX_THREADS, len(regions)))) as pool:
        return list(pool.map(look, regions))


def survey_region(
    region: str, aws: Aws, need: Need, account: str, run_until: datetime | None, block_hours: int
) -> RegionFinding:
    """Everything that is free to ask in one region; a column that cannot be read says why and stays empty."""
    unknown: dict[str, str] = {}
    try:
        zones = availability_zones(aws)
    except AWS_ERRORS as error:
        denied = refusal_of(error) is Refusal.DENIED
        verdict = Verdict.UNKNOWN if denied else Verdict.UNREACHABLE
        why = explain("ec2:DescribeAvailabilityZones", error)
        return RegionFinding(
            region=region,
            candidates=(Candidate(region=region, zone=None, verdict=verdict, why=why),),
            unknown={"zones": why},
        )
    offers: set[str] | None = None
    own: list[Reservation] = []
    blocks: list[BlockOffer] = []
    try:
        offers = offering_zone_ids(aws, need.instance_type)
    except AWS_ERRORS as error:
        unknown["offered"] = explain("ec2:DescribeInstanceTypeOfferings", error)
    if offers == set():
        why = f"{need.instance_type} is not offered in {region}"
        nowhere = Candidate(region=region, zone=None, verdict=Verdict.NOT_OFFERED, why=why)
        return RegionFinding(region=region, candidates=(nowhere,), unknown=unknown)
    try:
        own = [held for held in live(aws) if held.instance_type == need.instance_type]
    except AWS_ERRORS as error:
        unknown["reservations"] = explain("ec2:DescribeCapacityReservations", error)
    if block_hours:
        try:
            blocks = block_offers(aws, need, block_hours)
        except AWS_ERRORS as error:
            unknown["blocks"] = explain("ec2:DescribeCapacityBlockOfferings", error)
    quota = read_quota(aws, need, account)
    if quota.unknown:
        unknown["quota"] = quota.unknown
    usable = [z for z in zones if not z.excluded]
    checked = [(held, tuple(_misfits(held, need, usable, aws.now(), run_until))) for held in own]
    candidates = []
    for zone in zones:
        verdict, why = _judge(zone, offers, quota, need, unknown)
        fitting = next((h for h, bad in checked if not bad and h.zone.zone_id == zone.zone_id), None)
        if fitting is not None and not zone.excluded:
            verdict, why = Verdict.RESERVED, f"{_kind(fitting)} {fitting.id}: {fitting.available} free"
        for_sale = tuple(b for b in blocks if b.zone == zone.name)
        candidates.append(
            Candidate(
                region=region,
                zone=zone,
                verdict=verdict,
                why=why,
                quota=quota,
                reservation=fitting,
                blocks=for_sale,
            )
        )
    return RegionFinding(region=region, candidates=tuple(candidates), reservations=tuple(checked), unknown=unknown)


def _misfits(
    held: Reservation, need: Need, zones: Sequence[Zone], now: datetime, run_until: datetime | None
) -> list[str]:
    mode = Mode.BLOCK if held.kind == "capacity-block" else Mode.RESERVATION
    return [str(m) for m in misfits(held, need, zones, now=now, run_until=run_until, mode=mode)]


def _kind(held: Reservation) -> str:
    return "Capacity Block" if held.kind == "capacity-block" else f"{held.match} reservation"


def _judge(
    zone: Zone, offers: set[str] | None, quota: Quota, need: Need, unknown: Mapping[str, str]
) -> tuple[Verdict, str]:
    if zone.excluded:
        return Verdict.NOT_OFFERED, "EKS accepts no subnet in this zone"
    if offers is None:
        return Verdict.UNKNOWN, f"offered unknown: {unknown['offered']}"
    if zone.zone_id not in offers:
        return Verdict.NOT_OFFERED, f"{need.instance_type} is not offered"
    enough = quota.covers(need.vcpus)
    if enough is None:
        return Verdict.UNKNOWN, f"quota unknown: {quota.unknown}"
    if not enough:
        return Verdict.QUOTA_SHORT, f"{need.vcpus} vCPUs needed, {quota.free} free"
    return Verdict.LIKELY, "offered, quota suffices; capacity not asked (--probe)"


def with_market(findings: Iterable[RegionFinding], market: Market) -> list[Candidate]:
    """The candidates of all regions with price and score, best first."""
    priced = []
    for finding in findings:
        usd, source = market.price(finding.region)
        for c in finding.candidates:
            score = market.scores.get(c.zone.zone_id) if c.zone else None
            priced.append(replace(c, usd_per_hour=usd, price_source=source, spot_score=score))
    return rank(priced)


def probe(
    candidates: Sequence[Candidate],
    aws_of: Callable[[str], Aws],
    need: Need,
    owner: Owner,
    request_id: str,
    on_try: Callable[[Candidate], None] = lambda candidate: None,
    on_left: Callable[[str], None] = lambda text: None,
) -> list[Candidate]:
    """Asks EC2 for the nodes, candidate by candidate in the given order, until one gives them; cancels at once.

    A refusal costs nothing; the one success costs the seconds until it is cancelled. Returns all candidates, ranked anew.
    Raises ``reservations.NotEnded`` for a reservation that could not be cancelled, and AWS's error where the credentials are
    over. ``on_left`` is told what an interruption left, or may have left.
    """
    known = list(candidates)
    quota_gone: set[str] = set()
    swept: set[str] = set()
    for index, candidate in enumerate(known):
        if candidate.verdict not in (Verdict.LIKELY, Verdict.UNKNOWN) or candidate.zone is None:
            continue
        if candidate.region in quota_gone:
            known[index] = replace(candidate, verdict=Verdict.QUOTA_SHORT, why="quota refused in another zone")
            continue
        on_try(candidate)
        aws = aws_of(candidate.region)
        if candidate.region not in swept:  # what a killed run left counts as used quota
            swept.add(candidate.region)
            sweep(aws, owner)
        got = try_out(aws, owner, need, candidate.zone, request_id, on_left)
        if isinstance(got, Reservation):
            known[index] = replace(candidate, verdict=Verdict.PROVEN, why="EC2 gave the nodes just now")
            break
        if got.reason is Refusal.EXPIRED and got.error is not None:
            raise got.error
        verdict = {Refusal.QUOTA: Verdict.QUOTA_SHORT, Refusal.UNSUPPORTED: Verdict.NOT_OFFERED}.get(
            got.reason, Verdict.REFUSED if got.reason is Refusal.CAPACITY else Verdict.UNKNOWN
        )
        if got.reason is Refusal.QUOTA:
            quota_gone.add(candidate.region)
        known[index] = replace(candidate, verdict=verdict, why=f"{got.reason}: {got.text}")
    return rank(known)


def settings_for(best: Candidate, zones: Sequence[Candidate], need: Need) -> dict[str, object]:
    """What ``--write`` puts into cdk.json: region, zones (best first; EKS needs two) and how capacity is had."""
    assert best.zone is not None
    in_region = [c for c in zones if c.region == best.region and c.zone is not None and not c.zone.excluded]
    names = [best.zone.name, *(c.zone.name for c in in_region if c.zone)]
    # Every zone that may take nodes, and at least one more for the control plane.
    useful = {c.zone.name for c in in_region if c.zone and c.verdict in (*GOOD, Verdict.UNKNOWN)} | {best.zone.name}
    ordered = [name for name in dict.fromkeys(names) if name in useful]
    ordered += [name for name in dict.fromkeys(names) if name not in useful][: max(0, 2 - len(ordered))]
    held = best.reservation
    plain = held is None or fits_openly(held, need.instance_type, need.nodes)
    mode = "probe" if plain or held is None else "block" if held.kind == "capacity-block" else "reservation"
    return {
        "region": best.region,
        "availability_zones": ordered,
        "gpu_zone": None,
        "capacity": mode,
        "capacity_reservation_id": None if plain or held is None else held.id,
    }
