"""What `up` and `capacity find --write` leave in cdk.json while somebody edits it, and where stacks stand."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.cli import __main__ as cli
from eks_ray_train.cli import aws_session, capacity
from eks_ray_train.cli.deployment import Deployment
from eks_ray_train.settings import load_settings
from tests.fake_cdk import CdkWorld
from tests.fake_ec2 import FakeAccount, World

CDK_JSON = """{
  "app": "python3 app.py",
  "context": {
    "eks-ray-train": {
      "region": null,
      "gpu_node_count": 2
    }
  }
}
"""
OREGON = {f"us-west-2{letter}": f"usw2-az{n}" for n, letter in enumerate("ab", 1)}
OHIO = {f"us-east-2{letter}": f"use2-az{n}" for n, letter in enumerate("ab", 1)}


class Commands:
    """Runs commands against one CdkWorld and EC2 in two regions; keeps what was printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        monkeypatch.chdir(tmp_path)
        self.cdk_json = tmp_path / "cdk.json"
        self.cdk_json.write_text(CDK_JSON)
        self.cdk = CdkWorld(tmp_path)
        self._capfd = capfd
        self.out = self.err = ""
        monkeypatch.setenv("EKS_RAY_TRAIN_CDK", str(self.cdk.command))
        monkeypatch.setattr(aws_session, "open_session", self.cdk.session)
        worlds = {"us-west-2": World(zones=dict(OREGON)), "us-east-2": World(region="us-east-2", zones=dict(OHIO))}
        monkeypatch.setattr(capacity, "open_account", lambda region: FakeAccount(worlds, home=region or "us-west-2"))

    def __call__(self, *argv: str) -> int:
        code = cli.main(list(argv))
        shown = self._capfd.readouterr()
        self.out, self.err = shown.out, shown.err
        assert "Traceback" not in self.out + self.err and "unexpected" not in self.err
        return code


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(monkeypatch, tmp_path, capfd)


def _during_each_deploy(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    deploy = Deployment.deploy

    def edited(self: Deployment, region: str, settings: Mapping[str, Any], stacks: Sequence[str] = ("--all",)) -> Any:
        then()
        return deploy(self, region, settings, stacks)

    monkeypatch.setattr(Deployment, "deploy", edited)


# -- up -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_up_without_a_place_leaves_every_byte_of_cdk_json(run: Commands, line_end: str) -> None:
    before = b"\xef\xbb\xbf" + CDK_JSON.replace("\n", line_end).encode()
    run.cdk_json.write_bytes(before)
    for zone in OREGON:
        run.cdk.refuse(zone)
    assert run("up", "--yes") == 5
    assert run.cdk.verbs().count("deploy") == 2 and run.cdk_json.read_bytes() == before


def test_edits_of_cdk_json_during_up_stay_where_no_place_was_found(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mine() -> None:
        document = json.loads(run.cdk_json.read_text())
        document["context"]["eks-ray-train"]["gpu_instance_type"] = "g5.12xlarge"
        document["context"]["other-app"] = "mine"
        run.cdk_json.write_text(json.dumps(document, indent=2))

    for zone in OREGON:
        run.cdk.refuse(zone)
    _during_each_deploy(monkeypatch, mine)
    assert run("up", "--yes") == 5
    assert json.loads(run.cdk_json.read_text())["context"] == {
        "eks-ray-train": {"region": None, "gpu_node_count": 2, "gpu_instance_type": "g5.12xlarge"},
        "other-app": "mine",
    }


def test_up_still_says_why_no_place_was_found_where_cdk_json_cannot_be_put_back(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    for zone in OREGON:
        run.cdk.refuse(zone)
    calls: list[int] = []

    def broken_at_last() -> None:
        calls.append(1)
        if len(calls) == len(OREGON):
            run.cdk_json.write_text("{")

    _during_each_deploy(monkeypatch, broken_at_last)
    assert run("up", "--yes") == 5
    assert "no place can start" in run.err and "cdk.json still names the place that was tried last" in run.err


def test_up_that_cannot_write_cdk_json_deploys_nothing_and_says_what_stands(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    assert run("up", "--yes") == 2
    assert "cdk.json cannot be written (Permission denied)" in run.err and "no stack stands in us-west-2" in run.err
    assert run.cdk.calls == [] and run.cdk_json.read_text() == CDK_JSON


# -- capacity find --write ----------------------------------------------------------------------------------------------
def test_find_does_not_write_a_region_away_from_stacks_that_stand(run: Commands) -> None:
    assert run("up", "--yes") == 0
    before = run.cdk_json.read_text()
    assert run("capacity", "find", "--regions", "us-east-2", "--write") == 2
    assert "EksRayTrainTraining: CREATE_COMPLETE in us-west-2" in run.err
    assert "with region us-east-2 in cdk.json" in run.err and "run `eks-ray-train down` first" in run.err
    assert run.cdk_json.read_text() == before and load_settings(run.cdk_json).region == "us-west-2"
    assert run("capacity", "find", "--write") == 0, "the same region is no move"


def test_find_writes_another_region_where_nothing_stands_or_nothing_can_be_read(run: Commands) -> None:
    run.cdk_json.write_text(CDK_JSON.replace("null", '"us-west-2"'))
    assert run("capacity", "find", "--regions", "us-east-2", "--write") == 0
    assert load_settings(run.cdk_json).region == "us-east-2" and "not checked" not in run.err
    run.cdk.denied.add("DescribeStacks")
    assert run("capacity", "find", "--regions", "us-west-2", "--write") == 0
    assert "whether stacks of this app stand in us-east-2 was not checked" in run.err
    assert load_settings(run.cdk_json).region == "us-west-2"
