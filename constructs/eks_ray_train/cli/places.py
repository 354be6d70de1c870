"""Where ``up`` may deploy: the ranked search, limited to what the settings allow, and what each choice changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from eks_ray_train.capacity.find import (
    GOOD,
    Candidate,
    RegionFinding,
    Verdict,
    find,
    rank,
    settings_for,
    with_market,
)
from eks_ray_train.capacity.limit import limit_after
from eks_ray_train.capacity.model import TAG_STACK, Mode, Need
from eks_ray_train.errors import NoCapacityError

from .proving import owner, prove

if TYPE_CHECKING:
    from eks_ray_train.settings import Settings

    from .capacity_account import Account

_TRY = (*GOOD, Verdict.UNKNOWN)
_PROVES = ("probe", "hold")
# The tag by which a later run finds a test reservation that a killed one left.
_CLAIM = "up"


@dataclass
class Search:
    """The candidates of one ``up``, best first; used up one by one."""

    settings: Settings
    need: Need
    account: Account
    candidates: list[Candidate]
    findings: list[RegionFinding]
    network_stands: bool = False  # in the account's home region
    zones: dict[str, list[str]] = field(default_factory=dict)  # of the networks that this run makes

    @property
    def promising(self) -> list[Candidate]:
        return [c for c in self.candidates if c.zone is not None and c.verdict in _TRY]

    def next(self, region: str | None, request_id: str, on_try: Callable[[Candidate], None]) -> Candidate | None:
        """The best place left, in ``region`` where one is given; taken off the list. None where there is none.

        With capacity ``probe`` or ``hold``, EC2 is asked for the nodes first, place by place, so that a place without
        capacity costs seconds and not a deploy. Places it refused are no longer promising. Raises as ``proving.prove``.
        """
        pool = [c for c in self.promising if region is None or c.region == region]
        if not pool:
            return None
        asks = self.settings.capacity in _PROVES and pool[0].verdict is not Verdict.RESERVED
        if asks:
            rest = [c for c in self.candidates if c not in pool]
            pool = prove(pool, self.account, self.need, _CLAIM, request_id, on_try)
            self.candidates = [*rank(pool), *rest]
            pool = [c for c in pool if c.verdict in _TRY]
            if not pool:
                return None
        chosen = pool[0]
        self.candidates.remove(chosen)
        # What was proven a moment ago may be gone at the next turn.
        self.candidates = [
            replace(c, verdict=Verdict.LIKELY) if c.verdict is Verdict.PROVEN else c for c in self.candidates
        ]
        return chosen

    def updates(self, place: Candidate) -> dict[str, Any]:
        """Settings that deploy into ``place``; the list of zones is the same for every place of a region, since another
        order or number would replace the network's subnets."""
        assert place.zone is not None
        found = settings_for(place, [place, *self._others(place)], self.need)
        updates: dict[str, Any] = {
            "region": place.region,
            "availability_zones": self._zones(place, found["availability_zones"]),
            "gpu_zone": place.zone.name,
        }
        if place.reservation is not None and found["capacity_reservation_id"]:
            updates |= {key: found[key] for key in ("capacity", "capacity_reservation_id")}
        return updates

    def _zones(self, place: Candidate, useful: Any) -> list[str]:
        given = self.settings.existing_cluster or self.settings.existing_vpc_id
        if given or (place.region == self.account.home and (self.network_stands or self.settings.availability_zones)):
            return list(self.settings.availability_zones)
        return self.zones.setdefault(place.region, sorted(useful))

    def _others(self, place: Candidate) -> list[Candidate]:
        every = [c for f in self.findings for c in f.candidates if c.region == place.region and c.zone is not None]
        return [c for c in every if c.zone != place.zone]


