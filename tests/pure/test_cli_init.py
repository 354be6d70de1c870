"""``init``: who calls, from where, and what is written into cdk.json."""

from __future__ import annotations

import argparse
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.cli import __main__ as cli
from eks_ray_train.cli import aws_session, consent, init
from eks_ray_train.settings import load_settings
from tests.fake_cdk import CdkWorld, FakeClient, FakeSession
from tests.fake_ec2 import ACCOUNT, Client, World, client_error

ADDRESS = "9.9.9.9"
SSO = "AWSReservedSSO_Admin_0a1b"
SSO_ARN = f"arn:aws:iam::{ACCOUNT}:role/aws-reserved/sso.amazonaws.com/eu-west-1/{SSO}"
CDK_JSON = """{
  "app": "python3 app.py",
  "context": {
    "@aws-cdk/core:checkSecretUsage": true,
    "eks-ray-train": {
      "cluster_name": "eks-ray-train",
      "region":   null,
      "availability_zones": [],
      "gpu_zone": null,
      "admin_principals": [],
      "public_access_cidrs": []
    }
  }
}
"""


class Session(FakeSession):
    """Zones from a World, the role from ``roles``."""

    ec2: World
    roles: dict[str, str]

    def client(self, service: str, region: str | None = None) -> Any:
        if service == "ec2":
            return Client(self.ec2, "ec2")
        if service == "iam":
            return argparse.Namespace(get_role=self._role)
        return FakeClient(self.world, service, region or self.home)

    def _role(self, RoleName: str) -> dict[str, Any]:
        if RoleName not in self.roles:
            raise client_error("AccessDenied", "not authorized to perform: iam:GetRole", "GetRole")
        return {"Role": {"Arn": self.roles[RoleName]}}


class Init:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.chdir(tmp_path)
        self.cdk_json = tmp_path / "cdk.json"
        self.cdk_json.write_text(CDK_JSON)
        self.world = CdkWorld(tmp_path)
        self.ec2 = World(
            zones={"us-west-2a": "usw2-az1", "us-west-2b": "usw2-az2", "us-west-2-lax-1a": "usw2-lax1-az1"},
            zone_types={"us-west-2-lax-1a": "local-zone"},
        )
        self.arn = f"arn:aws:sts::{ACCOUNT}:assumed-role/Builder/me"
        self.roles = {"Builder": f"arn:aws:iam::{ACCOUNT}:role/teams/Builder", SSO: SSO_ARN}
        self.fetch: Callable[[], str] = lambda: f"{ADDRESS}"
        self._capsys = capsys
        self.out = self.err = ""
        monkeypatch.setattr(aws_session, "open_session", self._session)
        monkeypatch.setattr(init, "fetch_address", lambda: self.fetch())

    def _session(self, region: str | None) -> Session:
        session = Session(self.world, region or "us-west-2", self.arn)
        session.ec2, session.roles = self.ec2, self.roles
        return session

    def __call__(self, *argv: str) -> int:
        code = cli.main(["init", *argv])
        shown = self._capsys.readouterr()
        self.out, self.err = shown.out, shown.err
        assert "Traceback" not in self.out + self.err
        return code

    def block(self, **values: Any) -> None:
        document = json.loads(CDK_JSON)
        document["context"]["eks-ray-train"] |= values
        self.cdk_json.write_text(json.dumps(document, indent=2))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Init:
    return Init(monkeypatch, tmp_path, capsys)


def test_writes_region_zones_role_and_address_and_no_other_byte(run: Init) -> None:
    assert run("--yes") == 0
    assert run.cdk_json.read_text() == CDK_JSON.replace('"region":   null', '"region":   "us-west-2"').replace(
        '"availability_zones": []', '"availability_zones": ["us-west-2a", "us-west-2b"]'
    ).replace('"admin_principals": []', f'"admin_principals": ["arn:aws:iam::{ACCOUNT}:role/teams/Builder"]').replace(
        '"public_access_cidrs": []', f'"public_access_cidrs": ["{ADDRESS}/32"]'
    )
    settings = load_settings(run.cdk_json)
    assert settings.admin_principals == (f"arn:aws:iam::{ACCOUNT}:role/teams/Builder",)


