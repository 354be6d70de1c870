"""Exhaustive crash test: every call of every event, in every mode, is failed, throttled, timed out, answered in vain, or
the process is killed at it. Whatever happened, after the event that CloudFormation sends next no reservation of ours
remains that should not; and where no event follows, what remains ends within the hour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from eks_ray_train.capacity.handler import answer
from tests.fake_ec2 import Fault, World
from tests.fake_stack import STACK_ID, FakeStack, properties


@dataclass(frozen=True)
class Scenario:
    """``before`` runs unharmed; then ``event`` (made by ``run``) is hit at one call."""

    name: str
    event: str
    before: Callable[[FakeStack], object]
    run: Callable[[FakeStack], object]
    nothing_follows: bool = False  # a clean-up: CloudFormation has no further event for this resource


def _no(stack: FakeStack) -> None:
    return None


def _hold(stack: FakeStack) -> None:
    stack.create(Capacity="hold")


def _probe(stack: FakeStack) -> None:
    stack.create()


def _user_reservation(stack: FakeStack) -> str:
    return str(stack.world.add_reservation(OwnerId="111122223333")["CapacityReservationId"])


def _reservation(stack: FakeStack) -> None:
    stack.create(Capacity="reservation", ReservationId=_user_reservation(stack))


def _to_g5(stack: FakeStack, later_failure: bool = False) -> None:
    stack.update(later_failure=later_failure, InstanceType="g5.12xlarge")


SCENARIOS = [
    Scenario("create-probe", "Create Claim", _no, lambda s: s.create()),
    Scenario("create-hold", "Create Claim", _no, lambda s: s.create(Capacity="hold")),
    Scenario("create-none", "Create Claim", _no, lambda s: s.create(Capacity="none")),
    Scenario("create-reservation", "Create Claim", _no, _reservation),
    Scenario("grow-probe", "Update Claim", _probe, lambda s: s.update(NodeCount="3")),
    Scenario("shrink-probe", "Update Claim", _probe, lambda s: s.update(NodeCount="1")),
    Scenario("type-probe", "Update Claim", _probe, _to_g5),
    Scenario("grow-hold", "Update Claim", _hold, lambda s: s.update(NodeCount="3")),
    Scenario("shrink-hold", "Update Claim", _hold, lambda s: s.update(NodeCount="1")),
    Scenario("zero-hold", "Update Claim", _hold, lambda s: s.update(NodeCount="0")),
    Scenario("type-hold", "Update Claim", _hold, _to_g5),
    Scenario("hold-to-probe", "Update Claim", _hold, lambda s: s.update(Capacity="probe")),
    Scenario("hold-to-none", "Update Claim", _hold, lambda s: s.update(Capacity="none")),
    Scenario("probe-to-hold", "Update Claim", _probe, lambda s: s.update(Capacity="hold")),
    Scenario(
        "reservation-to-hold", "Update Claim", _reservation, lambda s: s.update(Capacity="hold", ReservationId="")
    ),
    Scenario("roll-back-grow-hold", "Update Claim again", _hold, lambda s: s.update(later_failure=True, NodeCount="3")),
    Scenario(
        "roll-back-shrink-hold", "Update Claim again", _hold, lambda s: s.update(later_failure=True, NodeCount="1")
    ),
    Scenario("roll-back-type-hold", "Update Claim again", _hold, lambda s: _to_g5(s, True)),
    Scenario(
        "roll-back-hold-to-probe", "Update Claim again", _hold, lambda s: s.update(later_failure=True, Capacity="probe")
    ),
    Scenario(
        "roll-back-probe-to-hold", "Update Claim again", _probe, lambda s: s.update(later_failure=True, Capacity="hold")
    ),
    Scenario("clean-up-replaced-hold", "Delete Claim", _hold, _to_g5, nothing_follows=True),
    Scenario("clean-up-after-roll-back", "Delete Claim", _hold, lambda s: _to_g5(s, True), True),
    Scenario("clean-up-hold-to-probe", "Delete Claim", _hold, lambda s: s.update(Capacity="probe"), True),
    Scenario("delete-probe", "Delete Claim", _probe, lambda s: s.delete()),
    Scenario("delete-hold", "Delete Claim", _hold, lambda s: s.delete()),
    Scenario("delete-reservation", "Delete Claim", _reservation, lambda s: s.delete()),
    Scenario("delete-limit", "Delete Limit", _hold, lambda s: s.delete(), nothing_follows=True),
]


def _world() -> World:
    # The first zone is short, so that every Create walks over a refusal; answers come in several pages.
    return World(free={("usw2-az1", "g6.12xlarge"): 1}, page=2)


def _prepare(scenario: Scenario) -> FakeStack:
    stack = FakeStack(_world())
    scenario.before(stack)
    if stack.claim is not None:
        assert stack.claim.ok, stack.claim.reason
    return stack


def _calls(scenario: Scenario) -> int:
    stack = _prepare(scenario)
    scenario.run(stack)
    return stack.seen[scenario.event]


def _should_be_active(stack: FakeStack) -> set[str]:
    deleted = stack.status in ("DELETE_COMPLETE", "ROLLBACK_COMPLETE")
    holding = stack.claim is not None and stack.claim.ok and stack.told["Capacity"] == "hold"
    return {stack.claim.physical_id} if holding and not deleted and stack.claim else set()


def _active(stack: FakeStack) -> set[str]:
    return {held["CapacityReservationId"] for held in stack.world.active(STACK_ID)}


def _assert_nothing_stays(stack: FakeStack, scenario: Scenario, fault: Fault, where: str) -> None:
    if stack.status == "DELETE_FAILED":
        # The user deletes again; but first: had nobody done so, would it have ended by itself?
        _assert_ends_within_the_hour(stack, where)
        assert stack.delete(), where
    extra = _active(stack) - _should_be_active(stack)
    # A roll-back must not fail, so one that AWS never answers keeps what CloudFormation has; nothing follows it.
    blind_roll_back = scenario.event == "Update Claim again" and fault.name.endswith("_ON")
    if scenario.nothing_follows or blind_roll_back:
        _assert_ends_within_the_hour(stack, where)
        extra = set()
    assert not extra, f"{where}: {extra} left"
    # A hold that should live does, unless its own hour is over.
    if not (scenario.nothing_follows or blind_roll_back) and stack.told.get("NodeCount") != "0":
        assert _should_be_active(stack) <= _active(stack), f"{where}: the hold is gone"


def _assert_ends_within_the_hour(stack: FakeStack, where: str) -> None:
    extra = _active(stack) - _should_be_active(stack)
    nodes = max(int(stack.told["NodeCount"]), 3)
    left = [r for r in stack.world.reservations if r["CapacityReservationId"] in extra]
    assert sum(r["TotalInstanceCount"] for r in left) <= nodes, where
    stack.pass_hours(1)
    assert not extra & _active(stack), f"{where}: {extra} lives for more than an hour"


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_no_reservation_is_forgotten_whichever_call_goes_wrong(scenario: Scenario, fault: Fault) -> None:
    calls = _calls(scenario)
    assert calls or "none" in scenario.name
    for index in range(calls):
        stack = _prepare(scenario)
        stack.faults[scenario.event] = {index: fault}
        scenario.run(stack)
        assert scenario.event in stack.seen
        _assert_nothing_stays(stack, scenario, fault, f"{scenario.name}: {fault} at call {index}")


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name.lower())
def test_early_probe_leaves_no_reservation_whichever_call_goes_wrong(fault: Fault) -> None:
    def run(faults: dict[int, Fault]) -> FakeStack:
        stack = FakeStack(_world())
        guard = {"Owner": "c8a1f", "MaxHours": "0"}
        props = properties(stack.world)
        stack.send("Create Guard", "SpendingLimit", "", guard)
        stack.faults["Create Probe"] = faults
        ended = stack.send("Create Probe", "CapacityProbe", "", props)
        if not ended.ok:
            stack.send("Delete Probe", "CapacityProbe", ended.physical_id, props)
            stack.send("Delete Guard", "SpendingLimit", "limit:x:-", guard)
        return stack

    for index in range(run({}).seen["Create Probe"]):
        stack = run({index: fault})
        assert not stack.world.active(STACK_ID), f"{fault} at call {index}"


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name.lower())
def test_a_tick_that_goes_wrong_neither_makes_nor_loses_a_reservation(fault: Fault) -> None:
    def prepare() -> FakeStack:
        stack = FakeStack(_world())
        stack.create(Capacity="hold")
        stack.world.pass_time(1200)
        return stack

    stack = prepare()
    stack.tick()
    for index in range(stack.seen["Tick"]):
        stack = prepare()
        stack.faults["Tick"] = {index: fault}
        before = _active(stack)
        try:
            stack.tick()
        except BaseException as error:
            assert type(error).__name__ in ("ProcessKilled", "ClientError", "ReadTimeoutError"), error
        stack.world.pass_time(600)
        assert _active(stack) == before
        stack.tick()
        stack.pass_hours(3)
        assert _active(stack) == before, "one failed tick must not end a hold in use"


@pytest.mark.parametrize("mode", ["probe", "hold"])
def test_an_event_delivered_twice_reserves_once(mode: str) -> None:
    stack = FakeStack(World())
    first = stack.create(Capacity=mode)
    stack._ids = iter([2])  # the same request id again: Lambda's own retry
    again = stack.send("Create Claim", "CapacityClaim", "", stack.told)
    assert again.ok and again.physical_id == first.physical_id
    assert len(_active(stack)) == (1 if mode == "hold" else 0)


def test_an_orphaned_hold_stops_paying_within_the_hour() -> None:
    stack = FakeStack(World())
    stack.create(Capacity="hold")
    stack.pass_hours(5)
    assert len(_active(stack)) == 1, "renewed while the nodes use it"
    del stack.world.stacks[STACK_ID]
    stack.world.terminate()
    before = stack.world.bill
    stack.world.pass_time(4 * 3600)
    assert not _active(stack)
    assert stack.world.bill - before <= 2 * 3600


def test_a_failed_create_cleans_up_itself_where_no_rollback_follows() -> None:
    cancel_at = [name for name, _ in _create_calls()].index("CancelCapacityReservation")
    stack = FakeStack(World())
    stack.faults["Create Claim"] = {cancel_at: Fault.FAIL}
    ended = stack.send("Create Claim", "CapacityClaim", "", properties(stack.world))
    assert not ended.ok
    assert "could not be cancelled" in ended.reason
    assert not stack.world.active(STACK_ID)


def _create_calls() -> list[tuple[str, dict[str, object]]]:
    world = World()
    event = {
        "RequestType": "Create",
        "ResourceType": "Custom::CapacityClaim",
        "RequestId": "r",
        "StackId": STACK_ID,
        "LogicalResourceId": "Claim",
        "ResourceProperties": properties(world),
    }
    answer(event, world.aws())
    return world.calls
