"""``up`` as a user meets it: a stand-in for the ``cdk`` command, a stateful account, scripted failures."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.cli import __main__ as cli
from eks_ray_train.cli import aws_session, capacity
from eks_ray_train.settings import load_settings
from tests.fake_cdk import NO_CAPACITY, NODE_GROUP_ICE, NODE_GROUP_QUOTA, STACKS, CdkWorld, setting
from tests.fake_ec2 import FakeAccount, World, client_error

NETWORK, CLUSTER, TRAINING = STACKS
CDK_JSON = """{
  "app": "python3 app.py",
  "context": {
    "eks-ray-train": {
      "region": null,
      "availability_zones": [],
      "gpu_zone": null,
      "gpu_node_count": 2,
      "capacity": "probe"
    }
  }
}
"""
OREGON = {f"us-west-2{letter}": f"usw2-az{n}" for n, letter in enumerate("abc", 1)}
OHIO = {f"us-east-2{letter}": f"use2-az{n}" for n, letter in enumerate("ab", 1)}


class Up:
    """Runs commands against one CdkWorld and EC2 worlds by region; keeps what was printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        monkeypatch.chdir(tmp_path)
        self.cdk_json = tmp_path / "cdk.json"
        self.cdk_json.write_text(CDK_JSON)
        self.cdk = CdkWorld(tmp_path)
        self.oregon = World(zones=dict(OREGON))
        self.ohio = World(region="us-east-2", zones=dict(OHIO))
        self._capfd = capfd
        self.out = self.err = ""
        monkeypatch.setenv("EKS_RAY_TRAIN_CDK", str(self.cdk.command))
        monkeypatch.setattr(aws_session, "open_session", self.cdk.session)
        worlds = {"us-west-2": self.oregon, "us-east-2": self.ohio}
        monkeypatch.setattr(capacity, "open_account", lambda region: FakeAccount(worlds, home=region or "us-west-2"))

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

    def settings(self, **values: Any) -> None:
        document = json.loads(CDK_JSON)
        document["context"]["eks-ray-train"] |= values
        self.cdk_json.write_text(json.dumps(document))


@pytest.fixture
def up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Up:
    return Up(monkeypatch, tmp_path, capfd)


def test_deploys_in_the_best_place_and_writes_it_into_cdk_json(up: Up) -> None:
    assert up("up", "--yes") == 0
    (call,) = up.cdk.calls
    assert call[:4] == ["deploy", "--all", "--require-approval", "never"]
    assert setting(call, "region") == "us-west-2" and setting(call, "gpu_zone") == "us-west-2a"
    assert json.loads(setting(call, "availability_zones") or "") == sorted(OREGON)
    settings = load_settings(up.cdk_json)
    assert (settings.region, settings.gpu_zone, settings.capacity) == ("us-west-2", "us-west-2a", "probe")
    assert settings.availability_zones == tuple(sorted(OREGON))
    assert "eks-ray-train submit -- --steps 10" in up.out and "us-west-2a" in up.out
    assert not up.oregon.active(), "the proof's reservation is cancelled"


def test_settings_reach_the_cdk_in_a_form_that_the_app_reads(up: Up) -> None:
    assert up("up", "--yes") == 0
    words = up.cdk.calls[0]
    context = dict(w.split("=", 1) for flag, w in itertools.pairwise(words) if flag == "-c")
    settings = load_settings(Path("absent.json"), {"eks-ray-train": {}, **context})
    assert settings.availability_zones == tuple(sorted(OREGON)) and settings.gpu_zone == "us-west-2a"


def test_zone_without_capacity_at_deploy_takes_away_only_the_training_stack_and_tries_the_next(up: Up) -> None:
    up.cdk.refuse("us-west-2a", reason=NODE_GROUP_ICE)
    assert up("up", "--yes", "--json") == 0
    assert up.cdk.verbs() == ["deploy", "destroy", "deploy"]
    assert up.cdk.calls[1][:4] == ["destroy", TRAINING, "--force", "--exclusively"]
    assert setting(up.cdk.calls[2], "gpu_zone") == "us-west-2b"
    assert setting(up.cdk.calls[2], "availability_zones") == setting(up.cdk.calls[0], "availability_zones"), (
        "another list would replace the network's subnets"
    )
    assert [a["verdict"] for a in up.document["attempts"]] == ["refused", "proven"]
    assert up.document["zone"] == "us-west-2b" and up.cdk.statuses()[TRAINING] == "CREATE_COMPLETE"
    assert load_settings(up.cdk_json).gpu_zone == "us-west-2b"


def test_zone_that_refuses_the_proof_costs_no_deploy(up: Up) -> None:
    up.oregon.free[("usw2-az1", "g6.12xlarge")] = 1
    assert up("up", "--yes") == 0
    assert [setting(c, "gpu_zone") for c in up.cdk.calls] == ["us-west-2b"]


