"""``capacity find`` and ``capacity check`` as a user meets them, against the stateful stand-in."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.capacity.aws import Aws
from eks_ray_train.capacity.find import find
from eks_ray_train.capacity.model import Need
from eks_ray_train.cli import __main__ as cli
from eks_ray_train.cli import capacity as command
from eks_ray_train.cli.cdk_json import edit
from tests.fake_ec2 import FakeAccount, World, client_error

OREGON = {f"us-west-2{letter}": f"usw2-az{n}" for n, letter in enumerate("abcd", 1)}
OHIO = {f"us-east-2{letter}": f"use2-az{n}" for n, letter in enumerate("abc", 1)}
CDK_JSON = """{
  "app": "python3 app.py",
  "watch": {"include": ["**"], "exclude": ["tests"]},
  "context": {
    "@aws-cdk/core:checkSecretUsage": true,
    "eks-ray-train": {
      "region":   null,
      "availability_zones": [],
      "gpu_zone": null,
      "capacity": "probe"
    }
  }
}
"""


class Cli:
    """Runs a command against worlds; keeps what it printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.chdir(tmp_path)
        self.cdk_json = tmp_path / "cdk.json"
        self.cdk_json.write_text(CDK_JSON)
        self._patch, self._capsys = monkeypatch, capsys
        self.out = self.err = ""

    def __call__(self, worlds: dict[str, World], *argv: str) -> int:
        account = FakeAccount(worlds)
        self._patch.setattr(command, "open_account", lambda region: account)
        code = cli.main(["capacity", *argv])
        shown = self._capsys.readouterr()
        self.out, self.err = shown.out, shown.err
        return code

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(monkeypatch, tmp_path, capsys)


def _oregon(**fields: Any) -> World:
    return World(zones=dict(OREGON), **fields)


def _ohio(**fields: Any) -> World:
    return World(region="us-east-2", zones=dict(OHIO), **fields)


def test_nothing_fits_exits_5_with_the_quota_command_to_type(run: Cli) -> None:
    assert run({"us-west-2": _oregon(quota={"L-DB2E81BA": 48})}, "find") == 5
    assert (
        "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-DB2E81BA "
        "--desired-value 96 --region us-west-2" in run.out
    )
    assert "Traceback" not in run.out + run.err


def test_the_cheaper_region_is_best_and_prices_say_where_they_come_from(run: Cli) -> None:
    worlds = {"us-west-2": _oregon(prices={"us-east-2": 4.0, "us-west-2": 4.6}), "us-east-2": _ohio()}
    assert run(worlds, "find", "--all-regions", "--json") == 0
    assert run.document["best"]["region"] == "us-east-2"
    assert run.document["best"]["price_source"] == "price list"
    worlds["us-west-2"].errors["GetProducts"] = client_error("AccessDeniedException")
    assert run(worlds, "find", "--all-regions", "--json") == 0
    assert run.document["best"]["price_source"] == "catalogue, us-east-1"
    assert run.document["problems"] == ["price: no permission for pricing:GetProducts"]


@pytest.mark.parametrize(
    ("operation", "says"),
    [
        ("DescribeCapacityReservations", "ec2:DescribeCapacityReservations"),
        ("GetSpotPlacementScores", "ec2:GetSpotPlacementScores"),
        ("GetProducts", "pricing:GetProducts"),
        ("DescribeInstances", "ec2:DescribeInstances"),
        ("DescribeInstanceTypeOfferings", "ec2:DescribeInstanceTypeOfferings"),
        ("DescribeAvailabilityZones", "ec2:DescribeAvailabilityZones"),
        ("GetServiceQuota", "servicequotas:GetServiceQuota"),
    ],
)
def test_a_missing_permission_costs_one_column_and_is_named(run: Cli, operation: str, says: str) -> None:
    world = _oregon(errors={operation: client_error("UnauthorizedOperation")})
    code = run({"us-west-2": world}, "find")
    assert f"no permission for {says}" in run.out
    decisive = operation not in ("GetSpotPlacementScores", "GetProducts")
    assert code == (1 if decisive else 0)


