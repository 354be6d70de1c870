"""The fault matrix on real Ray: nodes and heads that vanish or are drained, each compared with the uninterrupted run.

``make test-faults`` runs it (several minutes); three of the issue's faults (a killed worker, a full disk, a damaged newest
checkpoint) are in the ordinary tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.cli.local_ray import LocalCluster
from eks_ray_train.cli.processes import descendants
from tests.training.job_driver import NODE_ENVIRONMENT, Driver, run
from tests.training.job_ranks import run_job, write_inputs

pytestmark = [pytest.mark.ray, pytest.mark.faults, pytest.mark.timeout(1200)]
STEPS = 40
ACROSS_WORLDS = 1e-5
RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results" / "faults.json"
SLOW = ("slow", "0", "0", "/nonexistent")


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {**write_inputs(tmp_path_factory.mktemp("faults")), "steps": STEPS, "checkpoint_every": 5}


def uninterrupted(flags: dict[str, Any], world: int) -> dict[int, float]:
    whole = run_job({**flags, "storage_path": flags["storage_path"] + f"-{world}"}, world=world, name="whole")
    return {event["step"]: event["loss"] for event in whole.of("step")}


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with LocalCluster(workers=request.param, env=NODE_ENVIRONMENT) as running:
        yield running


def busy_nodes(cluster: LocalCluster) -> list[int]:
    """Indices of the worker nodes on which training runs."""
    found = []
    for index, node in enumerate(cluster.nodes[1:], start=1):
        pids = descendants([cluster.node_process(index).pid])
        names = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids if Path(f"/proc/{pid}/cmdline").exists()]
        if any(b"RayTrainWorker" in name for name in names):
            found.append(index)
            assert node.cpus
    return found


def kill_node(cluster: LocalCluster, index: int) -> None:
    """All processes of a node at once, as when the machine loses power."""
    top = cluster.node_process(index).pid
    for pid in [top, *descendants([top])]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@contextlib.contextmanager
def scenario(name: str) -> Iterator[dict[str, Any]]:
    """Writes what became of this scenario into the results' file, whether it passed or not."""
    told: dict[str, Any] = {"scenario": name, "passed": False}
    began = time.monotonic()
    try:
        yield told
        told["passed"] = True
    except BaseException as error:
        told["error"] = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise
    finally:
        told["seconds"] = round(time.monotonic() - began, 1)
        old = json.loads(RESULTS.read_text())["scenarios"] if RESULTS.exists() else []
        scenarios = sorted([entry for entry in old if entry["scenario"] != name] + [told], key=lambda e: e["scenario"])
        about = {"command": "make test-faults", "cpus": os.cpu_count(), "python": platform.python_version()}
        RESULTS.write_text(json.dumps({**about, "scenarios": scenarios}, indent=2) + "\n")


def check(events: list[dict[str, Any]], expected: dict[int, float], told: dict[str, Any], *, exact: bool) -> None:
    """Every step was trained, nothing since the last committed checkpoint lost, and each loss is the expected one."""
    steps = [event for event in events if event["event"] == "step"]
    worst = max(abs(event["loss"] - expected[event["step"]]) / abs(expected[event["step"]]) for event in steps)
    restarts = [event["step"] for event in events if event["event"] == "restart"]
    told |= {
        "steps": len({event["step"] for event in steps}), "steps_trained_again": len(steps) - len({e["step"] for e in steps}),
        "resumed_from": restarts, "losses_equal": worst == 0.0 if exact else worst <= ACROSS_WORLDS,
        "asked": "bitwise" if exact else f"within {ACROSS_WORLDS} relative", "largest_relative_difference": worst,
    }  # fmt: skip
    assert sorted({event["step"] for event in steps}) == list(range(1, STEPS + 1))
    assert told["losses_equal"], worst
    # Whatever was trained again, after each step the run has seen this many tokens: none is skipped or counted twice.
    assert {event["tokens"] / event["step"] for event in steps} == {steps[0]["tokens"] / steps[0]["step"]}
    committed = 0
    for event in events:
        if event["event"] == "checkpoint" and event["committed"]:
            committed = event["step"]
        if event["event"] == "restart":
            assert event["step"] >= committed


@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_a_killed_node_is_replaced_by_a_spare_one(cluster: LocalCluster, flags: dict[str, Any]) -> None:
    with scenario("node killed, a spare one takes its place") as told:
        driver = Driver(cluster, flags, SLOW, run_name="node", num_workers=2)
        driver.until_step(12)
        kill_node(cluster, busy_nodes(cluster)[-1])
        ended = driver.finish()
        assert ended.code == 0, ended.stderr[-3000:]
        check(ended.events, uninterrupted(flags, 2), told, exact=True)


@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_with_min_workers_the_run_goes_on_after_two_of_three_nodes_are_lost(
    cluster: LocalCluster, flags: dict[str, Any]
) -> None:
    with scenario("two nodes of three killed, --min-workers 1") as told:
        driver = Driver(cluster, flags, SLOW, run_name="elastic", num_workers=3, min_workers=1)
        driver.until_step(12)
        for index in (2, 3):
            kill_node(cluster, index)
        ended = driver.finish()
        assert ended.code == 0, ended.stderr[-3000:]
        assert ended.of("restart")[-1]["world_size"] == 1
        check(ended.events, uninterrupted(flags, 3), told, exact=False)


@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_a_drained_node_gets_a_checkpoint_at_once(cluster: LocalCluster, flags: dict[str, Any]) -> None:
    with scenario("node drained") as told:
        driver = Driver(cluster, flags, SLOW, run_name="drain", num_workers=2, checkpoint_every=1000, max_failures=3)
        driver.until_step(8)
        drain(cluster, busy_nodes(cluster)[-1])
        ended = driver.finish()
        assert ended.code == 0, ended.stderr[-3000:]
        assert any(event["committed"] and event["step"] < STEPS for event in ended.of("checkpoint"))
        check(ended.events, uninterrupted(flags, 2), told, exact=True)


def drain(cluster: LocalCluster, index: int) -> None:
    """As a node's stop hook does."""
    arguments = next(
        Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        for pid in descendants([cluster.node_process(index).pid])
        if b"--node_id=" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    node_id = next(word.partition("=")[2] for word in arguments if word.startswith("--node_id="))
    done = subprocess.run(
        [
            sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", cluster.gcs_address, "--node-id", node_id,
            "--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "test", "--deadline-remaining-seconds", "40",
        ],
        env={**os.environ, **cluster.environment()}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]


def test_a_lost_head_is_survived_by_resubmitting_under_the_same_run_name(flags: dict[str, Any]) -> None:
    with scenario("head killed, resubmitted under the same run name") as told:
        with LocalCluster(workers=2, env=NODE_ENVIRONMENT) as first:
            driver = Driver(first, flags, SLOW, run_name="head", num_workers=2)
            driver.until_step(17)
            kill_node(first, 0)
            driver.process.kill()
            before = driver.finish()
        with LocalCluster(workers=2, env=NODE_ENVIRONMENT) as second:
            after = run(second, flags, run_name="head", num_workers=2)
        assert after.code == 0, after.stderr[-3000:]
        assert after.of("restart")[0]["step"] >= 10
        check([*before.events, *after.events], uninterrupted(flags, 2), told, exact=True)
