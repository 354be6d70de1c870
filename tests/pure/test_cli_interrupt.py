"""Ctrl-C while ``cdk`` works: a real process group, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fake_cdk import CdkWorld

REPO = Path(__file__).resolve().parents[2]
# The command in a process of its own, with its AWS clients replaced; everything that handles signals is real.
_MAIN = """
import sys
from pathlib import Path
sys.path.insert(0, {repo!r})
from eks_ray_train.cli import __main__ as cli, aws_session, capacity
from tests.fake_cdk import CdkWorld, FakeSession
from tests.fake_ec2 import FakeAccount, World
world = CdkWorld.__new__(CdkWorld)
world.folder, world.home, world.path = Path({folder!r}), "us-west-2", Path({folder!r}) / "world.json"
world.node_group, world.eks_calls, world.settles, world.subnet_zones, world.denied = {{"desiredSize": 0}}, [], {{}}, (), set()
aws_session.open_session = world.session
capacity.open_account = lambda region: FakeAccount({{"us-west-2": World()}})
print("ready", flush=True)
sys.exit(cli.main(sys.argv[1:]))
"""
CDK_JSON = '{"app": "x", "context": {"eks-ray-train": {"region": "us-west-2"}}}'


def _start(world: CdkWorld, *argv: str) -> subprocess.Popen[str]:
    (world.folder / "cdk.json").write_text(CDK_JSON)
    return subprocess.Popen(
        [sys.executable, "-c", _MAIN.format(repo=str(REPO), folder=str(world.folder)), *argv],
        cwd=world.folder,
        env={**os.environ, "EKS_RAY_TRAIN_CDK": str(world.command)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # as a shell's job: the whole group gets what a terminal's Ctrl-C sends
    )


def _wait_for(path: Path) -> None:
    give_up = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < give_up, f"{path.name} never appeared"
        time.sleep(0.02)


@pytest.mark.parametrize("how", ["terminal", "parent only", "terminate"])
def test_interrupted_deploy_passes_the_signal_on_once_and_tells_the_state(tmp_path: Path, how: str) -> None:
    world = CdkWorld(tmp_path)
    world.change(hang={"deploy": True})
    process = _start(world, "up", "--yes")
    try:
        _wait_for(Path(f"{world.path}.hanging"))
        if how == "terminal":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT if how == "parent only" else signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert Path(f"{world.path}.signals").read_text() == "1"
    assert process.returncode == 130
    assert "EksRayTrainTraining: CREATE_IN_PROGRESS" in err and "CloudFormation goes on by itself" in err
    assert "`eks-ray-train up` to go on" in err and "eks-ray-train down" in err
    assert "Traceback" not in out + err
    assert '"region": "us-west-2"' in (tmp_path / "cdk.json").read_text()
    assert '"gpu_zone": "us-west-2a"' in (tmp_path / "cdk.json").read_text(), "a second run goes on in the same place"
    assert world.verbs() == ["deploy"], "nothing is started after the interruption"


def test_interrupted_destroy_says_how_to_go_on(tmp_path: Path) -> None:
    world = CdkWorld(tmp_path)
    world.standing(Network="CREATE_COMPLETE", Cluster="CREATE_COMPLETE", Training="CREATE_COMPLETE")
    world.change(hang={"destroy": True})
    process = _start(world, "down", "--yes")
    try:
        _wait_for(Path(f"{world.path}.hanging"))
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130 and "`eks-ray-train down` to go on" in err


def test_second_signal_ends_a_cdk_that_does_not_stop(tmp_path: Path) -> None:
    world = CdkWorld(tmp_path)
    stubborn = tmp_path / "stubborn"
    stubborn.write_text(
        f"#!{sys.executable}\nimport signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"open({str(tmp_path / 'started')!r}, 'w').close()\ntime.sleep(60)\n"
    )
    stubborn.chmod(0o755)
    world.command = stubborn
    process = _start(world, "up", "--yes")
    try:
        _wait_for(tmp_path / "started")
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None, "it waits for cdk to end"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
