"""The preStop hook of a worker pod, run for real: with a stub ``ray``, and once against a real Ray cluster."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eks_ray_train.manifests import names
from eks_ray_train.manifests.ray_cluster import ray_cluster
from eks_ray_train.manifests.start_command import SHUTDOWN_MARGIN_SECONDS, drain_hook
from tests.pure.manifest_support import cluster_spec, env_of, gpu_workers, head_of, workers_of

NODE = "ab" * 28


def _arguments(pid: int) -> list[str]:
    """Arguments of a live process, empty where it has ended (or is a zombie)."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def _family(pid: int) -> list[int]:
    """``pid`` and all its descendants, youngest first."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for known in found:
        found += parents.get(known, [])
    return found[::-1]


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    """A pod as the hook sees it: /proc with a raylet and a training worker, and a ``ray`` that writes down its arguments."""
    _process(tmp_path, 10, "/opt/venv/raylet", "--store=/tmp", f"--node_id={NODE}")
    _process(tmp_path, 11, "python", "agent.py", f"--node-id={NODE}")
    _process(tmp_path, 12, "ray::RayTrainWorker")
    _ray(tmp_path, 'printf "%s\\n" "$@" > "$OUT"')
    return tmp_path


def _process(pod: Path, pid: int, *arguments: str) -> None:
    folder = pod / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes(b"".join(argument.encode() + b"\0" for argument in arguments))


def _ray(pod: Path, body: str) -> None:
    (pod / "ray").write_text(f"#!/bin/bash\n{body}\n")
    (pod / "ray").chmod(0o755)


def _environment(pod: Path) -> dict[str, str]:
    return {
        "PATH": f"{pod}:{os.environ['PATH']}",
        "OUT": str(pod / "out"),
        "RAY_ADDRESS": "head-svc:6379",
        names.ENV_CHECKPOINTED_FILE: str(pod / "checkpointed"),
    }


def _hook(pod: Path, grace_period_seconds: int) -> list[str]:
    return drain_hook(grace_period_seconds=grace_period_seconds, proc=str(pod / "proc"))


def _run(pod: Path, grace_period_seconds: int = 600) -> tuple[subprocess.CompletedProcess[str], float]:
    started = time.monotonic()
    done = subprocess.run(_hook(pod, grace_period_seconds), env=_environment(pod), capture_output=True, text=True, check=False, timeout=60)
    return done, time.monotonic() - started


def test_every_worker_group_has_the_hook_with_its_grace_period_and_the_head_has_none() -> None:
    groups = (gpu_workers(), gpu_workers("p5.48xlarge", name="large"))
    manifest = ray_cluster(cluster_spec(workers=groups, grace_period_seconds=300))
    for template in workers_of(manifest):
        assert template["spec"]["terminationGracePeriodSeconds"] == 300
        command = template["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert command == drain_hook(grace_period_seconds=300)
        assert env_of(template)["EKS_RAY_TRAIN_CHECKPOINTED_FILE"] == names.CHECKPOINTED_FILE
    assert "lifecycle" not in head_of(manifest)["spec"]["containers"][0]


def test_the_hook_drains_this_node_as_a_preemption_with_the_time_that_is_left(pod: Path) -> None:
    _ray(pod, f'printf "%s\\n" "$@" > "$OUT"; touch "${names.ENV_CHECKPOINTED_FILE}"')
    done, _ = _run(pod, 600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    arguments = (pod / "out").read_text().splitlines()
    assert arguments[:5] == ["drain-node", "--address", "head-svc:6379", "--node-id", NODE]
    assert arguments[arguments.index("--reason") + 1] == "DRAIN_NODE_REASON_PREEMPTION"
    assert arguments[arguments.index("--deadline-remaining-seconds") + 1] == str(600 - SHUTDOWN_MARGIN_SECONDS)


def test_a_mark_of_an_earlier_checkpoint_does_not_end_the_wait(pod: Path) -> None:
    (pod / "checkpointed").touch()
    done, seconds = _run(pod, SHUTDOWN_MARGIN_SECONDS + 3)
    assert done.returncode == 0
    assert seconds >= 1.9  # the hook counts whole seconds, so that the first may be a short one
    assert not (pod / "checkpointed").exists()


def test_the_wait_ends_when_the_job_has_written_its_checkpoint(pod: Path) -> None:
    process = subprocess.Popen(_hook(pod, 600), env=_environment(pod))
    try:
        time.sleep(1.5)
        assert process.poll() is None
        (pod / "checkpointed").touch()
        assert process.wait(timeout=10) == 0
    finally:
        process.kill()
        process.wait()


def test_the_wait_ends_when_the_training_worker_has_gone(pod: Path) -> None:
    process = subprocess.Popen(_hook(pod, 600), env=_environment(pod))
    try:
        time.sleep(1.5)
        assert process.poll() is None
        shutil.rmtree(pod / "proc" / "12")
        assert process.wait(timeout=10) == 0
    finally:
        process.kill()
        process.wait()


def test_the_wait_ends_before_the_pod_is_killed(pod: Path) -> None:
    done, seconds = _run(pod, SHUTDOWN_MARGIN_SECONDS + 2)
    assert done.returncode == 0
    assert 1.9 <= seconds < 10


def test_a_pod_without_a_training_worker_ends_at_once_and_drains_nothing(pod: Path) -> None:
    shutil.rmtree(pod / "proc" / "12")
    done, seconds = _run(pod)
    assert done.returncode == 0
    assert seconds < 5
    assert not (pod / "out").exists()


@pytest.mark.parametrize("broken", ["refused", "no raylet"])
def test_a_drain_that_fails_is_told_and_does_not_hold_the_pod(pod: Path, broken: str) -> None:
    if broken == "refused":
        _ray(pod, 'echo "The drain request is not accepted: no such node" >&2; exit 1')
    else:
        shutil.rmtree(pod / "proc" / "10")
        shutil.rmtree(pod / "proc" / "11")
    done, seconds = _run(pod)
    assert done.returncode == 1
    assert seconds < 5
    assert "did not accept the drain" in done.stderr


def test_the_hook_does_not_take_itself_for_a_training_worker(tmp_path: Path) -> None:
    """On the real /proc, where the hook's own command line stands too; no Ray worker runs under this test's name."""
    _ray(tmp_path, 'touch "$OUT"')
    if any("RayTrainWorker" in "".join(_arguments(int(folder.name))) for folder in Path("/proc").glob("[0-9]*")):
        pytest.skip("a training worker runs on this machine, so the real /proc is not without one")
    done = subprocess.run(drain_hook(grace_period_seconds=60), env=_environment(tmp_path), check=False, timeout=30)
    assert done.returncode == 0
    assert not (tmp_path / "out").exists()


class _Cluster:
    """A head without CPUs and one worker node, each its own ``ray start``, with token authentication as in the pods."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="drn", dir="/tmp"))  # Unix sockets: short paths only
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t" * 40}
        self.env.pop("RAY_ADDRESS", None)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.head = self.worker = 0

    def start(self) -> None:
        """Both nodes; afterwards ``head`` and ``worker`` are the process ids of their raylets."""
        self.head = self._start("--head", f"--port={self.address.split(':')[1]}", "--num-cpus=0", "--include-dashboard=false",
                                f"--temp-dir={self.folder}")  # fmt: skip
        self.worker = self._start(f"--address={self.address}", "--num-cpus=1", "--node-ip-address=127.0.0.2")

    def _start(self, *arguments: str) -> int:
        ray = str(Path(sys.executable).parent / "ray")
        command = [ray, "start", "--block", "--disable-usage-stats", "--object-store-memory=80000000", *arguments]
        output = self.folder / f"log{len(self.processes)}"
        with output.open("wb") as log:
            process = subprocess.Popen(command, env=self.env, stdout=log, stderr=subprocess.STDOUT)
        self.processes.append(process)
        deadline = time.monotonic() + 120
        # Only then: a worker that comes before the head is complete waits for ever.
        while "Ray runtime started" not in output.read_text(errors="replace"):
            assert process.poll() is None, output.read_text(errors="replace")
            assert time.monotonic() < deadline, output.read_text(errors="replace")
            time.sleep(0.2)
        (raylet,) = [pid for pid in _family(process.pid) if _arguments(pid) and _arguments(pid)[0].endswith("/raylet")]
        return raylet

    def stop(self) -> None:
        for process in self.processes:
            for pid in _family(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def ray_nodes() -> Iterator[_Cluster]:
    cluster = _Cluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.ray
def test_a_real_ray_cluster_accepts_the_drain_of_the_pods_own_node_alone(ray_nodes: _Cluster, tmp_path: Path) -> None:
    """A drained node without work ends its raylet by itself, which proves that the drain reached it; the head lives on."""
    pytest.importorskip("ray")
    _process(tmp_path, 12, "ray::RayTrainWorker")
    (tmp_path / "proc" / "10").symlink_to(f"/proc/{ray_nodes.worker}")
    time.sleep(3)  # the worker node registers itself
    env = {**ray_nodes.env, "RAY_ADDRESS": ray_nodes.address, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(_hook(tmp_path, SHUTDOWN_MARGIN_SECONDS + 10), env=env, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 30
    while "".join(_arguments(ray_nodes.worker)):
        assert time.monotonic() < deadline, "the drained node's raylet still runs"
        time.sleep(0.5)
    assert "".join(_arguments(ray_nodes.head))