def test_shows_the_change_and_writes_nothing_where_nobody_can_agree(run: Init) -> None:
    assert run() == 2
    assert '+      "region":   "us-west-2",' in run.out and '-      "region":   null,' in run.out
    assert "cdk.json is as it was" in run.err and run.cdk_json.read_text() == CDK_JSON


def test_second_run_changes_nothing(run: Init) -> None:
    assert run("--yes") == 0
    before = run.cdk_json.read_text()
    assert run() == 0, "nothing to agree to"
    assert "nothing to change" in run.out and run.cdk_json.read_text() == before


def test_sso_role_becomes_the_role_arn_with_its_path(run: Init) -> None:
    run.arn = f"arn:aws:sts::{ACCOUNT}:assumed-role/{SSO}/me@example.com"
    assert run("--yes", "--json") == 0
    assert json.loads(run.out)["principal"] == SSO_ARN
    assert load_settings(run.cdk_json).admin_principals == (SSO_ARN,)


def test_iam_user_is_taken_as_it_is(run: Init) -> None:
    run.arn = f"arn:aws:iam::{ACCOUNT}:user/teams/me"
    assert run("--yes") == 0
    assert load_settings(run.cdk_json).admin_principals == (run.arn,)


@pytest.mark.parametrize(
    ("arn", "says"),
    [
        (f"arn:aws:iam::{ACCOUNT}:root", "the account's root user"),
        (f"arn:aws:sts::{ACCOUNT}:federated-user/me", "a federated user"),
    ],
)
def test_root_and_federated_users_are_refused_with_the_remedy(run: Init, arn: str, says: str) -> None:
    run.arn = arn
    assert run("--yes") == 2
    assert says in run.err and "use a role" in run.err and run.cdk_json.read_text() == CDK_JSON


def test_role_that_may_not_be_read_is_an_error_unless_somebody_administers_already(run: Init) -> None:
    run.roles.clear()
    assert run("--yes") == 1
    assert "no permission for iam:GetRole" in run.err and "admin_principals" in run.err
    assert run.cdk_json.read_text() == CDK_JSON
    other = f"arn:aws:iam::{ACCOUNT}:role/Ops"
    run.block(admin_principals=[other])
    assert run("--yes") == 0
    assert load_settings(run.cdk_json).admin_principals == (other,) and "stays as it is" in run.err


def test_principals_and_networks_that_are_set_stay(run: Init) -> None:
    other = f"arn:aws:iam::{ACCOUNT}:role/Ops"
    run.block(admin_principals=[other], public_access_cidrs=["198.51.100.0/24"])
    assert run("--yes") == 0
    settings = load_settings(run.cdk_json)
    assert settings.admin_principals[0] == other and len(settings.admin_principals) == 2
    assert settings.public_access_cidrs == ("198.51.100.0/24", f"{ADDRESS}/32")


def test_address_inside_a_network_that_is_set_adds_nothing(run: Init) -> None:
    run.block(public_access_cidrs=["9.9.9.0/24"])
    assert run("--yes") == 0
    assert load_settings(run.cdk_json).public_access_cidrs == ("9.9.9.0/24",)


def test_private_asks_for_no_address_and_closes_the_endpoint(run: Init) -> None:
    def never() -> str:
        raise AssertionError("no address is needed")

    run.fetch = never
    run.block(public_access_cidrs=["198.51.100.0/24"])
    assert run("--private", "--yes") == 0
    assert load_settings(run.cdk_json).public_access_cidrs == () and "tunnel" in run.out


def _fails() -> str:
    raise TimeoutError("timed out")


