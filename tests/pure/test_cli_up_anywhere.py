"""Whatever place refuses, and at whichever step: ``up`` ends in the first place that works, or leaves nothing at all."""

from __future__ import annotations

import random
import re
import shlex
from pathlib import Path

import pytest

from eks_ray_train.cli import __main__ as cli
from eks_ray_train.cli import aws_session, capacity
from eks_ray_train.settings import load_settings
from tests.fake_cdk import NODE_GROUP_ICE, STACKS, CdkWorld
from tests.fake_ec2 import FakeAccount, World

CDK_JSON = '{"app": "x", "context": {"eks-ray-train": {"region": null, "capacity": "probe"}}}'
ZONES = {
    "us-west-2": {"us-west-2a": "usw2-az1", "us-west-2b": "usw2-az2", "us-west-2c": "usw2-az3"},
    "us-east-2": {"us-east-2a": "use2-az1", "us-east-2b": "use2-az2"},
}
ENDINGS = ("works", "refuses the proof", "fails in the network stack", "fails in the training stack")


@pytest.mark.parametrize("mode", ["probe", "hold", "none"])
def test_ends_in_the_first_place_that_works_or_leaves_nothing(
    mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = CDK_JSON.replace('"probe"', f'"{mode}"')
    choose = random.Random(f"places/{mode}")
    for round_ in range(8):
        (tmp_path / "cdk.json").write_text(text)
        cdk = CdkWorld(tmp_path)
        worlds = {region: World(region=region, zones=dict(zones)) for region, zones in ZONES.items()}
        endings = {zone: choose.choices(ENDINGS, weights=(1, 2, 2, 2))[0] for zones in ZONES.values() for zone in zones}
        for region, zones in ZONES.items():
            for zone, zone_id in zones.items():
                if endings[zone] == "refuses the proof":
                    worlds[region].free[(zone_id, "g6.12xlarge")] = 1
                    cdk.refuse(zone, STACKS[0], NODE_GROUP_ICE)  # and the stack's own function meets the same
                elif endings[zone] != "works":
                    cdk.refuse(zone, STACKS[0] if "network" in endings[zone] else STACKS[2], NODE_GROUP_ICE)
        monkeypatch.setenv("EKS_RAY_TRAIN_CDK", str(cdk.command))
        monkeypatch.setattr(aws_session, "open_session", cdk.session)
        monkeypatch.setattr(capacity, "open_account", lambda region, worlds=worlds: FakeAccount(worlds, home=region))

        code = cli.main(["up", "--regions", "us-west-2,us-east-2", "--yes"])

        shown = f"round {round_}: {endings}\n{capfd.readouterr().err}"
        order = [(region, zone) for region, zones in ZONES.items() for zone in zones]
        expected = next(((r, z) for r, z in order if endings[z] == "works"), None)
        standing = {region for region in ZONES if cdk.statuses(region)}
        if expected is None:
            assert code == 5, shown
            assert standing == set(), shown
            assert (tmp_path / "cdk.json").read_text() == text, shown
        else:
            settings = load_settings(tmp_path / "cdk.json")
            assert code == 0, shown
            assert (settings.region, settings.gpu_zone) == expected, shown
            assert standing == {expected[0]} and set(cdk.statuses(expected[0])) == set(STACKS), shown
        assert not any(world.active() for world in worlds.values()), shown


def test_every_command_of_the_page_on_capacity_is_one_that_parses(repo: Path) -> None:
    page = (repo / "docs" / "capacity.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n(.*?)^```", page, flags=re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("eks-ray-train ")]
    assert len(lines) >= 7
    for line in lines:
        cli.parse(shlex.split(line, comments=True)[1:])