def test_network_that_fails_for_capacity_before_a_cluster_exists_needs_no_cleanup_of_training(up: Up) -> None:
    up.cdk.refuse("us-west-2a", stack=NETWORK)
    assert up("up", "--yes") == 0
    assert up.cdk.verbs() == ["deploy", "deploy"]


def test_region_without_capacity_is_taken_away_before_the_next_region(up: Up) -> None:
    for zone in OREGON:
        up.cdk.refuse(zone)
    assert up("up", "--regions", "us-west-2,us-east-2", "--yes") == 0
    verbs = [(c[0], c[1], setting(c, "region")) for c in up.cdk.calls]
    assert verbs[-3:] == [
        ("destroy", "--all", "us-west-2"),
        ("bootstrap", "aws://111122223333/us-east-2", None),
        ("deploy", "--all", "us-east-2"),
    ]
    assert [setting(c, "gpu_zone") for c in up.cdk.calls if c[0] == "deploy"] == [*sorted(OREGON), "us-east-2a"]
    assert up.cdk.statuses("us-west-2") == {} and set(up.cdk.statuses("us-east-2")) == set(STACKS)
    assert load_settings(up.cdk_json).region == "us-east-2"


def test_all_regions_are_those_that_the_account_has_enabled(up: Up) -> None:
    up.oregon.quota["L-DB2E81BA"] = 0
    up.cdk.change(bootstrapped=["us-east-2"])
    assert up("up", "--all-regions", "--yes") == 0
    assert [setting(c, "region") for c in up.cdk.calls] == ["us-east-2"]
    assert "in us-west-2, us-east-2 …" in up.err, "home first, and none that is not enabled"


def test_no_place_at_all_exits_5_with_the_table_and_leaves_nothing(up: Up) -> None:
    for zone in OREGON:
        up.cdk.refuse(zone)
    assert up("up", "--yes") == 5
    assert (
        "no place can start 2 x g6.12xlarge" in up.err
        and "No capacity for 2 x g6.12xlarge in us-west-2a now." in up.err
    )
    assert all(zone in up.err for zone in OREGON)
    assert up.cdk.statuses() == {} and up.cdk.verbs()[-1] == "destroy"
    assert up.cdk_json.read_text() == CDK_JSON, "cdk.json says again what it said"


def test_short_quota_everywhere_exits_5_with_the_command_to_type_and_deploys_nothing(up: Up) -> None:
    up.oregon.quota["L-DB2E81BA"] = 48
    assert up("up", "--yes") == 5
    assert (
        "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-DB2E81BA --desired-value 96 "
        "--region us-west-2" in up.err
    )
    assert up.cdk.calls == [] and up.cdk_json.read_text() == CDK_JSON


def test_quota_failure_at_deploy_stops_and_says_what_stands(up: Up) -> None:
    up.cdk.refuse("us-west-2a", reason=NODE_GROUP_QUOTA)
    assert up("up", "--yes") == 5
    assert up.cdk.verbs() == ["deploy"], "every zone shares the quota"
    assert "quota too small" in up.err and "request-service-quota-increase" in up.err
    assert f"{CLUSTER}: CREATE_COMPLETE" in up.err and "eks-ray-train down" in up.err
    assert load_settings(up.cdk_json).region == "us-west-2", "a second run goes on here, and down finds it"


def test_other_failure_stops_with_cloudformations_reason(up: Up) -> None:
    up.cdk.refuse("us-west-2a", stack=CLUSTER, reason='Resource handler returned message: "role is not authorized"')
    assert up("up", "--yes") == 1
    assert up.cdk.verbs() == ["deploy"]
    assert "role is not authorized" in up.err and CLUSTER in up.err
    assert "Resource creation cancelled" not in up.err


def test_cdk_that_fails_before_cloudformation_stops(up: Up) -> None:
    up.cdk.change(codes={"deploy": [1]})
    assert up("up", "--yes") == 1
    assert "cdk's own message is above" in up.err and "failed before CloudFormation" in up.err


def test_missing_bootstrap_is_done_first_and_its_failure_stops(up: Up) -> None:
    up.cdk.change(bootstrapped=[])
    assert up("up", "--yes") == 0
    assert up.cdk.calls[0] == ["bootstrap", "aws://111122223333/us-west-2"] and up.cdk.verbs() == [
        "bootstrap",
        "deploy",
    ]
    up.cdk.change(bootstrapped=[], stacks={}, codes={"bootstrap": [1]}, calls=[])
    assert up("up", "--yes") == 1
    assert up.cdk.verbs() == ["bootstrap"] and "cdk bootstrap of 111122223333/us-west-2 ended with code 1" in up.err