@pytest.mark.parametrize("fetch", [_fails, lambda: "<html>proxy</html>", lambda: "10.0.0.7", lambda: "2001:db8::1"])
def test_address_that_is_not_found_says_the_ways_out_and_writes_nothing(run: Init, fetch: Callable[[], str]) -> None:
    run.fetch = fetch
    assert run("--yes") == 1
    assert "init --private" in run.err and "public_access_cidrs" in run.err and run.cdk_json.read_text() == CDK_JSON


def test_address_that_is_not_found_does_not_matter_where_a_network_is_set(run: Init) -> None:
    run.fetch = _fails
    run.block(public_access_cidrs=["198.51.100.0/24"])
    assert run("--yes") == 0 and "stays as it is" in run.err


def test_zones_that_eks_excludes_and_local_zones_are_dropped(run: Init) -> None:
    run.ec2 = World(
        region="us-east-1", zones={f"us-east-1{z}": f"use1-az{n}" for z, n in zip("abc", (3, 1, 2), strict=True)}
    )
    assert run("--region", "us-east-1", "--yes") == 0
    settings = load_settings(run.cdk_json)
    assert (settings.region, settings.availability_zones) == ("us-east-1", ("us-east-1b", "us-east-1c"))


def test_region_with_one_usable_zone_is_an_error(run: Init) -> None:
    run.ec2 = World(zones={"us-west-2a": "usw2-az1"})
    assert run("--yes") == 1 and "needs two availability zones" in run.err


def test_zones_that_were_chosen_stay_and_those_of_another_region_go(run: Init) -> None:
    run.block(region="us-west-2", availability_zones=["us-west-2b", "us-west-2a"], gpu_zone="us-west-2b")
    assert run("--yes") == 0
    assert load_settings(run.cdk_json).availability_zones == ("us-west-2b", "us-west-2a")
    run.ec2 = World(region="us-east-2", zones={"us-east-2a": "use2-az1", "us-east-2b": "use2-az2"})
    assert run("--region", "us-east-2", "--yes") == 0
    settings = load_settings(run.cdk_json)
    assert settings.availability_zones == ("us-east-2a", "us-east-2b") and settings.gpu_zone is None


def test_missing_bootstrap_is_told_and_unknown_bootstrap_too(run: Init) -> None:
    run.world.change(bootstrapped=[])
    assert run("--yes") == 0
    assert f"cdk bootstrap aws://{ACCOUNT}/us-west-2" in run.out
    run.world.denied |= {"GetParameter", "DescribeStacks"}
    assert run("--json") == 0
    assert json.loads(run.out)["bootstrapped"] is None and "not known" in run.err


