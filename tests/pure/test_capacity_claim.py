"""CapacityClaim's answers, mode by mode, against the stateful stand-in."""

from __future__ import annotations

from tests.fake_ec2 import World
from tests.fake_stack import STACK_ID, FakeStack


def test_probe_takes_the_first_zone_that_has_the_nodes_and_keeps_no_reservation() -> None:
    world = World(free={("usw2-az1", "g6.12xlarge"): 1})
    stack = FakeStack(world)
    claim = stack.create()
    assert claim.ok, claim.reason
    assert claim.data["ZoneName"] == "us-west-2b"
    assert claim.data["SubnetId"] == "subnet-usw2-az2"
    assert world.active() == []


def test_hold_answers_with_the_reservation_as_physical_id() -> None:
    stack = FakeStack(World())
    claim = stack.create(Capacity="hold")
    assert claim.ok, claim.reason
    assert claim.physical_id == claim.data["ReservationId"] == stack.world.active(STACK_ID)[0]["CapacityReservationId"]
