"""``down`` and ``scale``: a stand-in for ``cdk``, CloudFormation and EKS that it changes, scripted failures."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.cli import __main__ as cli
from eks_ray_train.cli import aws_session, leftovers, stack_state
from eks_ray_train.cli.leftovers import Leftover, Report
from eks_ray_train.settings import load_settings
from tests.fake_cdk import NO_CAPACITY, OUTPUTS, STACKS, CdkWorld, setting

NETWORK, CLUSTER, TRAINING = STACKS
CDK_JSON = '{"app": "x", "context": {"eks-ray-train": {"region": "us-west-2", "gpu_node_count": 2}}}'
CLEAN = Report(region="us-west-2", items=())


class Commands:
    """Runs commands; ``report`` is what the look after a destroy finds (its own tests: test_cli_teardown)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        monkeypatch.chdir(tmp_path)
        self.cdk_json = tmp_path / "cdk.json"
        self.cdk_json.write_text(CDK_JSON)
        self.cdk = CdkWorld(tmp_path)
        self.report = CLEAN
        self._capfd = capfd
        self.out = self.err = ""
        monkeypatch.setenv("EKS_RAY_TRAIN_CDK", str(self.cdk.command))
        monkeypatch.setattr(aws_session, "open_session", self.cdk.session)
        monkeypatch.setattr(leftovers, "look", lambda session, region, settings: self.report)
        monkeypatch.setattr(stack_state, "_POLL_SECONDS", 0.0)

    def __call__(self, *argv: str) -> int:
        code = cli.main(list(argv))
        shown = self._capfd.readouterr()
        self.out, self.err = shown.out, shown.err
        assert "Traceback" not in self.out + self.err
        return code

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    def deployed(self, training: str = "CREATE_COMPLETE") -> None:
        self.cdk.standing(Network="CREATE_COMPLETE", Cluster="CREATE_COMPLETE", Training=training)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(monkeypatch, tmp_path, capfd)


# -- down ---------------------------------------------------------------------------------------------------------------
def test_down_destroys_everything_and_looks_what_is_left(run: Commands) -> None:
    run.deployed()
    assert run("down", "--yes") == 0
    (call,) = run.cdk.calls
    assert call[:3] == ["destroy", "--all", "--force"] and setting(call, "region") == "us-west-2"
    assert run.cdk.statuses() == {}
    assert "nothing that costs money is left in us-west-2" in run.out


def test_down_asks_first_and_says_what_happens_to_the_storage(run: Commands) -> None:
    run.deployed()
    assert run("down") == 2
    assert "nothing was destroyed" in run.err and "The checkpoint bucket is kept" in run.err and run.cdk.calls == []
    run.cdk_json.write_text('{"context": {"eks-ray-train": {"region": "us-west-2", "keep_storage": false}}}')
    assert run("down") == 2
    assert "Storage goes too, with every checkpoint in it" in run.err


def test_down_exits_7_where_something_that_costs_money_is_left(run: Commands) -> None:
    run.deployed()
    left = Leftover(kind="NAT gateway", id="nat-1", usd_per_month=32.85, remove="aws ec2 delete-nat-gateway")
    run.report = replace(CLEAN, items=(left,))
    assert run("down", "--yes", "--json") == 7
    assert run.document["exit_code"] == 7 and run.document["left"][0]["id"] == "nat-1"
    assert run.document["destroyed"] == sorted(STACKS) and "cdk: destroy" in run.err


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("resource sg-0a has a dependent object (Service: Ec2, Status Code: 400)", "20 to 40 minutes"),
        ("The vpc 'vpc-1' has dependencies and cannot be deleted.", "teardown check"),
        ("Cluster has deletion protection enabled", "set deletion_protection to false"),
        ("Cluster has nodegroups attached (ResourceInUseException)", "EKS still changes it"),
        ("User: x is not authorized to perform: ec2:DeleteVpc", "allow the action"),
        ("CloudFormation did not receive a response: timed out", "--retain-resources"),
        ("something new", "run `eks-ray-train down` again"),
    ],
)
def test_destroy_that_stops_half_way_names_stack_resource_reason_and_the_way_on(
    run: Commands, reason: str, hint: str
) -> None:
    run.deployed()
    run.cdk.stick(NETWORK, reason)
    assert run("down", "--yes") == 1
    assert f"{NETWORK}: Group (AWS::EC2::SecurityGroup) DELETE_FAILED: " in run.out
    assert reason.split(" (Service")[0] in run.out and hint in run.out
    assert f"still there: {NETWORK}: DELETE_FAILED" in run.out, "the other two are gone"
    assert run.cdk.statuses() == {NETWORK: "DELETE_FAILED"}


