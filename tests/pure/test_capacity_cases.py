"""The reported cases of the capacity area (shared cases, infra.jsonl), each as a test named after its id."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.capacity.handler import answer
from eks_ray_train.cli import __main__ as cli
from eks_ray_train.cli import capacity as command
from tests.fake_ec2 import FakeAccount, World, client_error
from tests.fake_stack import STACK_ID, FakeStack, Outcome, properties

OREGON = {f"us-west-2{letter}": f"usw2-az{n}" for n, letter in enumerate("abcd", 1)}
OHIO = {f"us-east-2{letter}": f"use2-az{n}" for n, letter in enumerate("abc", 1)}
RIGHT = {"zone_id": "usw2-az2", "TotalInstanceCount": 2, "AvailableInstanceCount": 2}


def _both(world: World, **changes: Any) -> list[Outcome]:
    """The early probe's and the claim's ending for the same wish, each as a Create."""
    props = properties(world, **changes)
    stack = FakeStack(world)
    return [
        stack.send("Create Probe", "CapacityProbe", "", props),
        stack.send("Create Claim", "CapacityClaim", "", props),
    ]


def _cli(worlds: dict[str, World], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *argv: str) -> int:
    monkeypatch.chdir(tmp_path)
    account = FakeAccount(worlds)
    monkeypatch.setattr(command, "open_account", lambda region: account)
    return cli.main(["capacity", *argv])


def test_probe_odcr_too_few(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(zones=dict(OREGON))
    held = world.add_reservation(zone_id="usw2-az2", TotalInstanceCount=2, AvailableInstanceCount=1)
    rid = held["CapacityReservationId"]
    endings = _both(world, Capacity="reservation", ReservationId=rid)
    stack = FakeStack(world)
    good = properties(world, Capacity="none")
    first = stack.send("Create Claim", "CapacityClaim", "", good)
    bad = properties(world, Capacity="reservation", ReservationId=rid)
    endings.append(stack.send("Update Claim", "CapacityClaim", first.physical_id, bad, good))
    for ended in endings:
        assert not ended.ok
        assert rid in ended.reason and "1 available" in ended.reason and "2 needed" in ended.reason
    code = _cli({"us-west-2": world}, monkeypatch, tmp_path, "check", rid)
    shown = capsys.readouterr()
    assert code == 5
    assert "1 available" in shown.err and "2 needed" in shown.err


def test_probe_odcr_tenancy_dedicated() -> None:
    world = World(zones=dict(OREGON))
    held = world.add_reservation(**RIGHT, Tenancy="dedicated")
    for ended in _both(world, Capacity="reservation", ReservationId=held["CapacityReservationId"]):
        assert not ended.ok
        assert "Tenancy is dedicated" in ended.reason


def test_probe_odcr_wrong_az() -> None:
    world = World(region="us-east-2", zones=dict(OHIO))
    rid = world.add_reservation(zone_id="use2-az3")["CapacityReservationId"]
    only_a = {"Zones": ["us-east-2a"], "SubnetIds": ["subnet-a"], "Capacity": "reservation", "ReservationId": rid}
    for ended in _both(world, **only_a):
        assert not ended.ok
        assert "us-east-2c" in ended.reason and "us-east-2a" in ended.reason
    # With no zone given the reservation's own is taken.
    claim = _both(world, Capacity="reservation", ReservationId=rid)[1]
    assert claim.ok and claim.data["ZoneName"] == "us-east-2c" and claim.data["SubnetId"] == "subnet-use2-az3"


def test_probe_quota_spot_not_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(zones=dict(OREGON), quota={"L-DB2E81BA": 96})
    world.launch("usw2-az1", "g6.12xlarge", 1, InstanceLifecycle="spot")
    assert _cli({"us-west-2": world}, monkeypatch, tmp_path, "find", "--json") == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert best["quota"] == {"code": "L-DB2E81BA", "limit": 96, "used": 0}
    assert best["verdict"] == "likely"


def test_probe_servicequotas_denied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(zones=dict(OREGON), errors={"GetServiceQuota": client_error("AccessDeniedException")})
    code = _cli({"us-west-2": world}, monkeypatch, tmp_path, "find")
    shown = capsys.readouterr().out
    assert code == 1, "not known is neither good (0) nor none (5)"
    assert "no permission for servicequotas:GetServiceQuota" in shown
    assert "0/?" in shown and "likely" not in shown


def test_probe_type_not_in_az() -> None:
    world = World(zones=dict(OREGON), offers={"g6.12xlarge": {"usw2-az1", "usw2-az2", "usw2-az3"}})
    endings = [
        _both(world, PreferredZone="us-west-2d")[1],
        *_both(world, Zones=["us-west-2d"], SubnetIds=["subnet-d"]),
    ]
    for ended in endings:
        assert not ended.ok
        head = ended.reason.splitlines()[0]
        assert "us-west-2d" in head and "g6.12xlarge" in head
        assert all(f"us-west-2{letter}" in ended.reason for letter in "abc")


def test_probe_offerings_paginated() -> None:
    world = World(zones=dict(OREGON), page=2)
    claim = _both(world, PreferredZone="us-west-2d")[1]
    assert claim.ok, claim.reason
    assert claim.data["ZoneName"] == "us-west-2d"


def test_probe_region_not_opted_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = World(errors={"DescribeAvailabilityZones": client_error("AuthFailure")})
    slow = World(
        region="us-east-2",
        zones=dict(OHIO),
        quota={"L-DB2E81BA": 0},
        errors={"DescribeInstanceTypeOfferings": [client_error("RequestLimitExceeded")]},
    )
    worlds = {"us-west-2": World(zones=dict(OREGON)), "me-south-1": closed, "us-east-2": slow}
    assert _cli(worlds, monkeypatch, tmp_path, "find", "--regions", ",".join(worlds), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    by_region: dict[str, list[dict[str, Any]]] = {}
    for row in found["candidates"]:
        by_region.setdefault(row["region"], []).append(row)
    assert [row["verdict"] for row in by_region["me-south-1"]] == ["not enabled"]
    assert {row["verdict"] for row in by_region["us-east-2"]} == {"quota too small"}, "answered after the retry"
    assert found["best"]["region"] == "us-west-2"


def test_probe_delete_of_unknown_id() -> None:
    for physical_id in ("2026/11/29/[$LATEST]0123456789abcdef", "", "cr-0123456789abcdef0"):
        world = World()
        mine = world.add_reservation()
        event = {
            "RequestType": "Delete",
            "ResourceType": "Custom::CapacityClaim",
            "RequestId": "r",
            "StackId": STACK_ID,
            "LogicalResourceId": "Claim",
            "PhysicalResourceId": physical_id,
            "ResourceProperties": {"NodeCount": "not a number"},
        }
        assert answer(event, world.aws()) == {"PhysicalResourceId": physical_id}
        assert mine["State"] == "active"
        if not physical_id.startswith("cr-"):
            assert world.count("CancelCapacityReservation") == 0


def test_delete_never_cancels_a_reservation_that_is_not_ours() -> None:
    world = World()
    theirs = world.add_reservation(Tags=[{"Key": "team", "Value": "other"}])
    stack = FakeStack(world)
    stack.send("Delete Claim", "CapacityClaim", theirs["CapacityReservationId"], properties(world, Capacity="hold"))
    assert theirs["State"] == "active"


@pytest.mark.parametrize("mode", ["probe", "hold"])
def test_probe_update_keeps_physical_id(mode: str) -> None:
    stack = FakeStack(World(errors={"DescribeAvailabilityZones": []}))
    created = stack.create(Capacity=mode)
    stack.world.errors["DescribeInstanceTypeOfferings"] = client_error("InternalError")
    stack.world.errors["DescribeAvailabilityZones"] = [client_error("InvalidParameterValue")]
    failed = stack.send(
        "Update Claim", "CapacityClaim", created.physical_id, {**stack.told, "NodeCount": "3"}, stack.told
    )
    assert not failed.ok and failed.physical_id == created.physical_id
    del stack.world.errors["DescribeInstanceTypeOfferings"]
    assert stack.update(NodeCount="3").physical_id == created.physical_id
    if mode == "hold":
        replaced = stack.update(InstanceType="g5.12xlarge")
        assert replaced.ok and replaced.physical_id != created.physical_id
        assert [r["CapacityReservationId"] for r in stack.world.active(STACK_ID)] == [replaced.physical_id]
    assert stack.delete()
    assert not stack.world.active(STACK_ID)


def test_lt_open_odcr_not_consumed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(zones=dict(OREGON), quota={"L-DB2E81BA": 96})
    held = world.add_reservation(zone_id="usw2-az3", InstanceMatchCriteria="open")
    assert _cli({"us-west-2": world}, monkeypatch, tmp_path, "find", "--json") == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert best["verdict"] == "reserved"
    assert best["reservation"]["id"] == held["CapacityReservationId"] and best["reservation"]["available"] == 2
    # The deploy goes where those slots are, and spends nothing to find out; the short quota does not block it.
    probe, claim = _both(world)
    assert probe.ok and claim.ok
    assert claim.data["ZoneName"] == "us-west-2c" and claim.data["ReservationId"] == ""
    assert len(world.reservations) == 1


def test_every_reported_case_of_the_capacity_area_has_a_test(shared_dir: Path) -> None:
    lines = (shared_dir / "cases" / "infra.jsonl").read_text().splitlines()
    reported = {
        case["id"]
        for case in map(json.loads, lines)
        if case["area"] == "ec2-capacity" or case["id"].startswith("probe-")
    }
    here: dict[str, Callable[..., None]] = {
        n[5:].replace("_", "-"): f for n, f in globals().items() if n[:5] == "test_"
    }
    synth = {"lt-empty-reservation-target", "lt-resource-group-arn"}  # tests/synth/test_capacity_probe.py
    assert reported <= set(here) | synth, reported - set(here) - synth
