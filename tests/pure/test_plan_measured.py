"""``plan`` against what was measured on one and two H200s at points that its constants were not fitted to (bench/plan_check.py)."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def compared(repo: Path) -> list[dict[str, Any]]:
    """The measured rows with what today's plan says of them."""
    spec = importlib.util.spec_from_file_location("plan_check", repo / "bench" / "plan_check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = json.loads((repo / "bench/results/plan_check.json").read_text())["rows"]
    measured = [
        {**row, "step_s": [row["step_s"]], "nodes": row["gpus"] if row["sharding"] == "hybrid" else 1} for row in rows
    ]
    return list(module.compare(measured))


def test_at_least_twelve_points_of_every_kind_were_measured(compared: list[dict[str, Any]]) -> None:
    assert len(compared) >= 12
    assert {row["model"] for row in compared} == {"0.1b", "0.5b", "1.5b", "3b"}
    assert {row["seq"] for row in compared} == {512, 2048, 8192}
    assert {row["sharding"] for row in compared} == {"full", "hybrid"}
    assert {row["checkpointing"] for row in compared} == {"none", "full"}


def test_step_times_are_within_15_percent(compared: list[dict[str, Any]]) -> None:
    assert {k: v for k, v in errors(compared, "step_error").items() if abs(v) > 0.15} == {}


def test_peak_memory_is_within_10_percent(compared: list[dict[str, Any]]) -> None:
    assert {k: v for k, v in errors(compared, "peak_error").items() if abs(v) > 0.10} == {}


def errors(rows: list[dict[str, Any]], name: str) -> dict[str, float]:
    return {f"{r['gpus']} GPU {r['model']} {r['batch']} × {r['seq']} {r['checkpointing']} {r['sharding']}": r[name] for r in rows}
