"""Property tests: the quota sum against a brute-force model, the chosen zone against what was proven, ranking, length."""

from __future__ import annotations

import itertools
import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eks_ray_train.capacity.find import GOOD, Candidate, Market, Verdict, find, probe, rank, with_market
from eks_ray_train.capacity.handler import answer
from eks_ray_train.capacity.model import EXCLUDED_ZONE_IDS, CapacityError, Need, Reservation, Zone
from eks_ray_train.capacity.quota import FAMILIES, read_quota, used_vcpus
from eks_ray_train.capacity.report import REASON_BYTES, Rank, Row, fit, reason
from eks_ray_train.capacity.reservations import Owner
from tests.fake_ec2 import ACCOUNT, START, VCPUS, World, client_error
from tests.fake_stack import STACK_ID, FakeStack, properties

NEED = Need(instance_type="g6.12xlarge", nodes=2, vcpus_per_node=48, quota_code="L-DB2E81BA")
KINDS = sorted(VCPUS)

instance = st.fixed_dictionaries(
    {
        "InstanceType": st.sampled_from(KINDS),
        "State": st.sampled_from(["pending", "running", "stopped", "stopping", "terminated"]),
        "InstanceLifecycle": st.sampled_from([None, None, "spot", "capacity-block", "scheduled"]),
        "Tenancy": st.sampled_from(["default", "dedicated", "host"]),
    }
)
slots = st.fixed_dictionaries(
    {
        "InstanceType": st.sampled_from(KINDS),
        "State": st.sampled_from(["active", "expired", "cancelled", "pending"]),
        "ReservationType": st.sampled_from(["default", "capacity-block"]),
        "AvailableInstanceCount": st.integers(0, 5),
        "OwnerId": st.sampled_from([ACCOUNT, "999988887777"]),
    }
)


def _brute_force(code: str, instances: list[dict[str, Any]], reservations: list[dict[str, Any]]) -> int:
    """The rule, one vCPU at a time: no shared code with the product."""
    letters = {"L-DB2E81BA": "g", "L-417A185B": "p", "L-1216C47A": "m"}[code]
    vcpus = 0
    for one in instances:
        on_demand = one["InstanceLifecycle"] not in ("spot", "capacity-block") and one["Tenancy"] != "host"
        if one["InstanceType"][0] == letters and one["State"] in ("pending", "running") and on_demand:
            vcpus += sum(1 for _ in range(VCPUS[one["InstanceType"]]))
    for one in reservations:
        counts = one["State"] == "active" and one["ReservationType"] == "default" and one["OwnerId"] == ACCOUNT
        if one["InstanceType"][0] == letters and counts:
            vcpus += sum(VCPUS[one["InstanceType"]] for _ in range(one["AvailableInstanceCount"]))
    return vcpus


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(FAMILIES)), st.lists(instance, max_size=8), st.lists(slots, max_size=5), st.integers(1, 3)
)
def test_used_quota_equals_a_brute_force_count(
    code: str, instances: list[dict[str, Any]], reservations: list[dict[str, Any]], page: int
) -> None:
    world = World(page=page)
    for one in instances:
        lifecycle = {"InstanceLifecycle": one["InstanceLifecycle"]} if one["InstanceLifecycle"] else {}
        placement = {"AvailabilityZone": "us-west-2a", "Tenancy": one["Tenancy"]}
        world.launch("usw2-az1", one["InstanceType"], 1, Placement=placement, State={"Name": one["State"]}, **lifecycle)
    for one in reservations:
        world.add_reservation(**{**one, "TotalInstanceCount": 5})
    need = Need(instance_type="g6.12xlarge", nodes=1, vcpus_per_node=48, quota_code=code)
    assert read_quota(world.aws(), need, ACCOUNT).used == _brute_force(code, instances, reservations)


def test_an_instance_of_an_unknown_size_counts_by_its_own_cpu_options() -> None:
    odd = {
        "InstanceType": "g9.metal",
        "State": {"Name": "running"},
        "CpuOptions": {"CoreCount": 10, "ThreadsPerCore": 2},
    }
    assert used_vcpus("L-DB2E81BA", [odd], [], lambda kind: None) == 20


