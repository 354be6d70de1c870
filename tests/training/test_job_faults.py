"""The fault matrix on real Ray: nodes and heads that vanish or are drained, each compared with the uninterrupted run.

``make test-faults`` runs it (several minutes) with the faults that need no node to vanish (marker ``matrix``): a killed
worker and a stopped driver in test_job_on_ray, storage and worlds in test_job_resume, test_job_s3 and test_job_fault_worlds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.cli.local_ray import LocalCluster
from eks_ray_train.cli.processes import descendants
from tests.training.fault_results import FP32, check_positions, compare, of_steps, scenario
from tests.training.job_driver import NODE_ENVIRONMENT, Driver, run
from tests.training.job_ranks import run_job, write_inputs

pytestmark = [pytest.mark.ray, pytest.mark.faults, pytest.mark.timeout(2700)]
STEPS = 40
SLOW = ("slow", "0", "200", "/nonexistent")
SLOWER = ("slow", "0", "800", "/nonexistent")  # the ranks ask for notices every 10 s


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {**write_inputs(tmp_path_factory.mktemp("faults")), "steps": STEPS, "checkpoint_every": 5}


_whole: dict[str, dict[int, float]] = {}


def uninterrupted(flags: dict[str, Any], world: int) -> dict[int, float]:
    """Loss by step of the run without a fault; trained once, since a second run of that name would only resume the first."""
    storage = flags["storage_path"] + f"-{world}"
    if storage not in _whole:
        whole = run_job({**flags, "storage_path": storage}, world=world, name="whole")
        _whole[storage] = {event["step"]: event["loss"] for event in whole.of("step")}
    return _whole[storage]


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


def check(
    events: list[dict[str, Any]],
    flags: dict[str, Any],
    run_name: str,
    told: dict[str, Any],
    *,
    world: int,
    within: float = 0.0,
    silent: Iterable[int] = (),
) -> None:
    """Every step was trained with the uninterrupted run's loss, and nothing of the last committed checkpoint was lost.

    ``silent``: steps in a committed checkpoint whose loss no driver was left to tell; later losses show that they were right.
    """
    steps = of_steps(events)
    assert sorted({step for step, _ in steps} | set(silent)) == list(range(1, STEPS + 1))
    compare(told, steps, uninterrupted(flags, world), within=within)
    told["resumed_from"] = [event["step"] for event in events if event["event"] == "restart"]
    told["checkpoints_in_place"] = check_positions(Path(flags["storage_path"]) / run_name)
    assert told["checkpoints_in_place"]
    committed = 0
    for event in events:
        if event["event"] == "checkpoint" and event["committed"]:
            committed = event["step"]
        if event["event"] == "restart":
            assert event["step"] >= committed


@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_a_killed_node_is_replaced_by_a_spare_one(cluster: LocalCluster, flags: dict[str, Any]) -> None:
    did = "SIGKILL to all processes of one of two training nodes after step 12; a third node stands by"
    with scenario("node killed, a spare one takes its place", did) as told:
        driver = Driver(cluster, flags, SLOW, run_name="node", num_workers=2)
        driver.until_step(12)
        kill_node(cluster, busy_nodes(cluster)[-1])
        ended = driver.finish()
        assert ended.code == 0, ended.stderr[-3000:]
        check(ended.events, flags, "node", told, world=2)


@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_with_min_workers_the_run_goes_on_after_two_of_three_nodes_are_lost(
    cluster: LocalCluster, flags: dict[str, Any]
) -> None:
    did = "SIGKILL to all processes of two of three training nodes after step 12, with --min-workers 1"
    with scenario("two nodes of three killed, --min-workers 1", did) as told:
        driver = Driver(cluster, flags, SLOW, run_name="elastic", num_workers=3, min_workers=1)
        driver.until_step(12)
        for index in (2, 3):
            kill_node(cluster, index)
        ended = driver.finish()
        assert ended.code == 0, ended.stderr[-3000:]
        assert ended.of("restart")[-1]["world_size"] == 1
        check(ended.events, flags, "elastic", told, world=3, within=FP32)


@pytest.mark.parametrize("cluster", [4], indirect=True)
def test_of_the_ranks_that_are_left_as_many_go_on_as_can_share_the_global_batch(cluster: LocalCluster, flags: dict[str, Any]) -> None:
    did = "SIGKILL to all processes of one of four training nodes after step 12, global batch 8, with --min-workers 2"
    with scenario("one node of four killed, three cannot share the batch", did) as told:
        calm = {**flags, "learning_rate": 1e-4, "storage_path": flags["storage_path"] + "-calm"}  # see the next test
        driver = Driver(cluster, calm, SLOW, run_name="divides", num_workers=4, min_workers=2)
        driver.until_step(12)
        kill_node(cluster, 4)
        ended = driver.finish()
        assert ended.code == 0, ended.stderr[-3000:]
        assert [event["world_size"] for event in ended.of("config")] == [4, 2]
        check(ended.events, calm, "divides", told, world=4, within=FP32)


@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_a_node_that_comes_back_is_taken_in_after_a_checkpoint_and_no_step_is_done_twice_for_it(
    cluster: LocalCluster, flags: dict[str, Any]
) -> None:
    did = "SIGKILL to all processes of one of two training nodes after step 12, with --min-workers 1; started again once the run goes on"
    with scenario("node killed and back again, --min-workers 1", did) as told:
        # Small steps: at the other tests' learning rate the rounding of one rank's sums grows to 5e-5 within 40 steps.
        calm = {**flags, "learning_rate": 1e-4, "steps": STEPS * 3, "storage_path": flags["storage_path"] + "-calm"}
        driver = Driver(cluster, calm, SLOWER, run_name="back", num_workers=2, min_workers=1)
        driver.until_step(12)
        kill_node(cluster, 2)
        driver.until(lambda event: event["event"] == "config" and event["world_size"] == 1)
        cluster._launch(cluster.nodes[2])
        ended = driver.finish()
        assert ended.code == 0, ended.stderr[-3000:]
        assert [event["world_size"] for event in ended.of("config")] == [2, 1, 2]
        told["resumed_from"] = [event["step"] for event in ended.of("restart")]
        grown = told["resumed_from"][-1]
        before = [event["step"] for event in ended.events[: ended.events.index(ended.of("restart")[-1])] if event["event"] == "step"]
        assert max(before) == grown  # the attempt ended with its checkpoint
        assert f"room for 2 ranks instead of 1: going on from the checkpoint at step {grown}" in ended.stderr
        assert [event["step"] for event in ended.of("step")][-1] == STEPS * 3
        compare(told, of_steps(ended.events), uninterrupted(calm, 2), within=FP32)


@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_a_drained_node_gets_a_checkpoint_at_once_and_may_go(cluster: LocalCluster, flags: dict[str, Any]) -> None:
    did = "ray drain-node on one of two training nodes after step 8, all its processes killed once the checkpoint was told"
    with scenario("node drained, then gone", did) as told:
        driver = Driver(cluster, flags, SLOWER, run_name="drain", num_workers=2, checkpoint_every=1000, max_failures=3)
        driver.until_step(8)
        leaving = busy_nodes(cluster)[-1]
        noticed = time.monotonic()
        drain(cluster, leaving)
        driver.until(lambda event: event["event"] == "checkpoint")
        told["seconds_from_drain_to_checkpoint"] = round(time.monotonic() - noticed, 1)
        kill_node(cluster, leaving)
        ended = driver.finish()
        assert ended.code == 0, ended.stderr[-3000:]
        saved = ended.of("checkpoint")[0]
        assert saved["committed"]
        assert saved["step"] < STEPS
        assert [event["step"] for event in ended.of("restart")] == [saved["step"]]
        check(ended.events, flags, "drain", told, world=2)


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
            "--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "test", "--deadline-remaining-seconds", "120",
        ],
        env={**os.environ, **cluster.environment()}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]


def test_a_lost_head_is_survived_by_resubmitting_under_the_same_run_name(flags: dict[str, Any]) -> None:
    did = "SIGKILL to all processes of the head and to the driver after step 17; the same command on a new cluster"
    with scenario("head killed, resubmitted under the same run name", did) as told:
        with LocalCluster(workers=2, env=NODE_ENVIRONMENT) as first:
            driver = Driver(first, flags, SLOWER, run_name="head", num_workers=2)
            driver.until_step(17)
            kill_node(first, 0)
            driver.process.kill()
            before = driver.finish()
        with LocalCluster(workers=2, env=NODE_ENVIRONMENT) as second:
            after = run(second, flags, run_name="head", num_workers=2)
        assert after.code == 0, after.stderr[-3000:]
        last_told, resumed = max(before.losses), after.of("restart")[0]["step"]
        assert resumed >= max(event["step"] for event in before.of("checkpoint"))
        assert resumed < STEPS  # without a head the ranks train on for a while; resubmitting is for what they leave
        silent = range(last_told + 1, resumed + 1)
        check([*before.events, *after.events], flags, "head", told, world=2, silent=silent)
