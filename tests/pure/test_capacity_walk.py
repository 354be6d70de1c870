"""Random lives of a stack: updates, roll-backs, time and ticks, with faults anywhere. However it went, a deleted stack has
no reservation, and at no time are two holds renewed."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fake_ec2 import Fault, ProcessKilled, World
from tests.fake_stack import STACK_ID, FakeStack

CHANGES: list[dict[str, Any]] = [
    {"NodeCount": "1"},
    {"NodeCount": "3"},
    {"NodeCount": "0"},
    {"InstanceType": "g5.12xlarge"},
    {"InstanceType": "g6.12xlarge"},
    {"Capacity": "hold", "NodeCount": "2"},
    {"Capacity": "probe"},
    {"Capacity": "none"},
    {"PreferredZone": "us-west-2b"},
    {"PreferredZone": ""},
    {"LimitAt": "2026-11-30T12:00:00"},
]
EVENTS = ["Update Claim", "Update Claim again", "Delete Claim", "Tick"]

fault = st.tuples(st.sampled_from(EVENTS), st.integers(0, 8), st.sampled_from(list(Fault)))
update = st.tuples(st.just("update"), st.sampled_from(CHANGES), st.booleans(), st.lists(fault, max_size=2))
wait = st.tuples(st.just("wait"), st.integers(1, 12), st.none(), st.lists(fault, max_size=1))


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(["probe", "hold", "none"]),
    st.dictionaries(st.sampled_from(["usw2-az1", "usw2-az2"]), st.integers(0, 4), max_size=2),
    st.lists(st.one_of(update, wait), max_size=6),
)
def test_a_deleted_stack_has_no_reservation_however_it_lived(mode: str, free: dict[str, int], life: list[Any]) -> None:
    world = World(free={(zone, "g6.12xlarge"): count for zone, count in free.items()}, page=2)
    stack = FakeStack(world)
    if not stack.create(Capacity=mode).ok:
        assert not world.active(STACK_ID)
        return
    for kind, what, later_failure, faults in life:
        for event, index, fault in faults:
            stack.faults.setdefault(event, {})[index] = fault  # type: ignore[index]
        if kind == "update":
            stack.update(later_failure=later_failure, **what)
        else:
            for _ in range(what):
                world.pass_time(600)
                if stack.told["Capacity"] == "hold":
                    try:
                        stack.tick()
                    except (Exception, ProcessKilled):
                        continue  # the schedule comes again
        stack.faults.clear()
        assert stack.claim is not None
        renewed = stack.tick()["renewed"] if stack.told["Capacity"] == "hold" else []
        assert set(renewed) <= {stack.claim.physical_id}
    # What was left by a fault that no event follows ends by itself; what is in use does not.
    stack.pass_hours(1)
    current = {stack.claim.physical_id} if stack.claim else set()
    assert {r["CapacityReservationId"] for r in world.active(STACK_ID)} <= current
    assert stack.delete()
    assert not world.active(STACK_ID)