def test_destroy_that_stops_half_way_still_lists_what_costs_money(run: Commands) -> None:
    run.deployed()
    run.cdk.stick(CLUSTER, "has a dependent object")
    run.report = replace(CLEAN, items=(Leftover(kind="EKS cluster", id="c", usd_per_month=73.0),))
    assert run("down", "--yes", "--json") == 7
    assert "stopped half-way" in run.document["problem"] and run.document["left"][0]["kind"] == "EKS cluster"


def test_down_again_after_a_stuck_destroy_finishes(run: Commands) -> None:
    run.deployed()
    run.cdk.stick(NETWORK, "has a dependent object")
    assert run("down", "--yes") == 1
    run.cdk.change(stuck={})
    assert run("down", "--yes") == 0 and run.cdk.statuses() == {}


def test_down_without_any_stack_only_looks(run: Commands) -> None:
    assert run("down") == 0
    assert run.cdk.calls == [] and "no stack of this app in us-west-2" in run.out


def test_down_waits_for_an_interrupted_deploy(run: Commands) -> None:
    run.deployed(training="CREATE_IN_PROGRESS")
    run.cdk.settles[TRAINING] = "CREATE_FAILED"
    assert run("down", "--yes") == 0
    assert "waiting for CloudFormation" in run.err and run.cdk.verbs() == ["destroy"]


def test_cdk_that_fails_before_cloudformation_is_told(run: Commands) -> None:
    run.deployed()
    run.cdk.change(codes={"destroy": [1]})
    assert run("down", "--yes") == 1
    assert "CloudFormation shows no failure" in run.out and "failed before CloudFormation" in run.err


def test_blind_look_after_a_good_destroy_is_not_green(run: Commands) -> None:
    run.deployed()
    run.report = replace(CLEAN, unknown={"EBS volume": "no permission for ec2:DescribeVolumes"}, blind=("EBS volume",))
    assert run("down", "--yes") == 1
    assert "no permission for ec2:DescribeVolumes" in run.out


# -- scale --------------------------------------------------------------------------------------------------------------
def _parameter(words: list[str]) -> str:
    return words[words.index("--parameters") + 1]


def test_scale_deploys_the_training_stack_with_the_number_and_a_new_arm_key(run: Commands) -> None:
    run.deployed()
    run.cdk.node_group = {"minSize": 0, "desiredSize": 4, "maxSize": 4}  # as the deploy leaves it
    assert run("scale", "4", "--yes") == 0
    (call,) = run.cdk.calls
    assert call[:4] == ["deploy", TRAINING, "--require-approval", "never"]
    assert setting(call, "gpu_node_count") == "4" and setting(call, "max_hours") is None
    assert re.fullmatch(TRAINING + r":ArmKey=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", _parameter(call))
    assert load_settings(run.cdk_json).gpu_node_count == 4
    assert run.cdk.eks_calls == [], "the group has its nodes already"
    assert OUTPUTS["SpendingLimitAt"] in run.out


def test_scale_hours_change_the_limit_and_are_written(run: Commands) -> None:
    run.deployed()
    assert run("scale", "2", "--hours", "6", "--yes", "--json") == 0
    assert setting(run.cdk.calls[0], "max_hours") == "6" and load_settings(run.cdk_json).max_hours == 6
    assert run.document["limit_at"] == OUTPUTS["SpendingLimitAt"]