zone_ids = [f"usw2-az{n}" for n in range(1, 5)]
capacities = st.fixed_dictionaries({zone: st.integers(0, 4) for zone in zone_ids})


@settings(max_examples=150, deadline=None)
@given(capacities, st.sets(st.sampled_from(zone_ids)), st.integers(0, 4), st.sampled_from(["probe", "hold"]))
def test_the_claimed_zone_is_the_first_in_order_that_really_had_the_nodes(
    free: dict[str, int], offering: set[str], nodes: int, mode: str
) -> None:
    zones = {f"us-west-2{letter}": zone for letter, zone in zip("abcd", zone_ids, strict=True)}
    world = World(zones=zones, offers={"g6.12xlarge": offering}, page=2)
    world.free = {(zone, "g6.12xlarge"): count for zone, count in free.items()}
    can = [zone for zone in zone_ids if zone in offering and free[zone] >= nodes]
    claim = FakeStack(world).create(NodeCount=str(nodes), Capacity=mode)
    assert claim.ok == (bool(can) and (mode == "probe" or nodes > 0))
    if claim.ok:
        assert claim.data["ZoneId"] == can[0]
    assert len(world.active(STACK_ID)) == (1 if claim.ok and mode == "hold" else 0)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 6), st.integers(1, 6), st.integers(0, 8))
def test_an_update_asks_only_for_the_nodes_it_lacks(before: int, after: int, free: int) -> None:
    world = World(free={("usw2-az2", "g6.12xlarge"): free, ("usw2-az1", "g6.12xlarge"): 0})
    stack = FakeStack(world)
    if not stack.create(NodeCount=str(max(1, before))).ok:
        return
    had = len(world.instances)
    ended = stack.update(NodeCount=str(after))
    assert ended.ok == (after <= had or after <= free)
    assert stack.claim is not None and stack.claim.data["ZoneId"] == "usw2-az2"


candidate = st.builds(
    Candidate,
    region=st.sampled_from(["us-west-2", "us-east-1", "eu-north-1"]),
    zone=st.sampled_from([Zone(name="a", zone_id="x-az1"), Zone(name="b", zone_id="x-az2")]),
    verdict=st.sampled_from(list(Verdict)),
    why=st.just("why"),
    usd_per_hour=st.one_of(st.none(), st.floats(1, 99)),
    spot_score=st.one_of(st.none(), st.integers(1, 10)),
)


@given(st.lists(candidate, min_size=1, max_size=8))
def test_no_candidate_is_ranked_below_one_of_a_worse_verdict_or_a_higher_price(found: list[Candidate]) -> None:
    order = list(Verdict)
    ranked = rank(found)
    assert sorted(map(id, ranked)) == sorted(map(id, found))
    for better, worse in itertools.pairwise(ranked):
        assert order.index(better.verdict) <= order.index(worse.verdict)
        if better.verdict is worse.verdict and None not in (better.usd_per_hour, worse.usd_per_hour):
            assert better.usd_per_hour <= worse.usd_per_hour  # type: ignore[operator]


@settings(max_examples=60, deadline=None)
@given(capacities, st.integers(0, 200))
def test_find_with_probe_recommends_only_what_was_proven(free: dict[str, int], quota: int) -> None:
    zones = {f"us-west-2{letter}": zone for letter, zone in zip("abcd", zone_ids, strict=True)}
    world = World(zones=zones, quota={"L-DB2E81BA": quota})
    world.free = {(zone, "g6.12xlarge"): count for zone, count in free.items()}
    ranked = with_market(find(["us-west-2"], lambda region: world.aws(), NEED, account=ACCOUNT), Market())
    owner = Owner(stack_id="cli", claim="find")
    best = probe(ranked, lambda region: world.aws(), NEED, owner, "r")[0]
    possible = quota >= NEED.vcpus and any(count >= 2 for count in free.values())
    assert (best.verdict in GOOD) == possible
    if possible:
        assert best.zone is not None and free[best.zone.zone_id] >= 2 and best.verdict is Verdict.PROVEN
    assert not world.active()