def test_bootstrap_whose_parameter_may_not_be_read_is_seen_by_its_stack(up: Up) -> None:
    up.cdk.denied.add("GetParameter")
    up.cdk.change(stacks={"us-west-2": {"CDKToolkit": {"status": "CREATE_COMPLETE", "events": []}}})
    assert up("up", "--yes") == 0
    assert up.cdk.verbs() == ["deploy"]


def test_nothing_is_deployed_without_consent(up: Up) -> None:
    assert up("up") == 2
    assert "Add --yes to agree; nothing was deployed" in up.err
    assert "$9.20 for the GPU nodes" in up.err and "12 hours" in up.err
    assert up.cdk.calls == [] and not up.oregon.reservations and up.cdk_json.read_text() == CDK_JSON


def test_typed_no_deploys_nothing_and_typed_yes_deploys(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert up("up") == 2 and up.cdk.calls == []
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert up("up") == 0 and up.cdk.verbs() == ["deploy"]


def test_json_has_one_document_on_stdout_and_cdks_own_words_on_stderr(up: Up) -> None:
    assert up("up", "--yes", "--json") == 0
    assert up.document["exit_code"] == 0 and up.document["region"] == "us-west-2"
    assert "cdk: deploy --all" in up.err and "looking for 2 x g6.12xlarge" in up.err


def test_cdks_progress_is_shown_through(up: Up) -> None:
    assert up("up", "--yes") == 0
    assert "cdk: deploy --all" in up.out


def test_standing_training_stack_is_deployed_in_place_without_a_search(up: Up) -> None:
    up.oregon.quota["L-DB2E81BA"] = 0  # its nodes take it all
    up.cdk.standing(Network="CREATE_COMPLETE", Cluster="CREATE_COMPLETE", Training="UPDATE_ROLLBACK_COMPLETE")
    assert up("up", "--yes") == 0
    (call,) = up.cdk.calls
    assert call[:2] == ["deploy", "--all"] and setting(call, "gpu_zone") is None
    assert not up.oregon.calls


def test_standing_network_keeps_its_zones_and_limits_the_search(up: Up) -> None:
    up.cdk.standing(Network="CREATE_COMPLETE", Cluster="CREATE_COMPLETE")
    up.cdk.subnet_zones = ("us-west-2b", "us-west-2c")
    assert up("up", "--yes") == 0
    (call,) = up.cdk.calls
    assert setting(call, "gpu_zone") == "us-west-2b" and setting(call, "availability_zones") == "[]"


def test_standing_cluster_is_not_taken_away_for_another_region(up: Up) -> None:
    up.cdk.standing(Network="CREATE_COMPLETE", Cluster="CREATE_COMPLETE")
    up.cdk.subnet_zones = ("us-west-2a", "us-west-2b")
    for zone in OREGON:
        up.cdk.refuse(zone)
    assert up("up", "--regions", "us-west-2,us-east-2", "--yes") == 5
    assert "eks-ray-train up --regions us-east-2" in up.err
    assert up.cdk.statuses() == {NETWORK: "UPDATE_COMPLETE", CLUSTER: "UPDATE_COMPLETE"}


def test_run_after_an_interruption_waits_for_cloudformation_and_goes_on_where_it_was(up: Up) -> None:
    up.settings(region="us-west-2", availability_zones=sorted(OREGON), gpu_zone="us-west-2b")
    up.cdk.standing(Network="CREATE_COMPLETE", Cluster="CREATE_IN_PROGRESS")
    up.cdk.settles[CLUSTER] = "CREATE_COMPLETE"
    up.cdk.subnet_zones = tuple(OREGON)
    from eks_ray_train.cli import stack_state

    before, stack_state._POLL_SECONDS = stack_state._POLL_SECONDS, 0.0
    try:
        assert up("up", "--yes") == 0
    finally:
        stack_state._POLL_SECONDS = before
    assert f"waiting for CloudFormation, which still works: {CLUSTER}: CREATE_IN_PROGRESS" in up.err
    assert setting(up.cdk.calls[0], "gpu_zone") == "us-west-2b", "the zone of cdk.json is tried first"


def test_stack_whose_rollback_failed_is_told_with_the_way_out(up: Up) -> None:
    up.cdk.standing(Network="CREATE_COMPLETE", Cluster="CREATE_COMPLETE", Training="UPDATE_ROLLBACK_FAILED")
    assert up("up", "--yes") == 1
    assert "continue-update-rollback" in up.err and up.cdk.calls == []


def test_failing_cleanup_between_zones_stops_with_its_reason(up: Up) -> None:
    up.cdk.refuse("us-west-2a")
    up.cdk.stick(TRAINING, "resource sg-1 has a dependent object")
    assert up("up", "--yes") == 1
    assert up.cdk.verbs() == ["deploy", "destroy"]
    assert "has a dependent object" in up.err and "20 to 40 minutes" in up.err


def test_own_free_reservation_is_used_and_named_in_the_settings(up: Up) -> None:
    held = up.oregon.add_reservation(zone_id="usw2-az3")["CapacityReservationId"]
    assert up("up", "--yes") == 0
    (call,) = up.cdk.calls
    assert setting(call, "capacity") == "reservation" and setting(call, "capacity_reservation_id") == held
    assert setting(call, "gpu_zone") == "us-west-2c"
    assert load_settings(up.cdk_json).capacity_reservation_id == held
    assert up.oregon.count("CreateCapacityReservation") == 0, "what is paid already need not be proven"


def test_hold_that_an_interrupted_deploy_made_is_no_reservation_of_the_users(up: Up) -> None:
    up.settings(capacity="hold")
    tags = [
        {"Key": "eks-ray-train:stack-id", "Value": "arn:aws:cloudformation:us-west-2:1:stack/EksRayTrainTraining/0"}
    ]
    up.oregon.add_reservation(zone_id="usw2-az1", Tags=tags)
    assert up("up", "--yes") == 0
    assert setting(up.cdk.calls[0], "capacity") is None and load_settings(up.cdk_json).capacity == "hold"


def test_given_reservation_decides_the_zone_and_a_misfit_exits_5(up: Up) -> None:
    held = up.oregon.add_reservation(zone_id="usw2-az2")["CapacityReservationId"]
    up.settings(capacity="reservation", capacity_reservation_id=held)
    assert up("up", "--yes") == 0
    assert setting(up.cdk.calls[0], "gpu_zone") == "us-west-2b"
    up.cdk.change(stacks={}, calls=[])
    up.settings(capacity="reservation", capacity_reservation_id=held, gpu_node_count=3)
    assert up("up", "--yes") == 5
    assert "AvailableInstanceCount is 2 available of 2" in up.err and up.cdk.calls == []
    up.settings(capacity="reservation", capacity_reservation_id="cr-00000000000000999")
    assert up("up", "--yes") == 5 and "does not exist in us-west-2" in up.err


def test_capacity_none_is_deployed_without_any_proof(up: Up) -> None:
    up.settings(capacity="none")
    assert up("up", "--yes") == 0
    assert not up.oregon.reservations


def test_caller_who_may_not_reserve_still_deploys_since_the_stack_asks_too(up: Up) -> None:
    up.oregon.errors["CreateCapacityReservation"] = client_error("UnauthorizedOperation")
    assert up("up", "--yes") == 0
    assert up.cdk.verbs() == ["deploy"]


def test_existing_vpc_limits_the_zones_and_its_zones_are_not_rewritten(up: Up) -> None:
    up.settings(existing_vpc_id="vpc-0123456789abcdef0", region="us-west-2")
    up.cdk.subnet_zones = ("us-west-2b", "us-west-2c")
    assert up("up", "--yes") == 0
    (call,) = up.cdk.calls
    assert setting(call, "gpu_zone") == "us-west-2b" and setting(call, "availability_zones") == "[]"
    up.cdk.change(stacks={}, calls=[])
    assert up("up", "--regions", "us-west-2,us-east-2", "--yes") == 2
    assert "existing VPC or cluster" in up.err and up.cdk.calls == []


@pytest.mark.parametrize("argv", [["--regions", ","], ["--regions", "us-west-2", "--all-regions"], ["--nodes", "3"]])
def test_wrong_use_exits_2(up: Up, argv: list[str]) -> None:
    assert up("up", *argv) == 2
    assert up.err.strip() and up.cdk.calls == []


def test_no_cdk_command_and_no_cdk_json_exit_2_with_the_remedy(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKS_RAY_TRAIN_CDK", "no-such-command-here")
    assert up("up", "--yes") == 2
    assert "requirements-cdk.txt" in up.err
    up.cdk_json.unlink()
    assert up("up", "--yes") == 2 and "cdk.json" in up.err


def test_reasons_reach_the_user_without_the_frameworks_noise(up: Up) -> None:
    from eks_ray_train.cli.stack_failure import clean, kind_of

    assert clean(NO_CAPACITY) == "No capacity for 2 x g6.12xlarge in us-west-2a now.\nWhat to do: try again later"
    assert [str(kind_of(text)) for text in (NO_CAPACITY, NODE_GROUP_ICE, NODE_GROUP_QUOTA, "no idea")] == [
        "no capacity",
        "no capacity",
        "quota too small",
        "another failure",
    ]


def test_loading_the_commands_loads_neither_boto3_nor_the_cdk() -> None:
    import subprocess
    import sys

    code = (
        "import sys\nfrom eks_ray_train.cli import init, up, down, scale, teardown\n"
        "print([m for m in ('boto3', 'botocore', 'aws_cdk', 'jsii', 'tqdm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