def test_scale_to_the_same_number_after_the_limit_starts_the_nodes_that_cloudformation_would_not(run: Commands) -> None:
    run.deployed()
    run.cdk.node_group = {"minSize": 0, "desiredSize": 0, "maxSize": 2}
    assert run("scale", "2", "--yes") == 0
    assert run.cdk.verbs() == ["deploy"], "capacity is claimed again first"
    assert run.cdk.eks_calls == [{"minSize": 0, "desiredSize": 2, "maxSize": 2}]


def test_scale_0_tells_eks_directly_without_deploy_or_question(run: Commands) -> None:
    run.deployed()
    assert run("scale", "0", "--json") == 0
    assert run.cdk.calls == [] and run.cdk.eks_calls == [{"minSize": 0, "desiredSize": 0, "maxSize": 2}]
    assert run.document["limit_at"] is None and load_settings(run.cdk_json).gpu_node_count == 2
    assert run("scale", "0") == 0 and len(run.cdk.eks_calls) == 1, "twice is as good as once"


def test_scale_without_capacity_changes_nothing_and_exits_5(run: Commands) -> None:
    run.deployed()
    run.cdk.refuse("in place", reason=NO_CAPACITY)
    assert run("scale", "8", "--yes") == 5
    assert "No capacity for 2 x g6.12xlarge" in run.err and "restored what was there before" in run.err
    assert run.cdk_json.read_text() == CDK_JSON and run.cdk.eks_calls == []


def test_scale_waits_for_no_nodes_while_a_capacity_block_has_not_started(run: Commands) -> None:
    run.deployed()
    note = "the Capacity Block starts at 2026-12-01T11:30:00 UTC: run `eks-ray-train scale 2` then"
    run.cdk.command.write_text(run.cdk.command.read_text().replace(OUTPUTS["CapacityNote"], note))
    run.cdk.node_group = {"minSize": 0, "desiredSize": 0, "maxSize": 2}
    assert run("scale", "2", "--yes") == 0
    assert run.cdk.eks_calls == [] and note in run.out


def test_scale_asks_before_it_costs_money(run: Commands) -> None:
    run.deployed()
    assert run("scale", "3") == 2
    assert "$13.80 for the GPU nodes" in run.err and run.cdk.calls == [] and run.cdk_json.read_text() == CDK_JSON


def test_scale_without_a_deployment_exits_6(run: Commands) -> None:
    assert run("scale", "2", "--yes") == 6
    assert "eks-ray-train up" in run.err
    run.deployed(training="ROLLBACK_COMPLETE")
    assert run("scale", "0") == 6


def test_scale_of_a_node_group_that_eks_does_not_know_exits_6(run: Commands) -> None:
    run.deployed()
    run.cdk.node_group = {}
    assert run("scale", "0") == 6
    assert "no node group gpu-1 in cluster eks-ray-train" in run.err


def test_scale_names_the_permission_that_is_missing(run: Commands) -> None:
    run.deployed()
    run.cdk.denied.add("UpdateNodegroupConfig")
    assert run("scale", "0") == 1
    assert "no permission for eks:UpdateNodegroupConfig" in run.err


@pytest.mark.parametrize("argv", [["-1"], ["451"], ["two"], ["2", "--hours", "-1"], ["2", "--hours", "8761"], ["0", "--hours", "3"], []])
def test_wrong_use_of_scale_exits_2(run: Commands, argv: list[str]) -> None:
    run.deployed()
    assert run("scale", *argv) == 2
    assert run.err.strip() and run.cdk.calls == []


def test_largest_group_is_allowed(run: Commands) -> None:
    run.deployed()
    assert run("scale", "450", "--yes") == 0 and setting(run.cdk.calls[0], "gpu_node_count") == "450"