@given(st.text(max_size=20_000))
def test_a_failure_reason_of_any_text_fits_into_cloudformations_answer(text: str) -> None:
    assert len(json.dumps(fit(text))) <= REASON_BYTES


def test_a_failure_over_many_zones_keeps_its_head_and_what_to_do() -> None:
    rows = [
        Row(rank=Rank.TRIED, zone=f"zone-{n}", zone_id=f"id-{n}", result="no capacity: " + "x" * 190) for n in range(60)
    ]
    text = reason("No capacity.", rows, ("note",), ("do this", "or that"))
    assert text.startswith("No capacity.\nWhat to do: do this\nWhat to do: or that\n")
    assert len(json.dumps(text)) <= REASON_BYTES


def test_zones_in_which_eks_takes_no_subnet_are_never_chosen() -> None:
    for zone_id in EXCLUDED_ZONE_IDS:
        world = World(zones={"here-1a": zone_id, "here-1b": "here1-az9"})
        claim = FakeStack(world).create()
        assert claim.ok and claim.data["ZoneName"] == "here-1b"
        assert all(r["AvailabilityZoneId"] != zone_id for r in world.reservations)


def test_local_zones_are_never_chosen() -> None:
    world = World(zones={"us-west-2-lax-1a": "usw2-lax1-az1", "us-west-2a": "usw2-az1"})
    world.zone_types = {"us-west-2-lax-1a": "local-zone"}
    claim = FakeStack(world).create()
    assert claim.ok and claim.data["ZoneName"] == "us-west-2a"


def test_quota_refusal_stops_and_names_the_command() -> None:
    world = World(quota={"L-DB2E81BA": 48})
    claim = FakeStack(world).create()
    assert not claim.ok
    assert (
        "request-service-quota-increase --service-code ec2 --quota-code L-DB2E81BA --desired-value 96" in claim.reason
    )
    assert len(world.reservations) == 0


def test_throttling_backs_off_and_goes_on() -> None:
    world = World(errors={"CreateCapacityReservation": [client_error("RequestLimitExceeded")] * 3})
    assert FakeStack(world).create().ok
    assert world.now - START > timedelta(seconds=1)


def test_a_policy_that_is_not_in_force_yet_is_waited_for() -> None:
    denied = client_error("UnauthorizedOperation")
    assert FakeStack(World(errors={"CreateCapacityReservation": [denied] * 3})).create().ok
    claim = FakeStack(World(errors={"CreateCapacityReservation": denied})).create()
    assert not claim.ok and "allow ec2:CreateCapacityReservation" in claim.reason


def test_no_further_zone_is_tried_when_the_function_is_about_to_be_killed() -> None:
    world = World(free={("usw2-az1", "g6.12xlarge"): 0})
    aws = world.aws(deadline=START + timedelta(seconds=65))
    world.create_error = {"usw2-az1": ("RequestLimitExceeded", "slow down")}
    world.seconds_per_call = 3.0
    event = {
        "RequestType": "Create",
        "ResourceType": "Custom::CapacityClaim",
        "RequestId": "r",
        "StackId": STACK_ID,
        "LogicalResourceId": "Claim",
        "ResourceProperties": properties(world),
    }
    with pytest.raises(CapacityError, match="not tried: out of time"):
        answer(event, aws)


def test_pending_is_polled_until_it_is_active_or_failed() -> None:
    world = World(pending_seconds=20)
    claim = FakeStack(world).create(Capacity="hold")
    assert claim.ok and world.active(STACK_ID)[0]["State"] == "active"
    world = World(pending_seconds=20, becomes="failed")
    claim = FakeStack(world).create()
    assert not claim.ok and "became failed" in claim.reason


def test_reservation_from_ec2_counts_used_slots() -> None:
    held = Reservation.from_ec2({"CapacityReservationId": "cr-1", "TotalInstanceCount": 4, "AvailableInstanceCount": 1})
    assert held.used == 3
