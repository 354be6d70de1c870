"""What a hold costs, and when the spending limit is, after ``scale``: empty slots, roll-backs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from eks_ray_train.capacity.model import format_time
from tests.fake_ec2 import START, World
from tests.fake_stack import STACK_ID, FakeStack


def _scaled_to_0(minutes: int, limit: str = "") -> FakeStack:
    """Two nodes whose hold is renewed; after ``minutes`` EKS takes them away, and the template still says 2."""
    stack = FakeStack(World())
    stack.create(Capacity="hold", LimitAt=limit)
    stack.pass_hours(minutes / 60)
    stack.world.terminate()
    stack.world.bill = 0.0
    return stack


@pytest.mark.parametrize("minutes", [0, 10, 30, 50, 180])
def test_slots_that_scale_0_emptied_are_paid_for_less_than_an_hour_also_in_a_young_stack(minutes: int) -> None:
    stack = _scaled_to_0(minutes)
    assert stack.tick()["renewed"] == []
    stack.pass_hours(3)
    assert not stack.world.active(STACK_ID)
    assert stack.world.bill <= 2 * 3600, "two slots, at most an hour"


def test_hold_whose_nodes_are_replaced_one_after_the_other_stays() -> None:
    stack = FakeStack(World())
    stack.create(Capacity="hold")
    for _ in range(4):
        stack.world.terminate()
        stack.pass_hours(1 / 6)
        assert stack.claim is not None
        stack.world.launch(stack.claim.data["ZoneId"], "g6.12xlarge", 2, into=stack.claim.physical_id)
        stack.pass_hours(1 / 2)
    assert len(stack.world.active(STACK_ID)) == 1


def test_hold_of_a_template_without_nodes_is_cancelled_at_the_next_tick() -> None:
    stack = FakeStack(World())
    first = stack.create(Capacity="hold")
    stack.update(NodeCount="0")
    assert [r["State"] for r in stack.world.reservations] == ["active"], "the nodes are still in it"
    stack.world.terminate()
    assert stack.tick()["cancelled"] == [first.physical_id] and not stack.world.active(STACK_ID)


class _Limited:
    """A stack whose outputs tell its limit, as CloudFormation shows them: of the last update that was completed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hours: int = 12) -> None:
        self.world = World()
        self.stack = FakeStack(self.world)
        self.hours = hours
        self.output = ""
        describe = World._describe_stacks

        def with_output(world: World, StackName: str) -> dict[str, Any]:
            answer = describe(world, StackName)
            if self.output:
                answer["Stacks"][0]["Outputs"] = [{"OutputKey": "SpendingLimitAt", "OutputValue": self.output}]
            return answer

        monkeypatch.setattr(World, "_describe_stacks", with_output)
        self.output = self.send("Create", "CREATE_IN_PROGRESS", 2)
        self.stack.status = "CREATE_COMPLETE"

    def send(self, request: str, status: str, nodes: int, before: int | None = None) -> str:
        self.stack.status = status
        told = {"Owner": "o", "MaxHours": str(self.hours), "NodeCount": str(nodes), "ArmKey": str(nodes)}
        old = None if before is None else {**told, "NodeCount": str(before), "ArmKey": str(before)}
        id_ = "" if request == "Create" else "limit:x"
        ended = self.stack.send(f"{request} Limit", "SpendingLimit", id_, told, old)
        assert ended.ok, ended.reason
        return ended.data["LimitAt"]

    def fail_to_scale_at(self, hours: float) -> tuple[str, str]:
        """The limit that `scale 4` asked for, and the one after its roll-back."""
        self.world.pass_time(hours * 3600)
        asked = self.send("Update", "UPDATE_IN_PROGRESS", 4, 2)
        self.world.pass_time(600)
        return asked, self.send("Update", "UPDATE_ROLLBACK_IN_PROGRESS", 2, 4)


def _soon(text: str, hours: float) -> bool:
    return abs(datetime.fromisoformat(text + "+00:00") - START - timedelta(hours=hours)) < timedelta(minutes=1)


def test_a_scale_that_fails_leaves_the_limit_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = _Limited(monkeypatch)
    asked, after = limited.fail_to_scale_at(10)
    assert _soon(asked, 22), "an update that works counts anew"
    assert after == limited.output == format_time(START + timedelta(hours=12))


@pytest.mark.parametrize("hours", [11.5, 13])
def test_a_limit_that_is_over_or_about_to_be_is_armed_anew_so_that_the_rollback_can_finish(
    monkeypatch: pytest.MonkeyPatch, hours: float
) -> None:
    _, after = _Limited(monkeypatch).fail_to_scale_at(hours)
    assert _soon(after, hours + 10 / 60 + 12)


@pytest.mark.parametrize("output", ["", "not a time"])
def test_a_rollback_that_cannot_know_the_limit_arms_it_anew(monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    limited = _Limited(monkeypatch)
    limited.output = output
    assert _soon(limited.fail_to_scale_at(10)[1], 22 + 10 / 60)


def test_a_rollback_to_no_limit_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _Limited(monkeypatch, hours=0).fail_to_scale_at(10) == ("", "")


def test_the_output_that_tells_the_limit_has_one_name() -> None:
    from eks_ray_train.capacity.stack import LIMIT_OUTPUT
    from eks_ray_train.cli.spending import OUTPUT

    assert LIMIT_OUTPUT == OUTPUT
