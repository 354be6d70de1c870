"""No test reservation is forgotten: not while EC2 does not know its id yet, not while it is pending, not unsaid."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from eks_ray_train.capacity.aws import AWS_ERRORS, Refusal, error_code
from eks_ray_train.capacity.find import Candidate, Verdict, probe
from eks_ray_train.capacity.handler import answer
from eks_ray_train.capacity.model import CapacityError, Need, Zone, format_time
from eks_ray_train.capacity.reservations import NotEnded, Owner, Purpose, Refused, cancel, reserve, sweep
from tests.fake_ec2 import World, client_error
from tests.fake_stack import STACK_ID, FakeStack, properties

NEED = Need(instance_type="g6.12xlarge", nodes=2, vcpus_per_node=48, quota_code="L-DB2E81BA")
OWNER = Owner(stack_id="eks-ray-train-cli/111122223333", claim="up")
NOT_FOUND = "InvalidCapacityReservationId.NotFound"


def ask(world: World, left: list[str] | None = None) -> list[Candidate]:
    places = [
        Candidate(region=world.region, zone=Zone(name=name, zone_id=zone_id), verdict=Verdict.LIKELY, why="")
        for name, zone_id in world.zones.items()
    ]
    on_left = [].append if left is None else left.append
    return probe(places, lambda region: world.aws(), NEED, OWNER, "request", on_left=on_left)


def leftover(world: World, owner: Owner = OWNER, purpose: Purpose = Purpose.PROBE) -> dict[str, Any]:
    end = world.now + timedelta(minutes=50)
    return world.add_reservation(Tags=owner.tags(purpose), EndDateType="limited", EndDate=end)


def test_probe_ends_a_reservation_whose_id_ec2_does_not_know_yet() -> None:
    world = World(unknown_seconds=10)
    assert ask(world)[0].verdict is Verdict.PROVEN
    assert [r["State"] for r in world.reservations] == ["cancelled"]
    assert world.bill <= 2 * 30, "slot-seconds"


def test_one_not_found_right_after_the_creation_does_not_count_as_cancelled() -> None:
    world = World(errors={"CancelCapacityReservation": [client_error(NOT_FOUND)]})
    ask(world)
    assert [r["State"] for r in world.reservations] == ["cancelled"]


@pytest.mark.parametrize("kind", ["CapacityClaim", "CapacityProbe"])
def test_handler_ends_a_reservation_whose_id_ec2_does_not_know_yet(kind: str) -> None:
    world = World(unknown_seconds=10)
    stack = FakeStack(world)
    assert stack.send("Create", kind, "", properties(world)).ok
    assert [r["State"] for r in world.reservations] == ["cancelled"]


def test_an_id_that_stays_unknown_is_named_with_its_end_after_half_a_minute() -> None:
    world = World(errors={"CancelCapacityReservation": client_error(NOT_FOUND)})
    with pytest.raises(NotEnded) as told:
        ask(world)
    (held,) = world.reservations
    assert held["CapacityReservationId"] in str(told.value) and format_time(held["EndDate"]) in str(told.value)
    assert "us-west-2a" in str(told.value) and "--region us-west-2," in str(told.value)
    assert 30 <= (world.now - held["CreateDate"]).total_seconds() < 120


def test_an_id_of_unknown_age_that_is_not_found_is_as_good_as_cancelled_at_once() -> None:
    world = World()
    cancel(world.aws(), "cr-00000000000000099")
    assert world.count("CancelCapacityReservation") == 1


def test_lambda_that_is_about_to_be_killed_does_not_wait_for_the_id() -> None:
    world = World(errors={"CancelCapacityReservation": client_error(NOT_FOUND)})
    aws = world.aws(deadline=world.now + timedelta(seconds=14))
    with pytest.raises(AWS_ERRORS):
        cancel(aws, "cr-00000000000000001", fresh=True)
    assert world.count("CancelCapacityReservation") == 1


def test_reservation_that_becomes_active_after_the_patience_is_over_is_cancelled_then() -> None:
    world = World(pending_seconds=200)
    assert {c.verdict for c in ask(world)} == {Verdict.REFUSED}
    assert {r["State"] for r in world.reservations} == {"cancelled"} and not world.active()


def test_reservation_that_stays_pending_is_named_and_no_second_one_is_made() -> None:
    world = World(pending_seconds=3000)
    with pytest.raises(NotEnded) as told:
        ask(world)
    (held,) = world.reservations
    assert held["State"] == "pending"
    assert held["CapacityReservationId"] in str(told.value) and format_time(held["EndDate"]) in str(told.value)
    assert "InvalidCapacityReservationState" in str(told.value)


def test_handler_fails_over_a_reservation_that_stays_pending_and_names_it() -> None:
    world = World(pending_seconds=3000)
    event = {
        "RequestType": "Create",
        "ResourceType": "Custom::CapacityClaim",
        "RequestId": "r",
        "StackId": STACK_ID,
        "LogicalResourceId": "Claim",
        "ResourceProperties": properties(world),
    }
    with pytest.raises(CapacityError) as told:
        answer(event, world.aws())
    assert world.reservations[0]["CapacityReservationId"] in str(told.value) and len(world.reservations) == 1


def test_sweep_lists_a_pending_reservation_as_a_failure_and_an_ended_one_not() -> None:
    world = World()
    leftover(world)["State"] = "pending"
    (told,) = sweep(world.aws(), OWNER)
    assert "cr-00000000000000001" in told and "could not be cancelled" in told and "ends by itself" in told
    world.reservations[0]["State"] = "expired"
    cancel(world.aws(), "cr-00000000000000001")
    cancel(world.aws(), "cr-00000000000000001", fresh=True)
    assert sweep(world.aws(), OWNER) == []


def test_cancellation_while_pending_raises_ec2s_own_error() -> None:
    world = World()
    leftover(world)["State"] = "pending"
    with pytest.raises(AWS_ERRORS) as told:
        cancel(world.aws(), "cr-00000000000000001")
    assert error_code(told.value) == "InvalidCapacityReservationState"


class Interrupted(World):
    """Ctrl-C comes at the first look at a pending reservation."""

    def _describe_capacity_reservations(self, **asked: Any) -> dict[str, Any]:
        if asked.get("CapacityReservationIds") and not self.scores:
            self.scores["interrupted"] = 1
            raise KeyboardInterrupt
        return super()._describe_capacity_reservations(**asked)


@pytest.mark.parametrize(("pending", "state"), [(20, "cancelled"), (3000, "pending")])
def test_ctrl_c_while_pending_ends_the_reservation_or_says_that_it_is_left(pending: int, state: str) -> None:
    world, left = Interrupted(pending_seconds=pending), []
    with pytest.raises(KeyboardInterrupt):
        ask(world, left)
    (held,) = world.reservations
    assert held["State"] == state
    assert [held["CapacityReservationId"] in text for text in left] == ([True] if state == "pending" else [])


def test_ctrl_c_ends_what_the_listing_does_not_show_yet() -> None:
    world = World(unknown_seconds=10, errors={"CancelCapacityReservation": [KeyboardInterrupt()]})
    with pytest.raises(KeyboardInterrupt):
        ask(world)
    assert [r["State"] for r in world.reservations] == ["cancelled"]


def test_second_ctrl_c_names_what_may_be_left() -> None:
    world, left = World(errors={"CancelCapacityReservation": [KeyboardInterrupt(), KeyboardInterrupt()]}), []
    with pytest.raises(KeyboardInterrupt):
        ask(world, left)
    assert len(left) == 1 and "cr-00000000000000001 may be left; it ends by itself" in left[0]


def test_throttled_creation_is_the_refusal_even_where_the_look_for_a_twin_is_throttled() -> None:
    throttled = client_error("RequestLimitExceeded", "slow down")
    world = World(errors={"CreateCapacityReservation": throttled, "DescribeCapacityReservations": throttled})
    zone = Zone(name="us-west-2a", zone_id="usw2-az1")
    got = reserve(world.aws(), OWNER, Purpose.PROBE, "g6.12xlarge", zone, 2, "request")
    assert isinstance(got, Refused) and got.reason is Refusal.THROTTLED and "slow down" in got.text
    assert {c.verdict for c in ask(world)} == {Verdict.UNKNOWN}


def test_probe_begins_by_cancelling_only_our_own_test_reservations() -> None:
    world = World(quota={"L-DB2E81BA": 96 * 4})  # the three others, and the proof
    mine = leftover(world)
    others = [
        leftover(world, Owner(stack_id=OWNER.stack_id, claim="capacity-find")),
        leftover(world, Owner(stack_id="arn:another", claim="up")),
        leftover(world, purpose=Purpose.HOLD),
    ]
    assert ask(world)[0].verdict is Verdict.PROVEN, "the leftover took the quota"
    assert mine["State"] == "cancelled" and [r["State"] for r in others] == ["active"] * 3
