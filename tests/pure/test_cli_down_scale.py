"""``down`` and ``scale``: a stand-in for ``cdk``, CloudFormation and EKS that it changes, scripted failures."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.cli import __main__ as cli
from eks_ray_train.cli import aws_session, cdk_json, leftovers, stack_state
from eks_ray_train.cli.deployment import Deployment
from eks_ray_train.cli.leftovers import Leftover, Report
from eks_ray_train.settings import load_settings
from tests.fake_cdk import NO_CAPACITY, OUTPUTS, STACKS, CdkWorld, FakeClient, setting
from tests.fake_ec2 import ACCOUNT, client_error

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

    def hold(self, stack: str = TRAINING, *, available: int = 0) -> dict[str, Any]:
        """A reservation that ``stack`` made and its nodes (all but ``available``) run in."""
        arn = f"arn:aws:cloudformation:us-west-2:{ACCOUNT}:stack/{stack}/0a"
        self.cdk.reservations.append(
            {
                "CapacityReservationId": f"cr-{len(self.cdk.reservations):017x}",
                "State": "active",
                "InstanceType": "g6.12xlarge",
                "TotalInstanceCount": 2,
                "AvailableInstanceCount": available,
                "EndDate": datetime(2026, 11, 29, 12, 55, tzinfo=UTC),
                "Tags": [{"Key": "eks-ray-train:stack-id", "Value": arn}],
            }
        )
        return self.cdk.reservations[-1]

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


def test_down_without_any_stack_says_that_it_looked_in_one_region_only(run: Commands) -> None:
    run.cdk.standing(region="us-east-2", Network="CREATE_COMPLETE")
    assert run("down", "--yes") == 0
    assert "no stack of this app in us-west-2; looked only there (cdk.json's region)" in run.out
    assert "set region in cdk.json to that one" in run.out and run.cdk.statuses("us-east-2") != {}
    run.cdk_json.write_text('{"context": {"eks-ray-train": {"region": null}}}')
    assert run("down", "--yes") == 0
    assert "your own region, since cdk.json names none" in run.out


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


@pytest.mark.parametrize("status", ["UPDATE_ROLLBACK_FAILED", "DELETE_FAILED", "ROLLBACK_FAILED", "UPDATE_COMPLETE"])
def test_scale_0_stops_the_nodes_of_a_broken_stack_too(run: Commands, status: str) -> None:
    run.deployed(training=status)
    held = run.hold()
    assert run("scale", "0") == 0, run.err
    assert run.cdk.eks_calls == [{"minSize": 0, "desiredSize": 0, "maxSize": 2}] and held["State"] == "cancelled"


def test_scale_0_does_not_wait_for_cloudformation_and_says_that_it_goes_on(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.deployed(training="UPDATE_IN_PROGRESS")
    held = run.hold()
    monkeypatch.setattr(Deployment, "settle", lambda *_: pytest.fail("waits"))
    assert run("scale", "0") == 0, run.err
    assert [call["desiredSize"] for call in run.cdk.eks_calls] == [0]
    assert "UPDATE_IN_PROGRESS" in run.err and "run `eks-ray-train scale 0` once more" in run.err
    assert held["State"] == "active", "the update that goes on still needs it"


def test_scale_0_finds_the_nodes_of_a_stack_that_never_came_to_have_outputs(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.deployed(training="ROLLBACK_FAILED")
    world = run.cdk.read()
    world["stacks"]["us-west-2"][TRAINING]["outputs"] = {}
    run.cdk.change(stacks=world["stacks"])
    assert run("scale", "0") == 6 and "no node group, so no GPU node" in run.err and run.cdk.eks_calls == []
    asked: list[tuple[str, str]] = []
    made = {
        "LogicalResourceId": "Group",
        "PhysicalResourceId": "eks-ray-train/gpu-7",
        "ResourceType": "AWS::EKS::Nodegroup",
        "ResourceStatus": "DELETE_FAILED",
        "Timestamp": datetime(2026, 11, 29, tzinfo=UTC),
    }
    monkeypatch.setattr(FakeClient, "on_describe_stack_resources", lambda *_, StackName: {"StackResources": [made]})
    describe = FakeClient.on_describe_nodegroup

    def seen(client: FakeClient, clusterName: str, nodegroupName: str) -> dict[str, Any]:
        asked.append((clusterName, nodegroupName))
        return describe(client, clusterName, nodegroupName)

    monkeypatch.setattr(FakeClient, "on_describe_nodegroup", seen)
    assert run("scale", "0") == 0, run.err
    assert asked == [("eks-ray-train", "gpu-7")] and [call["desiredSize"] for call in run.cdk.eks_calls] == [0]


def test_scale_0_while_eks_still_updates_the_group_exits_6(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: Any, **__: Any) -> None:
        raise client_error("ResourceInUseException", "Nodegroup has an update in progress")

    run.deployed(training="UPDATE_ROLLBACK_FAILED")
    held = run.hold()
    monkeypatch.setattr(FakeClient, "on_update_nodegroup_config", busy)
    assert run("scale", "0") == 6
    assert "run the command again in some minutes" in run.err and held["State"] == "active"


def test_scale_0_cancels_the_stacks_own_reservations_and_no_others(run: Commands) -> None:
    run.deployed()
    ours, theirs, ended = run.hold(), run.hold("EksRayTrainTraining-other"), run.hold()
    ended["State"] = "expired"
    assert run("scale", "0", "--json") == 0
    assert [r["State"] for r in (ours, theirs, ended)] == ["cancelled", "active", "expired"]
    assert f"reservation {ours['CapacityReservationId']} (2 x g6.12xlarge) is cancelled" in run.err
    late = run.hold(available=2)
    assert run("scale", "0") == 0 and late["State"] == "cancelled", "also where the group has 0 nodes already"


def test_scale_0_says_what_goes_on_costing_where_it_may_not_cancel(run: Commands) -> None:
    run.deployed()
    held = run.hold()
    run.cdk.denied.add("CancelCapacityReservation")
    assert run("scale", "0") == 1
    assert [call["desiredSize"] for call in run.cdk.eks_calls] == [0], "the nodes go whatever becomes of the hold"
    id_ = held["CapacityReservationId"]
    assert f"reservation {id_} could not be cancelled (no permission for ec2:CancelCapacityReservation)" in run.err
    assert "2 x g6.12xlarge cost their price" in run.err and "end date 2026-11-29T12:55:00 UTC" in run.err
    assert f"cancel-capacity-reservation --capacity-reservation-id {id_} --region us-west-2" in run.err


def test_scale_0_needs_to_see_reservations_only_where_a_hold_is_set(run: Commands) -> None:
    run.deployed()
    run.cdk.denied.add("DescribeCapacityReservations")
    assert run("scale", "0") == 0
    run.cdk_json.write_text('{"context": {"eks-ray-train": {"region": "us-west-2", "capacity": "hold"}}}')
    assert run("scale", "0") == 1
    assert "no permission for ec2:DescribeCapacityReservations" in run.err and "at most two hours" in run.err


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


@pytest.mark.parametrize("text", ['{"app": "x"}', '{"context": {}}'])
def test_scale_reads_cdk_json_as_the_write_will_before_anything_is_deployed(run: Commands, text: str) -> None:
    run.deployed()
    run.cdk_json.write_text(text)  # good for the settings, which are then all defaults
    assert run("scale", "4", "--yes") == 2
    assert run.err.count("\n") == 1 and "cdk.json" in run.err and run.cdk.calls == run.cdk.eks_calls == []


def test_scale_into_a_folder_without_permission_exits_2_before_it_asks(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.deployed()
    folder = run.cdk_json.parent
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder)
    assert run("scale", "4") == 2
    assert f"no permission for {folder}" in run.err and "Add --yes" not in run.err and run.cdk.calls == []


def test_scale_tells_eks_also_where_cdk_json_cannot_be_written_in_the_end(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    run.deployed()
    run.cdk.node_group = {"minSize": 0, "desiredSize": 0, "maxSize": 2}
    monkeypatch.setattr(cdk_json.tempfile, "mkstemp", full)
    assert run("scale", "4", "--yes") == 1
    assert [call["desiredSize"] for call in run.cdk.eks_calls] == [4]
    assert "No space left on device" in run.err
    assert "gpu_node_count 4" in run.err


def test_scale_writes_the_number_that_was_deployed_where_eks_is_busy(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: Any, **__: Any) -> None:
        raise client_error("ResourceInUseException", "Nodegroup has an update in progress")

    run.deployed()
    monkeypatch.setattr(FakeClient, "on_update_nodegroup_config", busy)
    assert run("scale", "4", "--yes") == 6 and load_settings(run.cdk_json).gpu_node_count == 4


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
