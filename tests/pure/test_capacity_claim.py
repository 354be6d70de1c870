"""CapacityClaim's answers, mode by mode, the spending limit, and the renewal schedule, against the stateful stand-in."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from eks_ray_train.capacity.handler import on_event
from eks_ray_train.capacity.model import format_time
from tests.fake_ec2 import START, World, client_error
from tests.fake_stack import STACK_ID, FakeStack, properties


def _ids(stack: FakeStack) -> list[str]:
    return [held["CapacityReservationId"] for held in stack.world.active(STACK_ID)]


def test_probe_takes_the_first_zone_that_has_the_nodes_and_keeps_no_reservation() -> None:
    world = World(free={("usw2-az1", "g6.12xlarge"): 1})
    claim = FakeStack(world).create()
    assert claim.ok, claim.reason
    assert (claim.data["ZoneName"], claim.data["SubnetId"]) == ("us-west-2b", "subnet-usw2-az2")
    assert claim.data["ReservationId"] == "" and claim.data["DesiredNodes"] == "2"
    assert world.active() == []


def test_no_attribute_that_becomes_an_output_is_empty() -> None:
    for mode in ("probe", "hold", "none"):
        assert FakeStack(World()).create(Capacity=mode).data["Note"]


def test_a_failure_tells_every_zone_tried_and_what_to_do() -> None:
    world = World(free={("usw2-az1", "g6.12xlarge"): 1, ("usw2-az2", "g6.12xlarge"): 0})
    claim = FakeStack(world).create()
    assert not claim.ok
    lines = claim.reason.splitlines()
    assert lines[0] == "No capacity for 2 x g6.12xlarge in us-west-2a, us-west-2b now."
    assert lines[1].startswith("What to do:")
    assert sum("InsufficientInstanceCapacity" in line for line in lines) == 2


def test_a_given_zone_is_the_only_one_tried() -> None:
    claim = FakeStack(World(free={("usw2-az1", "g6.12xlarge"): 0})).create(PreferredZone="us-west-2a")
    assert not claim.ok and "us-west-2b" not in claim.reason.splitlines()[0]


def test_hold_answers_with_the_reservation_as_physical_id() -> None:
    stack = FakeStack(World())
    claim = stack.create(Capacity="hold")
    assert claim.ok, claim.reason
    assert [claim.physical_id] == [claim.data["ReservationId"]] == _ids(stack)
    (held,) = stack.world.active(STACK_ID)
    assert held["EndDate"] - held["CreateDate"] <= timedelta(hours=1)


def test_hold_grows_in_place_and_asks_only_for_what_it_lacks() -> None:
    stack = FakeStack(World(free={("usw2-az1", "g6.12xlarge"): 3}))
    created = stack.create(Capacity="hold")
    grown = stack.update(NodeCount="3")
    assert grown.ok and grown.physical_id == created.physical_id
    assert stack.world.active(STACK_ID)[0]["TotalInstanceCount"] == 3
    refused = stack.update(NodeCount="4")
    assert not refused.ok
    assert "1 more x g6.12xlarge" in refused.reason and "scale 0" in refused.reason
    assert stack.world.active(STACK_ID)[0]["TotalInstanceCount"] == 3


def test_hold_shrinks_when_the_nodes_are_gone_not_before() -> None:
    stack = FakeStack(World())
    stack.create(Capacity="hold", NodeCount="3")
    before = stack.world.active(STACK_ID)[0]
    stack.world.pass_time(600)
    end = before["EndDate"]
    assert stack.update(NodeCount="1").ok
    assert before["EndDate"] > end, "an update pauses the renewals, so it begins with a fresh hour"
    assert before["TotalInstanceCount"] == 3, "three nodes used it while the claim was updated"
    stack.tick()
    assert (before["TotalInstanceCount"], before["AvailableInstanceCount"]) == (1, 0)


def test_hold_of_zero_nodes_is_let_go_and_made_anew_later() -> None:
    stack = FakeStack(World())
    first = stack.create(Capacity="hold")
    assert stack.update(NodeCount="0").ok
    stack.tick()
    assert _ids(stack) == []
    again = stack.update(NodeCount="2")
    assert again.ok and _ids(stack) == [again.physical_id] != [first.physical_id]
    assert again.data["ZoneId"] == first.data["ZoneId"]


def test_a_zone_change_while_nodes_live_is_an_error_that_says_what_to_do() -> None:
    for mode in ("probe", "hold", "none"):
        stack = FakeStack(World())
        stack.create(Capacity=mode)
        moved = stack.update(PreferredZone="us-west-2b")
        assert not moved.ok
        assert "2 nodes run in us-west-2a" in moved.reason and "scale 0" in moved.reason
        assert stack.update(NodeCount="0").ok
        moved = stack.update(PreferredZone="us-west-2b", NodeCount="2")
        assert moved.ok and moved.data["ZoneName"] == "us-west-2b", moved.reason


def test_a_type_that_the_nodes_zone_does_not_offer_is_refused_with_that_reason() -> None:
    stack = FakeStack(World(offers={"p5.48xlarge": {"usw2-az2"}}))
    stack.create()
    changed = stack.update(InstanceType="p5.48xlarge", QuotaCode="L-417A185B", VcpusPerNode="192")
    assert not changed.ok and "p5.48xlarge is not offered there" in changed.reason


def test_nodes_scaled_to_zero_by_the_limit_are_asked_for_again() -> None:
    stack = FakeStack(World())
    stack.create()
    stack.world.terminate()
    stack.world.free = {("usw2-az1", "g6.12xlarge"): 0}
    assert not stack.update(LimitAt="2026-12-01T00:00:00").ok
    stack.world.free = {}
    assert stack.update(LimitAt="2026-12-01T00:00:00").ok


def test_reservation_answers_with_the_given_id_and_its_zone() -> None:
    world = World()
    rid = world.add_reservation(zone_id="usw2-az2")["CapacityReservationId"]
    stack = FakeStack(world)
    claim = stack.create(Capacity="reservation", ReservationId=rid)
    assert (claim.data["ReservationId"], claim.data["ZoneName"]) == (rid, "us-west-2b")
    assert claim.physical_id != rid, "Delete would cancel the user's reservation"
    assert stack.delete() and world.reservations[0]["State"] == "active"


def test_reservation_is_no_way_round_a_zone_that_takes_no_nodes() -> None:
    world = World(offers={"g6.12xlarge": {"usw2-az2"}})
    rid = world.add_reservation(zone_id="usw2-az2")["CapacityReservationId"]
    stack = FakeStack(world)
    told = properties(world, Capacity="reservation", ReservationId=rid, Zones=["us-west-2a"], SubnetIds=["subnet-a"])
    for kind in ("CapacityProbe", "CapacityClaim"):
        assert not stack.send(f"Create {kind}", kind, "", told).ok


def test_reservation_in_use_by_our_nodes_needs_only_the_missing_slots() -> None:
    world = World()
    rid = world.add_reservation(TotalInstanceCount=3)["CapacityReservationId"]
    stack = FakeStack(world)
    stack.create(Capacity="reservation", ReservationId=rid)
    assert stack.update(NodeCount="3").ok
    assert "0 available" in stack.update(NodeCount="4").reason


FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("State", {"State": "expired"}),
    ("InstanceType", {"InstanceType": "g5.12xlarge"}),
    ("InstancePlatform", {"InstancePlatform": "Windows"}),
    ("Tenancy", {"Tenancy": "dedicated"}),
    ("AvailabilityZone", {"zone_id": "usw2-az9"}),
    ("AvailableInstanceCount", {"AvailableInstanceCount": 1}),
    ("PlacementGroupArn", {"PlacementGroupArn": "arn:aws:ec2:us-west-2:1:placement-group/p"}),
    ("ReservationType", {"ReservationType": "capacity-block"}),
    ("EndDate", {"EndDate": START + timedelta(hours=1)}),
    ("EndDate", {"EndDate": START + timedelta(hours=5)}),
]


@pytest.mark.parametrize(("name", "fields"), FIELDS, ids=lambda value: value if isinstance(value, str) else "")
def test_each_field_that_does_not_fit_is_named_alone(name: str, fields: dict[str, Any]) -> None:
    world = World()
    rid = world.add_reservation(**fields)["CapacityReservationId"]
    for limit in ("2026-11-29T22:00:00",):
        claim = FakeStack(world).create(Capacity="reservation", ReservationId=rid, LimitAt=limit)
        assert not claim.ok
        assert [line.split()[1] for line in claim.reason.splitlines()[1:]] == [name], claim.reason


def _block(world: World, **fields: Any) -> str:
    made = world.add_reservation(InstanceType="p5.48xlarge", ReservationType="capacity-block", **fields)
    return str(made["CapacityReservationId"])


P5 = {"InstanceType": "p5.48xlarge", "VcpusPerNode": "192", "QuotaCode": "L-417A185B", "Capacity": "block"}


def test_block_that_has_not_started_gives_zero_nodes_and_says_when_to_scale() -> None:
    world = World(quota={})
    start, end = START + timedelta(days=2), START + timedelta(days=3)
    rid = _block(world, State="scheduled", AvailableInstanceCount=0, StartDate=start, EndDate=end)
    claim = FakeStack(world).create(**P5, ReservationId=rid)
    assert claim.ok, claim.reason
    assert claim.data["DesiredNodes"] == "0" and claim.data["StartsAt"] == format_time(start)
    assert "scale 2" in claim.data["Note"]


def test_block_moves_the_limit_before_its_end() -> None:
    world = World(quota={})
    end = START + timedelta(hours=10)
    rid = _block(world, StartDate=START - timedelta(hours=14), EndDate=end)
    claim = FakeStack(world).create(**P5, ReservationId=rid, LimitAt=format_time(START + timedelta(hours=12)))
    assert claim.ok, claim.reason
    assert claim.data["LimitAt"] == format_time(end - timedelta(hours=1))
    assert claim.data["DrainAt"] == format_time(end - timedelta(hours=1, minutes=15))


def test_block_that_ends_soon_is_an_error() -> None:
    world = World(quota={})
    rid = _block(world, StartDate=START - timedelta(hours=23), EndDate=START + timedelta(hours=1))
    claim = FakeStack(world).create(**P5, ReservationId=rid)
    assert not claim.ok and "EndDate" in claim.reason


def test_none_asks_for_no_capacity_and_takes_a_zone_that_offers_the_type() -> None:
    world = World(offers={"g6.12xlarge": {"usw2-az2"}}, quota={})
    claim = FakeStack(world).create(Capacity="none")
    assert claim.ok and claim.data["ZoneName"] == "us-west-2b" and not world.reservations


def test_limit_is_max_hours_from_now_and_empty_without_one() -> None:
    stack = FakeStack(World())
    limit = stack.send("Create Limit", "SpendingLimit", "", {"Owner": "o", "MaxHours": "12"})
    assert limit.data["LimitAt"] == "2026-11-30T00:00:00"
    again = stack.send("Update Limit", "SpendingLimit", limit.physical_id, {"Owner": "o", "MaxHours": "0"}, {})
    assert again.data["LimitAt"] == "" and again.physical_id == limit.physical_id


def test_hold_is_renewed_while_used_and_ends_with_the_limit() -> None:
    stack = FakeStack(World())
    stack.create(Capacity="hold", LimitAt=format_time(START + timedelta(hours=3)))
    stack.pass_hours(2.5)
    assert len(_ids(stack)) == 1
    stack.pass_hours(1)
    assert _ids(stack) == []


@pytest.mark.parametrize("status", ["UPDATE_IN_PROGRESS", "CREATE_FAILED", "ROLLBACK_COMPLETE", "DELETE_COMPLETE"])
def test_hold_of_a_stack_that_is_not_whole_is_not_renewed(status: str) -> None:
    stack = FakeStack(World())
    stack.create(Capacity="hold")
    stack.status = status
    stack.pass_hours(1)
    assert _ids(stack) == []


def test_idle_hold_is_not_renewed_however_young_its_stack_is() -> None:
    stack = FakeStack(World())
    stack.create(Capacity="hold")
    stack.world.terminate()
    stack.pass_hours(0.5)
    assert len(_ids(stack)) == 1, "nodes may take most of an hour to come"
    stack.pass_hours(0.5)
    assert _ids(stack) == []


def test_schedule_sweeps_old_probes_and_leaves_a_running_one_alone() -> None:
    stack = FakeStack(World())
    stack.create(Capacity="hold")
    for age in (timedelta(minutes=20), timedelta(minutes=2)):
        tags = [
            {**t, "Value": "probe"} if t["Key"].endswith("purpose") else t for t in stack.world.reservations[0]["Tags"]
        ]
        stack.world.add_reservation(Tags=tags, CreateDate=stack.world.now - age)
    stack.tick()
    assert [r["State"] for r in stack.world.reservations] == ["active", "cancelled", "active"]


def test_early_probe_passes_where_an_update_needs_no_more_than_it_runs() -> None:
    world = World(quota={"L-DB2E81BA": 96})
    stack = FakeStack(world)
    old = properties(world)
    created = stack.send("Create Probe", "CapacityProbe", "", old)
    world.launch("usw2-az1", "g6.12xlarge", 2)
    assert created.ok, created.reason
    assert stack.send("Update Probe", "CapacityProbe", created.physical_id, {**old, "Zones": ["us-west-2b"]}, old).ok
    more = stack.send("Update Probe", "CapacityProbe", created.physical_id, {**old, "NodeCount": "3"}, old)
    assert not more.ok and "48 more vCPUs needed, 0 free" in more.reason


def test_early_probe_proves_only_on_create() -> None:
    world = World()
    stack = FakeStack(world)
    old = properties(world)
    created = stack.send("Create Probe", "CapacityProbe", "", old)
    assert len(world.reservations) == 1 and not world.active()
    stack.send("Update Probe", "CapacityProbe", created.physical_id, {**old, "NodeCount": "3"}, old)
    assert len(world.reservations) == 1


def test_early_probe_never_fails_a_rollback() -> None:
    world = World(quota={"L-DB2E81BA": 0})
    stack = FakeStack(world, status="UPDATE_ROLLBACK_IN_PROGRESS")
    old = properties(world)
    assert stack.send("Update Probe", "CapacityProbe", "probe:x", {**old, "NodeCount": "3"}, old).ok


def test_a_short_quota_that_is_unknown_does_not_stop_the_deploy() -> None:
    world = World(errors={"GetServiceQuota": client_error("AccessDeniedException")})
    assert FakeStack(world).send("Create Probe", "CapacityProbe", "", properties(world)).ok


def test_event_without_a_request_type_is_the_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = FakeStack(World())
    claim = stack.create(Capacity="hold")
    monkeypatch.setattr("eks_ray_train.capacity.handler.clients", lambda context: stack.world.aws())
    stack.world.stacks[STACK_ID] = ("CREATE_COMPLETE", START)
    told = {"StackId": STACK_ID, "Owner": "c8a1f", "ReservationId": claim.physical_id, "NodeCount": 2, "LimitAt": ""}
    assert on_event(told)["renewed"] == [claim.physical_id]
