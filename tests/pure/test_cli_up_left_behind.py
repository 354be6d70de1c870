"""``up`` and ``capacity find --probe`` when they are ended or refused in the middle of the proof: nothing stays, or it is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.capacity.model import format_time
from eks_ray_train.capacity.reservations import Owner, Purpose
from eks_ray_train.cli.proving import stopped_as_interrupt
from eks_ray_train.settings import load_settings
from tests.fake_cdk import CdkWorld
from tests.fake_ec2 import ACCOUNT, client_error
from tests.pure.test_cli_up import CDK_JSON, OREGON, Up, up

__all__ = ["up"]
REPO = Path(__file__).resolve().parents[2]
FIND = ("capacity", "find", "--probe", "--yes")
EXPIRED = client_error("ExpiredToken", "The security token included in the request is expired")
# EC2 answers slowly once a reservation stands, so that a signal meets it; what stands is told through a file.
_MAIN = """
import sys, time
from pathlib import Path
sys.path.insert(0, {repo!r})
from eks_ray_train.cli import __main__ as cli, aws_session, capacity
from tests.fake_cdk import CdkWorld
from tests.fake_ec2 import FakeAccount, World
class Slow(World):
    def tell(self):
        Path("states").write_text(" ".join(r["State"] for r in self.reservations))
    def pass_time(self, seconds):
        super().pass_time(seconds)
        if self.reservations and not Path("cancelling").exists():
            Path("standing").touch()
            time.sleep(20)
    def _create_capacity_reservation(self, **asked):
        answer = super()._create_capacity_reservation(**asked)
        self.tell()
        return answer
    def _cancel_capacity_reservation(self, **asked):
        answer = super()._cancel_capacity_reservation(**asked)
        self.tell()
        return answer
import signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
world = CdkWorld.__new__(CdkWorld)
world.folder, world.home, world.path = Path.cwd(), "us-west-2", Path.cwd() / "world.json"
world.node_group, world.eks_calls, world.settles, world.subnet_zones, world.denied = {{"desiredSize": 2}}, [], {{}}, (), set()
aws_session.open_session = world.session
slow = Slow(zones={zones!r})
capacity.open_account = lambda region: FakeAccount({{"us-west-2": slow}})
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("argv", [("up", "--yes"), FIND], ids=["up", "find"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda n: n.name)
def test_signal_during_the_proof_cancels_the_reservation(
    tmp_path: Path, number: signal.Signals, argv: tuple[str, ...]
) -> None:
    (tmp_path / "cdk.json").write_text(CDK_JSON)
    world = CdkWorld(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", _MAIN.format(repo=str(REPO), zones=OREGON), *argv],
        cwd=tmp_path,
        env={**os.environ, "EKS_RAY_TRAIN_CDK": str(world.command)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        give_up = time.monotonic() + 60
        while not (tmp_path / "standing").exists():
            assert time.monotonic() < give_up and process.poll() is None
            time.sleep(0.02)
        assert (tmp_path / "states").read_text() == "active"
        (tmp_path / "cancelling").touch()  # EC2 is quick again
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (tmp_path / "states").read_text() == "cancelled"
    assert process.returncode == 130 and "Traceback" not in err
    assert world.verbs() == [], "nothing is deployed after the signal"


def test_only_the_first_signal_interrupts_and_the_handlers_before_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
    seen = []
    with pytest.raises(KeyboardInterrupt), stopped_as_interrupt():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # CI systems and shells send more than one
            os.kill(os.getpid(), signal.SIGHUP)
            seen.append("cleaned up")
    assert seen == ["cleaned up"]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)) == before


def test_a_command_under_nohup_is_not_ended_by_the_terminals_end() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopped_as_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("argv", [("up", "--yes"), FIND], ids=["up", "find"])
def test_credentials_that_end_before_the_cancellation_exit_2_and_name_the_reservation(
    up: Up, argv: tuple[str, ...]
) -> None:
    up.oregon.errors["CancelCapacityReservation"] = EXPIRED
    assert up(*argv) == 2
    (held,) = up.oregon.active()
    assert "log in (aws sso login, or AWS_PROFILE=…)" in up.err and "please report it" not in up.err
    assert held["CapacityReservationId"] in up.err and "us-west-2a" in up.err
    assert f"at most an hour after {format_time(held['EndDate'])} UTC" in up.err
    assert up.cdk.calls == []


@pytest.mark.parametrize("argv", [("up", "--yes"), FIND], ids=["up", "find"])
def test_credentials_that_are_over_before_the_proof_exit_2(up: Up, argv: tuple[str, ...]) -> None:
    up.oregon.errors["CreateCapacityReservation"] = EXPIRED
    assert up(*argv) == 2
    assert "AWS refuses the credentials (ExpiredToken): log in" in up.err
    assert up.cdk.calls == [] and not up.oregon.reservations


@pytest.mark.parametrize("argv", [("up", "--yes"), FIND], ids=["up", "find"])
def test_cancellation_that_is_denied_exits_1_and_names_the_reservation(up: Up, argv: tuple[str, ...]) -> None:
    up.oregon.errors["CancelCapacityReservation"] = client_error("UnauthorizedOperation", "You are not authorized")
    assert up(*argv) == 1
    (held,) = up.oregon.active()
    assert "please report it" not in up.err and "UnauthorizedOperation" in up.err
    assert f"cancel-capacity-reservation --capacity-reservation-id {held['CapacityReservationId']}" in up.err
    assert format_time(held["EndDate"]) in up.err and up.cdk.calls == []


def test_throttled_creation_does_not_stop_up_even_where_ec2_answers_nothing_then(up: Up) -> None:
    describe = up.oregon._describe_capacity_reservations

    def throttled(**asked: Any) -> dict[str, Any]:
        if up.oregon.count("CreateCapacityReservation"):
            raise client_error("RequestLimitExceeded", "Request limit exceeded.")
        return describe(**asked)

    up.oregon._describe_capacity_reservations = throttled  # type: ignore[method-assign]
    up.oregon.errors["CreateCapacityReservation"] = client_error("RequestLimitExceeded", "Request limit exceeded.")
    assert up("up", "--yes") == 0, "the stack asks as well"
    assert up.cdk.verbs() == ["deploy"]


@pytest.mark.parametrize(("argv", "claim"), [(("up", "--yes"), "up"), (FIND, "capacity-find")], ids=["up", "find"])
def test_test_reservation_of_a_killed_run_does_not_count_as_used_quota(
    up: Up, argv: tuple[str, ...], claim: str
) -> None:
    up.oregon.quota["L-DB2E81BA"] = 96
    owner = Owner(stack_id=f"eks-ray-train-cli/{ACCOUNT}", claim=claim)
    end = up.oregon.now + timedelta(minutes=50)
    up.oregon.add_reservation(Tags=owner.tags(Purpose.PROBE), EndDateType="limited", EndDate=end)
    assert up(*argv) == 0
    assert not up.oregon.active()


def test_free_search_cancels_nothing(up: Up) -> None:
    owner = Owner(stack_id=f"eks-ray-train-cli/{ACCOUNT}", claim="capacity-find")
    up.oregon.add_reservation(Tags=owner.tags(Purpose.PROBE))
    up("capacity", "find")
    assert len(up.oregon.active()) == 1 and up.oregon.count("CancelCapacityReservation") == 0


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (CDK_JSON.encode("utf-16"), "cdk.json"),
        (CDK_JSON.replace('"app"', '// c\n "app"').encode(), "cdk.json is not JSON"),
        (CDK_JSON.replace('"eks-ray-train": {', '"eks-ray-train": null, "x": {').encode(), "eks-ray-train"),
        (b'{"app": "x", "context": {}}', "eks-ray-train"),
    ],
    ids=["utf-16", "comment", "null block", "no block"],
)
def test_settings_that_cannot_be_changed_are_told_in_one_line_before_ec2_is_asked(
    up: Up, raw: bytes, said: str
) -> None:
    up.cdk_json.write_bytes(raw)
    assert up("up", "--yes") == 2
    assert said in up.err and up.err.count("\n") == 1
    assert not up.oregon.calls and up.cdk.calls == [] and up.cdk_json.read_bytes() == raw


