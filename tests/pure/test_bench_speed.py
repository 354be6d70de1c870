"""The benches of speed: points as typed, the chart, and results that say how they were made."""

from __future__ import annotations

import argparse
import importlib.util
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def bench(repo: Path) -> Any:
    """bench/train_speed.py as a module."""
    spec = importlib.util.spec_from_file_location("train_speed", repo / "bench" / "train_speed.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_point_is_batch_by_sequence_with_an_optional_precision(bench: Any) -> None:
    assert bench.parse_point("8x2048") == {"batch": 8, "seq": 2048}
    assert bench.parse_point("8x2048:fp8")["flags"] == ["--precision", "fp8"]


@pytest.mark.parametrize("text", ["8", "x2048", "8x", "0x128", "8x2048:int4", "8.5x2"])
def test_a_wrong_point_is_refused_with_an_example(bench: Any, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="8x2048"):
        bench.parse_point(text)


def test_the_chart_has_a_bar_for_each_row(bench: Any, repo: Path) -> None:
    result = json.loads((repo / "bench/results/train_speed.json").read_text())
    root = ElementTree.fromstring(bench.train_speed_chart.render(result))
    bars = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if e.get("rx")]
    assert len(bars) == len(result["rows"]) > 0


@pytest.mark.parametrize("name", ["train_speed", "plan_check", "chip_constants"])
def test_results_say_which_command_made_them(name: str, repo: Path) -> None:
    result = json.loads((repo / f"bench/results/{name}.json").read_text())
    assert result["command"].startswith(f"python bench/{name}.py")
    assert (repo / "bench" / f"{name}.py").is_file()
