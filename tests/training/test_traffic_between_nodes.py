"""What crosses the cable between two machines of four ranks, by the interface's counter (bench/traffic_between_nodes.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training.netns_cluster import need_namespaces

pytestmark = [pytest.mark.netns, pytest.mark.faults, pytest.mark.timeout(500)]
SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "traffic_between_nodes.py"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    need_namespaces()
    out = tmp_path_factory.mktemp("traffic") / "traffic.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--steps", "2", "--out", str(out)], capture_output=True, text=True, timeout=490
    )  # fmt: skip
    assert out.exists(), done.stderr[-3000:]
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def sent(measured: dict[str, Any], sharding: str, precision: str, accumulate: int = 1) -> float:
    wanted = {"sharding": sharding, "precision": precision, "accumulate": accumulate}
    (row,) = [row for row in measured["rows"] if wanted.items() <= row.items()]
    return sum(row["bytes_per_step"]) / 2


def test_hybrid_sends_at_most_0_30_of_full_in_fp32(measured: dict[str, Any]) -> None:
    assert 0 < sent(measured, "hybrid", "fp32") <= 0.30 * sent(measured, "full", "fp32")


def test_hybrid_sends_at_most_0_40_of_full_with_bf16_compute_and_fp32_reduction(measured: dict[str, Any]) -> None:
    assert 0 < sent(measured, "hybrid", "bf16") <= 0.40 * sent(measured, "full", "bf16")


def test_with_four_accumulated_micro_batches_each_sends_a_quarter(measured: dict[str, Any]) -> None:
    assert sent(measured, "hybrid", "fp32", 4) / 4 == pytest.approx(sent(measured, "hybrid", "fp32") / 4, rel=0.03)


def test_hybrid_is_within_six_percent_of_the_lower_bound_of_one_all_reduce_between_nodes(measured: dict[str, Any]) -> None:
    bound = measured["rows"][0]["lower_bound_bytes_per_step"]
    assert 0.99 * bound <= sent(measured, "hybrid", "fp32") <= 1.06 * bound
