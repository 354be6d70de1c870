"""The fault matrix on real Ray: nodes and heads that vanish or are drained, each compared with the uninterrupted run.

``make test-faults`` runs it (several minutes); three of the issue's faults (a killed worker, a full disk, a damaged newest
checkpoint) are in the ordinary tests.
"""

from __future__ import annotations

import json
import os
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
from tests.training.job_ranks import run_job, write_inputs
from tests.training.test_job_on_ray import Finished, finish, run, start

pytestmark = [pytest.mark.ray, pytest.mark.faults, pytest.mark.timeout(1200)]
STEPS = 40
SLOW = ("slow", "0", "0", "/nonexistent")


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {**write_inputs(tmp_path_factory.mktemp("faults")), "steps": STEPS, "checkpoint_every": 5}


def uninterrupted(flags: dict[str, Any], world: int) -> dict[int, float]:
    whole = run_job({**flags, "storage_path": flags["storage_path"] + f"-{world}"}, world=world, name="whole")
    return {event["step"]: event["loss"] for event in whole.of("step")}


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with LocalCluster(workers=request.param) as running:
        yield running


def until_step(process: subprocess.Popen[str], step: int) -> list[str]:
    """The driver's lines up to the event of that step."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith('{"event": "step"') and json.loads(line)["step"] >= step:
            return lines
    raise AssertionError(f"the run ended before step {step}: {lines[-3:]}")


def all_of(lines: list[str], rest: Finished) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines if line.startswith('{"event"')] + rest.events


def busy_nodes(lines: list[str], cluster: LocalCluster) -> list[int]:
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


def check(events: list[dict[str, Any]], expected: dict[int, float], *, exact: bool) -> None:
    """Every step was trained, nothing since the last committed checkpoint lost, and each loss is the expected one."""
    seen: dict[int, list[float]] = {}
    for event in events:
        if event["event"] == "step":
            seen.setdefault(event["step"], []).append(event["loss"])
    assert sorted(seen) == list(range(1, STEPS + 1))
    for step, losses in seen.items():
        for loss in losses:
            assert loss == (expected[step] if exact else pytest.approx(expected[step], rel=1e-5)), step
    committed = 0
    for event in events:
        if event["event"] == "checkpoint" and event["committed"]:
            committed = event["step"]
        if event["event"] == "restart":
            assert event["step"] >= committed


@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_a_killed_node_is_replaced_by_a_spare_one(cluster: LocalCluster, flags: dict[str, Any]) -> None:
    began = time.monotonic()
    process = start(cluster, flags, SLOW, run_name="node", num_workers=2)
    lines = until_step(process, 12)
    kill_node(cluster, busy_nodes(lines, cluster)[-1])
    rest = finish(process, began)
    assert rest.code == 0, rest.stderr[-3000:]
    check(all_of(lines, rest), uninterrupted(flags, 2), exact=True)


@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_with_min_workers_the_run_goes_on_after_two_of_three_nodes_are_lost(
    cluster: LocalCluster, flags: dict[str, Any]
) -> None:
    began = time.monotonic()
    process = start(cluster, flags, SLOW, run_name="elastic", num_workers=3, min_workers=1)
    lines = until_step(process, 12)
    for index in (2, 3):
        kill_node(cluster, index)
    rest = finish(process, began)
    assert rest.code == 0, rest.stderr[-3000:]
    assert rest.of("restart")[-1]["world_size"] == 1
    check(all_of(lines, rest), uninterrupted(flags, 3), exact=False)


@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_a_drained_node_gets_a_checkpoint_at_once(cluster: LocalCluster, flags: dict[str, Any]) -> None:
    began = time.monotonic()
    process = start(cluster, flags, SLOW, run_name="drain", num_workers=2, checkpoint_every=1000, max_failures=3)
    lines = until_step(process, 8)
    index = busy_nodes(lines, cluster)[-1]
    arguments = next(
        Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        for pid in descendants([cluster.node_process(index).pid])
        if b"--node_id=" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    node_id = next(word.partition("=")[2] for word in arguments if word.startswith("--node_id="))
    subprocess.run(
        [
            sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", cluster.gcs_address, "--node-id", node_id,
            "--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "test", "--deadline-remaining-seconds", "40",
        ],
        check=True, env={**os.environ, **cluster.environment()}, capture_output=True,
    )  # fmt: skip
    rest = finish(process, began)
    assert rest.code == 0, rest.stderr[-3000:]
    assert any(event["committed"] and event["step"] < STEPS for event in rest.of("checkpoint"))
    check(all_of(lines, rest), uninterrupted(flags, 2), exact=True)


def test_a_lost_head_is_survived_by_resubmitting_under_the_same_run_name(flags: dict[str, Any]) -> None:
    began = time.monotonic()
    with LocalCluster(workers=2) as first:
        process = start(first, flags, SLOW, run_name="head", num_workers=2)
        lines = until_step(process, 17)
        kill_node(first, 0)
        process.kill()
        before = finish(process, began)
    with LocalCluster(workers=2) as second:
        after = run(second, flags, run_name="head", num_workers=2)
    assert after.code == 0, after.stderr[-3000:]
    assert after.of("restart")[0]["step"] >= 10
    check([*all_of(lines, before), *after.events], uninterrupted(flags, 2), exact=True)