def search(
    settings: Settings,
    account: Account,
    regions: Sequence[str],
    *,
    zones_of: dict[str, tuple[str, ...]],
    market_of: Callable[[Need], Any],
) -> Search:
    """Asks all ``regions``. ``zones_of``: the only zones that may be used in a region, where a network limits them.

    Raises NoCapacityError where the settings name a reservation that does not fit.
    """
    from eks_ray_train.instances import get_instance_type

    gpu = get_instance_type(settings.gpu_instance_type, accept_unverified_layout=settings.accept_unverified_layout)
    need = Need(
        instance_type=gpu.name, nodes=settings.gpu_node_count, vcpus_per_node=gpu.vcpus, quota_code=gpu.quota_code
    )
    until = limit_after(account.aws_of(account.home).now(), settings.max_hours)
    if settings.capacity_reservation_id:
        return _given(settings, account, need, regions, until)
    leftovers = owner(account, _CLAIM) if settings.capacity in _PROVES else None
    findings = find(regions, account.aws_of, need, account=account.id, run_until=until, leftovers_of=leftovers)
    candidates = [_own(c, settings) for c in with_market(findings, market_of(need))]
    allowed = [c for c in rank(candidates) if c.zone is None or c.zone.name in zones_of.get(c.region, (c.zone.name,))]
    allowed.sort(key=lambda c: _key(c, regions))
    preferred = [c for c in allowed if c.zone and c.zone.name == settings.gpu_zone and c.verdict in _TRY]
    ordered = [*preferred, *(c for c in allowed if c not in preferred)]
    return Search(settings=settings, need=need, account=account, candidates=ordered, findings=findings)


def _key(c: Candidate, regions: Sequence[str]) -> tuple[int, float, int, int]:
    """The ranking's order; where all else is equal, the region named first comes first and its zones stay together."""
    price = float("inf") if c.usd_per_hour is None else c.usd_per_hour
    return list(Verdict).index(c.verdict), price, -(c.spot_score or 0), list(regions).index(c.region)


def _own(candidate: Candidate, settings: Settings) -> Candidate:
    """A hold that the stack itself made (an interrupted deploy's) is no reservation of the user's."""
    held = candidate.reservation
    if held is None or (TAG_STACK not in held.tags and settings.capacity != "none"):
        return candidate
    return replace(candidate, reservation=None, verdict=Verdict.LIKELY, why="holds a reservation of this app already")


def _given(settings: Settings, account: Account, need: Need, regions: Sequence[str], until: Any) -> Search:
    """The settings name a reservation: its zone is the only place."""
    from eks_ray_train.capacity.aws import AWS_ERRORS, explain
    from eks_ray_train.capacity.check import describe_misfits, misfits, not_started
    from eks_ray_train.capacity.offers import availability_zones
    from eks_ray_train.capacity.reservations import read
    from eks_ray_train.errors import EksRayTrainError

    wanted = settings.capacity_reservation_id or ""
    mode = Mode.BLOCK if settings.capacity == "block" else Mode.RESERVATION
    for region in regions:
        aws = account.aws_of(region)
        try:
            held, zones = read(aws, wanted), availability_zones(aws)
        except AWS_ERRORS as error:
            raise EksRayTrainError(f"{wanted}: {explain('ec2:DescribeCapacityReservations', error)}") from None
        if held is None:
            continue
        found = misfits(held, need, zones, now=aws.now(), run_until=until, mode=mode)
        if found:
            raise NoCapacityError(describe_misfits(held.id, need, found))
        why = f"{held.id}: {'starts later' if not_started(held, aws.now()) else f'{held.available} free'}"
        every = [
            Candidate(region=region, zone=z, verdict=Verdict.NOT_OFFERED, why="not the reservation's") for z in zones
        ]
        place = Candidate(region=region, zone=held.zone, verdict=Verdict.RESERVED, why=why)
        finding = RegionFinding(region=region, candidates=tuple(every))
        return Search(settings=settings, need=need, account=account, candidates=[place], findings=[finding])
    raise NoCapacityError(
        f"reservation {wanted} does not exist in {', '.join(regions)}; set capacity_reservation_id to one that "
        "`eks-ray-train capacity find` lists, or region to its region"
    )
