"""``bench`` on two network namespaces as machines: real gloo traffic over a veth pair, proven by the interface's bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from tests.training.netns_cluster import RayOnTwoMachines, netns_cluster

# Two minutes on two cores: with the long tests.
pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.faults, pytest.mark.timeout(600)]
JOB = Path(__file__).resolve().parent.parent.parent / "job"
TINY = ("--model-config=configs/qwen2-tiny.json", "--tokenizer=bytes", "--seq_len=64", "--batch_size=1", "--steps=12", "--warmup_steps=4")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayOnTwoMachines]:
    with netns_cluster() as running:
        yield running


def bench(cluster: RayOnTwoMachines, folder: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    kind, *rest = words
    flags = ["--address", cluster.address, "--job-dir", str(JOB), "--json"]
    done = subprocess.run(
        cluster.machines.inside(0, sys.executable, "-m", "eks_ray_train.cli", "bench", kind, *flags, *rest),
        cwd=folder, env=cluster.environment(), capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def test_the_transport_benchmark_counts_runs_whose_bytes_crossed_the_cable(cluster: RayOnTwoMachines, tmp_path: Path) -> None:
    before = [cluster.machines.sent(0), cluster.machines.sent(1)]
    code, told, err = bench(cluster, tmp_path, "transport", "--repeat", "2", "--", *TINY, f"--storage-path={tmp_path / 'checkpoints'}")
    moved = [cluster.machines.sent(n) - before[n] for n in (0, 1)]
    assert code == 0, err
    assert [run["counts"] for run in told["runs"]] == [True, True], told["runs"]
    step = told["transports"]["none"]["median_step_s"]
    assert step["count"] == 2 and 0 < step["low"] <= step["median"] <= step["high"]
    for run in told["runs"]:
        assert "v0" in run["proof"] and "v1" in run["proof"]
    report = json.loads((tmp_path / "runs" / Path(told["report"]).parent.name / "bench.json").read_text())
    assert report["transports"] == told["transports"]
    # What the job says that it sent is what the kernel's counters of both ends saw, at most.
    assert min(moved) > 10e6, moved


def test_the_bandwidth_benchmark_measures_every_size(cluster: RayOnTwoMachines, tmp_path: Path) -> None:
    before = cluster.machines.sent(0)
    arguments = ("--min-bytes", "4096", "--max-bytes", "1048576", "--iterations", "5", "--repeat", "3")
    code, told, err = bench(cluster, tmp_path, "nccl", "--", *arguments)
    assert code == 0, err
    rows = told["bandwidth"]["none"]
    assert [row["bytes"] for row in rows] == [4096, 16384, 65536, 262144, 1048576]
    for row in rows:
        # Two ranks: the factor 2 (n - 1) / n is 1, so bus and algorithm bandwidth are the same.
        assert row["bus_gb_s"]["count"] == 3
        assert row["bus_gb_s"]["median"] == pytest.approx(row["algorithm_gb_s"])
        assert row["algorithm_gb_s"] == pytest.approx(row["bytes"] / row["seconds"]["median"] / 1e9, rel=0.01)
    assert rows[-1]["bus_gb_s"]["median"] > rows[0]["bus_gb_s"]["median"]
    assert told["runs"][0]["counts"] and cluster.machines.sent(0) - before > 5 * 3 * 1048576 / 2


def test_a_run_that_the_gate_cannot_prove_does_not_count(cluster: RayOnTwoMachines, tmp_path: Path) -> None:
    code, told, err = bench(cluster, tmp_path, "nccl", "--over", "tcp", "--", "--max-bytes", "8192", "--iterations", "2", "--repeat", "1")
    assert code == 3, err
    assert told["runs"][0]["status"] == "SUCCEEDED" and not told["runs"][0]["counts"] and told["runs"][0]["why_not"]
    assert told["bandwidth"]["tcp"] == []