def test_probe_says_what_it_costs_and_needs_consent(run: Cli) -> None:
    world = _oregon()
    assert run({"us-west-2": world}, "find", "--probe") == 2
    assert "about $0.15" in run.err and "--yes" in run.err
    assert not world.reservations


def test_probe_stops_at_the_first_zone_that_has_the_nodes(run: Cli) -> None:
    world = _oregon(free={("usw2-az1", "g6.12xlarge"): 1})
    assert run({"us-west-2": world}, "find", "--probe", "--yes", "--json") == 0
    verdicts = {c["zone_id"]: c["verdict"] for c in run.document["candidates"]}
    assert verdicts == {"usw2-az2": "proven", "usw2-az3": "likely", "usw2-az4": "likely", "usw2-az1": "refused"}
    assert not world.active() and len(world.reservations) == 1


def test_probe_answers_what_the_quota_could_not(run: Cli) -> None:
    world = _oregon(errors={"GetServiceQuota": client_error("AccessDeniedException")})
    assert run({"us-west-2": world}, "find", "--probe", "--yes") == 0


def test_cancellation_that_fails_once_is_tried_again_and_leaves_no_reservation(run: Cli) -> None:
    world = _oregon()
    world.errors["CancelCapacityReservation"] = [client_error("InvalidParameterValue")]
    assert run({"us-west-2": world}, "find", "--probe", "--yes") == 0
    assert not world.active() and "ends by itself" not in run.err


def test_ctrl_c_during_a_probe_leaves_no_reservation(run: Cli) -> None:
    world = _oregon(errors={"CancelCapacityReservation": [KeyboardInterrupt()]})
    assert run({"us-west-2": world}, "find", "--probe", "--yes") == 130
    assert len(world.reservations) == 1 and not world.active()


def test_the_command_loads_neither_boto3_nor_the_cdk() -> None:
    code = "import sys, eks_ray_train.cli.capacity; print([m for m in ('boto3', 'botocore', 'aws_cdk', 'tqdm') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_write_changes_the_settings_and_no_other_byte(run: Cli) -> None:
    world = _oregon(free={("usw2-az1", "g6.12xlarge"): 0})
    assert run({"us-west-2": world}, "find", "--probe", "--yes", "--write") == 0
    assert run.cdk_json.read_text() == CDK_JSON.replace('"region":   null', '"region":   "us-west-2"').replace(
        '"availability_zones": []', '"availability_zones": ["us-west-2b", "us-west-2c", "us-west-2d"]'
    ).replace(
        '"capacity": "probe"',
        '"capacity": "probe",\n      "gpu_instance_type": "g6.12xlarge",\n      "gpu_node_count": 2',
    )
    assert 'cdk.json: region: null -> "us-west-2"' in run.out


def test_write_names_a_targeted_reservation_and_its_zone_first(run: Cli) -> None:
    from eks_ray_train.settings import load_settings

    world = _oregon(quota={"L-DB2E81BA": 0})
    rid = world.add_reservation(zone_id="usw2-az3")["CapacityReservationId"]
    assert run({"us-west-2": world}, "find", "--write", "--json") == 0
    settings = load_settings(run.cdk_json)
    assert (settings.capacity, settings.capacity_reservation_id) == ("reservation", rid)
    assert settings.availability_zones[0] == "us-west-2c" and len(settings.availability_zones) == 2


def test_write_touches_nothing_where_nothing_fits(run: Cli) -> None:
    assert run({"us-west-2": _oregon(quota={"L-DB2E81BA": 0})}, "find", "--write") == 5
    assert run.cdk_json.read_text() == CDK_JSON