@pytest.mark.parametrize("closed", ["file", "folder"])
def test_settings_that_may_not_be_written_are_told_in_one_line_before_ec2_is_asked(
    up: Up, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    shut = up.cdk_json if closed == "file" else up.cdk_json.parent
    access = os.access
    # Tests may run as root, whom no mode stops.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).resolve() != shut.resolve() and access(path, mode))
    assert up("up", "--yes") == 2
    assert "cannot be written" in up.err and up.err.count("\n") == 1
    assert not up.oregon.calls and up.cdk.calls == []


def test_byte_order_mark_is_no_fault(up: Up) -> None:
    up.cdk_json.write_bytes(b"\xef\xbb\xbf" + CDK_JSON.encode())
    assert up("up", "--yes") == 0
    assert up.cdk_json.read_bytes().startswith(b"\xef\xbb\xbf")
    assert load_settings(up.cdk_json).gpu_zone == "us-west-2a"


def test_up_after_scale_0_says_that_no_node_runs_and_how_to_have_some(up: Up) -> None:
    up.cdk.standing(Network="CREATE_COMPLETE", Cluster="CREATE_COMPLETE", Training="CREATE_COMPLETE")
    up.cdk.node_group = {"minSize": 0, "desiredSize": 0, "maxSize": 2}
    assert up("up") == 2
    assert "No GPU node runs now, and up starts them only where" in up.err
    assert up("up", "--yes") == 0
    assert "run `eks-ray-train scale N` to have nodes" in up.out and "GPU nodes go to zero at" not in up.out


def test_up_with_nodes_says_when_they_go(up: Up) -> None:
    up.cdk.standing(Network="CREATE_COMPLETE", Cluster="CREATE_COMPLETE", Training="CREATE_COMPLETE")
    assert up("up", "--yes") == 0
    assert "GPU nodes go to zero at" in up.out and "scale N` to have nodes" not in up.out
