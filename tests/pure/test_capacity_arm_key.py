"""A new ArmKey claims capacity again though nothing else changed: what ``scale`` relies on after nodes were taken away."""

from __future__ import annotations

import pytest

from tests.fake_ec2 import World
from tests.fake_stack import FakeStack


def test_claim_asks_for_all_nodes_again_after_the_limit_took_them() -> None:
    stack = FakeStack(World())
    first = stack.create()
    stack.world.terminate()
    again = stack.update(ArmKey="2026-11-29T12:00:00Z")
    assert again.ok and again.data["ZoneName"] == first.data["ZoneName"] and again.data["DesiredNodes"] == "2"
    assert len(stack.world.reservations) == 2 and not stack.world.active()
    assert {r["TotalInstanceCount"] for r in stack.world.reservations} == {2}


@pytest.mark.parametrize("mode", ["probe", "hold"])
def test_claim_asks_for_nothing_while_the_nodes_run(mode: str) -> None:
    stack = FakeStack(World())
    stack.create(Capacity=mode)
    made = len(stack.world.reservations)
    assert stack.update(ArmKey="2026-11-29T12:00:00Z").ok
    assert len(stack.world.reservations) == made


def test_hold_that_ended_with_its_nodes_is_made_anew() -> None:
    stack = FakeStack(World())
    first = stack.create(Capacity="hold")
    stack.world.terminate()
    stack.pass_hours(2)
    assert not stack.world.active(), "unused, it ended by itself"
    again = stack.update(ArmKey="2026-11-29T14:00:00Z")
    assert again.ok and again.physical_id != first.physical_id and again.data["ReservationId"] == again.physical_id
    assert len(stack.world.active()) == 1