def test_blocks_for_sale_are_listed_with_start_end_and_fee_only_for_types_that_have_them(run: Cli) -> None:
    world = _oregon(quota={"L-417A185B": 384, "L-DB2E81BA": 96})
    offer = {
        "CapacityBlockOfferingId": "cb-0",
        "InstanceType": "p5.48xlarge",
        "AvailabilityZone": "us-west-2a",
        "InstanceCount": 2,
        "StartDate": world.now + timedelta(days=1),
        "EndDate": world.now + timedelta(days=2),
        "CapacityBlockDurationHours": 24,
        "UpfrontFee": "1510.50",
    }
    world.blocks = [offer]
    assert run({"us-west-2": world}, "find", "--instance-type", "p5.48xlarge", "--json") == 0
    (row,) = [c for c in run.document["candidates"] if c["blocks"]]
    assert row["blocks"][0]["fee_usd"] == 1510.5 and row["blocks"][0]["start"] == "2026-11-30T12:00:00"
    assert "$1,510.50 up front" in run.err
    assert run({"us-west-2": world}, "find", "--json") == 0
    assert not any(c["blocks"] for c in run.document["candidates"])


def test_type_that_no_region_offers_exits_5(run: Cli) -> None:
    assert run({"us-west-2": _oregon(offers={"g6.12xlarge": set()})}, "find") == 5
    assert "g6.12xlarge is not offered in us-west-2" in run.out


@pytest.mark.parametrize(
    "argv",
    [
        ["find", "--nodes", "0"],
        ["find", "--regions", ","],
        ["find", "--instance-type", "g4dn.xlarge"],
        ["find", "--regions", "a", "--all-regions"],
        ["check", "lt-0123"],
        ["check", "cr-1"],
        ["check", "cr-0123456789abcdefg"],
        [],
    ],
    ids=lambda argv: " ".join(argv),
)
def test_wrong_use_is_one_message_and_exit_code_2(run: Cli, argv: list[str]) -> None:
    assert run({"us-west-2": _oregon()}, *argv) == 2
    assert run.err.strip() and "Traceback" not in run.err


def test_a_malformed_id_is_refused_before_settings_region_or_account_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from eks_ray_train.cli.__main__ import main

    monkeypatch.chdir(tmp_path)  # no cdk.json
    monkeypatch.setattr("eks_ray_train.cli.capacity.open_account", lambda _: pytest.fail("an account was opened"))
    assert main(["capacity", "check", "cr-1"]) == 2
    error = capsys.readouterr().err
    assert "'cr-1'" in error and "cr-0123456789abcdef0" in error and "region" not in error


def test_check_tells_fit_and_misfit(run: Cli) -> None:
    world = _oregon()
    rid = world.add_reservation()["CapacityReservationId"]
    assert run({"us-west-2": world}, "check", rid) == 0
    assert f"set capacity to reservation and capacity_reservation_id to {rid}" in run.out
    assert run({"us-west-2": world}, "check", rid, "--nodes", "3", "--json") == 5
    assert run.document["misfits"] == [
        {"field": "AvailableInstanceCount", "got": "2 available of 2", "needed": "3 needed"}
    ]
    assert run({"us-west-2": world}, "check", "cr-00000000000000999") == 5


def test_settings_edit_adds_to_an_empty_block() -> None:
    text = edit('{"context": {"eks-ray-train": {}}}', {"region": "us-west-2"})
    assert json.loads(text)["context"]["eks-ray-train"] == {"region": "us-west-2"}


def test_regions_are_asked_at_the_same_time() -> None:
    meeting = threading.Barrier(8, timeout=10)  # breaks unless eight regions are inside at once

    def aws_of(region: str) -> Aws:
        meeting.wait()
        return _oregon().aws()

    need = Need(instance_type="g6.12xlarge", nodes=2, vcpus_per_node=48, quota_code="L-DB2E81BA")
    assert len(find([f"r{n}" for n in range(8)], aws_of, need)) == 8


def test_no_credentials_is_one_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from eks_ray_train.cli.capacity_account import Account
    from eks_ray_train.errors import UsageError

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="no region"):
        Account(None)
    with pytest.raises(UsageError, match="log in"):
        Account("us-west-2")
