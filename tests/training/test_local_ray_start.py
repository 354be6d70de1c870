"""The start of a local Ray cluster where a part of Ray dies: told at once with its log, tried once more."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.cli.jobs_api import JobsClient
from eks_ray_train.cli.local_ray import LocalCluster
from eks_ray_train.cli.processes import children
from eks_ray_train.errors import ClusterNotReadyError

pytest.importorskip("ray")

# In place of Ray's own command: starts a "raylet" that dies in the first FAKE_DEATHS starts, and never looks after it.
FAKE = """
import os, signal, subprocess, sys, time
from pathlib import Path
folder = Path(next(word for word in sys.argv if word.startswith("--temp-dir=")).partition("=")[2])
logs = folder / "session_latest" / "logs"
logs.mkdir(parents=True)
(logs / "raylet.err").write_text("starting\\nno room for the object store\\n")
state = Path(os.environ["FAKE_STATE"])
with (state / "starts").open("a") as out:
    out.write(f"{os.getpid()}\\n")
number = len((state / "starts").read_text().splitlines())
dies = number <= int(os.environ["FAKE_DEATHS"])
raylet = subprocess.Popen([str(state / "raylet"), "0.5" if dies else "300"])
signal.signal(signal.SIGTERM, lambda *_: (raylet.kill(), os._exit(0)))
if dies and os.environ["FAKE_REAPS"]:
    raylet.wait()
time.sleep(300)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Environment of nodes whose ``ray start`` is the script above; the dashboard knows the node from the last start on."""
    package = tmp_path / "ray" / "scripts"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "scripts.py").write_text(FAKE)
    (tmp_path / "raylet").symlink_to("/bin/sleep")
    environment = {"PYTHONPATH": str(tmp_path), "FAKE_STATE": str(tmp_path), "FAKE_DEATHS": "1", "FAKE_REAPS": ""}

    def nodes(_self: JobsClient, **_: Any) -> list[dict[str, Any]]:
        if len(starts(environment)) <= int(environment["FAKE_DEATHS"]):
            raise ClusterNotReadyError("nobody answers")
        return [{"raylet": {"nodeManagerAddress": "127.0.0.2"}}]

    monkeypatch.setattr(JobsClient, "nodes", nodes)
    return environment


def starts(environment: dict[str, str]) -> list[int]:
    path = Path(environment["FAKE_STATE"]) / "starts"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("reaps", ["", "yes"])
def test_where_the_raylet_dies_the_start_is_tried_once_more_and_the_log_shown(
    fake: dict[str, str], capsys: pytest.CaptureFixture[str], reaps: str
) -> None:
    began = time.monotonic()
    with LocalCluster(workers=0, env={**fake, "FAKE_REAPS": reaps}) as cluster:
        said = capsys.readouterr().err
        assert starts(fake)[1:] == [cluster.node_process(0).pid]
        assert cluster.head.folder.exists()
    assert time.monotonic() - began < 120
    assert "local Ray: raylet of head ended" in said
    assert "no room for the object store" in said
    assert "starting the local Ray cluster once more" in said


def test_where_it_dies_again_the_error_shows_the_log_and_nothing_is_left(fake: dict[str, str]) -> None:
    fake["FAKE_DEATHS"] = "9"
    cluster = LocalCluster(workers=0, env=fake)
    began = time.monotonic()
    with pytest.raises(ClusterNotReadyError, match=r"(?s)raylet of head ended.*no room for the object store"), cluster:
        pass
    assert time.monotonic() - began < 120
    assert len(starts(fake)) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in starts(fake))
    assert not cluster.folder.exists()


@pytest.mark.ray
@pytest.mark.faults
@pytest.mark.timeout(300)
def test_a_real_raylet_killed_while_the_cluster_starts_costs_one_more_start(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = LocalCluster(workers=1)
    killed: list[int] = []

    def kill_first() -> None:
        give_up = time.monotonic() + 120
        while not killed and time.monotonic() < give_up:
            for family in children([process.pid for process in list(cluster._processes)]).values():
                killed.extend(pid for pid, (name, lives) in family.items() if name == "raylet" and lives)
            time.sleep(0.05)
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill_first, daemon=True)
    thread.start()
    with cluster:
        thread.join(timeout=5)
        assert killed
        assert len(cluster.processes()) > 6
    assert "raylet of head ended" in capsys.readouterr().err


def test_a_raylet_is_told_its_agents_port_before_it_gives_up(fake: dict[str, str]) -> None:
    fake["FAKE_DEATHS"] = "0"
    with LocalCluster(workers=0, env=fake) as cluster:
        node = cluster.head
        session = Path(fake["FAKE_STATE"]) / "session"
        session.mkdir()
        raylet = subprocess.Popen(
            ["/bin/sh", "-c", "sleep 60 # $0", "--node_id=abc", f"--session_dir={session}"], start_new_session=True
        )
        try:
            give_up = time.monotonic() + 10
            while not node.tell_agent_port(raylet.pid) and time.monotonic() < give_up:
                time.sleep(0.05)
            told = session / "dashboard_agent_listen_port_abc"
            assert told.read_text() == str(node.ports + 3)
            assert f"--dashboard-agent-listen-port={node.ports + 3}" in node.flags(head_of=None)
            assert not node.tell_agent_port(cluster.node_process(0).pid)  # whoever has no node id is no raylet
        finally:
            os.killpg(raylet.pid, signal.SIGKILL)
            raylet.wait()


def test_what_a_dead_raylet_left_is_ended_with_the_cluster(fake: dict[str, str]) -> None:
    fake["FAKE_DEATHS"] = "0"
    with LocalCluster(workers=0, env=fake) as cluster:
        folder = cluster.head.folder
        orphan = subprocess.Popen(["/bin/sh", "-c", "sleep 60 # $0", f"--log-dir={folder}/logs"])
        other = subprocess.Popen(["/bin/sh", "-c", "sleep 60 # $0", "--log-dir=/nonexistent/logs"])
    assert orphan.wait(timeout=30) == -signal.SIGKILL
    assert other.poll() is None
    other.kill()
    other.wait()
    assert not folder.exists()