def test_crash_while_writing_leaves_the_file_as_it_was(run: Init, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", crash)
    assert run("--yes") == 2
    assert "cdk.json cannot be written (disk full)" in run.err and "unexpected" not in run.err
    assert run.cdk_json.read_text() == CDK_JSON
    assert [p.name for p in run.cdk_json.parent.iterdir() if "cdk.json" in p.name] == ["cdk.json"]


def test_permissions_and_a_link_to_the_file_stay(run: Init) -> None:
    real = run.cdk_json.with_name("real.json")
    run.cdk_json.rename(real)
    real.chmod(0o640)
    run.cdk_json.symlink_to(real)
    assert run("--yes") == 0
    assert run.cdk_json.is_symlink() and stat.S_IMODE(real.stat().st_mode) == 0o640
    assert load_settings(real).region == "us-west-2"


def test_what_is_edited_while_init_asks_stays(run: Init, monkeypatch: pytest.MonkeyPatch) -> None:
    edited = CDK_JSON.replace('"cluster_name": "eks-ray-train"', '"cluster_name": "mine",\n      "max_hours": 2')
    monkeypatch.setattr(consent, "agree", lambda *args, **kwargs: run.cdk_json.write_text(edited))
    assert run() == 0
    settings = load_settings(run.cdk_json)
    assert (settings.cluster_name, settings.max_hours, settings.region) == ("mine", 2, "us-west-2")
    assert settings.public_access_cidrs == (f"{ADDRESS}/32",)


def test_what_was_agreed_to_is_not_written_over_a_newer_edit_of_the_same_setting(
    run: Init, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited = CDK_JSON.replace('"public_access_cidrs": []', '"public_access_cidrs": ["198.51.100.0/24"]')
    monkeypatch.setattr(consent, "agree", lambda *args, **kwargs: run.cdk_json.write_text(edited))
    assert run() == 2
    assert "public_access_cidrs in cdk.json changed while init asked" in run.err and "run init again" in run.err
    assert run.cdk_json.read_text() == edited


def test_line_ends_of_windows_and_a_byte_order_mark_stay(run: Init) -> None:
    assert run("--yes") == 0
    unix = run.cdk_json.read_bytes()
    run.cdk_json.write_bytes(b"\xef\xbb\xbf" + CDK_JSON.replace("\n", "\r\n").encode())
    assert run("--yes") == 0
    assert run.cdk_json.read_bytes() == b"\xef\xbb\xbf" + unix.replace(b"\n", b"\r\n")


# -- a region that moves ------------------------------------------------------------------------------------------------
def _ohio(run: Init) -> None:
    run.block(region="us-west-2")
    run.ec2 = World(region="us-east-2", zones={"us-east-2a": "use2-az1", "us-east-2b": "use2-az2"})


@pytest.mark.parametrize("status", ["CREATE_COMPLETE", "DELETE_FAILED", "CREATE_IN_PROGRESS"])
def test_region_does_not_move_away_from_stacks_that_stand(run: Init, status: str) -> None:
    _ohio(run)
    before = run.cdk_json.read_text()
    run.world.standing(Network=status)
    assert run("--region", "us-east-2", "--yes") == 2
    assert f"EksRayTrainNetwork: {status} in us-west-2" in run.err and "run `eks-ray-train down` first" in run.err
    assert run.cdk_json.read_text() == before


def test_init_in_its_own_region_is_no_move_and_needs_no_look_at_the_stacks(run: Init) -> None:
    run.block(region="us-west-2")
    run.world.standing(Network="CREATE_COMPLETE")
    run.world.denied.add("DescribeStacks")
    assert run("--region", "us-west-2", "--yes") == 0 and "not checked" not in run.err
    assert load_settings(run.cdk_json).public_access_cidrs == (f"{ADDRESS}/32",)


def test_region_moves_away_from_a_rolled_back_stack_which_has_no_resources(run: Init) -> None:
    _ohio(run)
    run.world.standing(Network="ROLLBACK_COMPLETE")
    assert run("--region", "us-east-2", "--yes") == 0
    assert load_settings(run.cdk_json).region == "us-east-2" and "not checked" not in run.err


def test_region_moves_where_the_stacks_cannot_be_read_and_that_is_said(run: Init) -> None:
    _ohio(run)
    run.world.denied.add("DescribeStacks")
    assert run("--region", "us-east-2", "--yes") == 0
    assert "whether stacks of this app stand in us-west-2 was not checked" in run.err
    assert "no permission for cloudformation:DescribeStacks" in run.err
    assert load_settings(run.cdk_json).region == "us-east-2"


def test_settings_that_are_wrong_already_are_told_before_anything_is_asked(run: Init) -> None:
    run.block(gpu_node_count=0)
    assert run("--yes") == 2 and "gpu_node_count" in run.err


def test_no_cdk_json_is_one_message(run: Init) -> None:
    run.cdk_json.unlink()
    assert run("--yes") == 2 and "cdk.json" in run.err


def test_address_is_asked_of_aws_over_https_with_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import urllib.request

    asked: list[tuple[str, float]] = []

    def urlopen(url: str, timeout: float) -> io.BytesIO:
        asked.append((url, timeout))
        return io.BytesIO(b"198.51.100.7\n" + b"x" * 1000)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    assert init.fetch_address().splitlines()[0] == "198.51.100.7"
    assert asked == [("https://checkip.amazonaws.com", 5)]
