"""A checkpoint of 50 million parameters beside the training loop (bench/checkpoint_blocking.py); timings, so not on a busy machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "checkpoint_blocking.py"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("blocking") / "blocking.json"
    done = subprocess.run([sys.executable, str(SCRIPT), "--out", str(out)], capture_output=True, text=True, timeout=590)
    assert out.exists(), done.stderr[-3000:]
    result: dict[str, Any] = json.loads(out.read_text())
    assert 45e6 < result["parameters"] < 55e6
    return result


def median(measured: dict[str, Any], what: str) -> float:
    return float(measured["seconds"][what]["median"])


def test_the_loop_is_blocked_at_most_one_and_a_half_times_as_long_as_a_plain_clone_takes(measured: dict[str, Any]) -> None:
    assert 0 < median(measured, "blocked") <= 1.5 * median(measured, "clone")


def test_steps_beside_an_upload_take_at_most_a_tenth_longer(measured: dict[str, Any]) -> None:
    assert median(measured, "step_during_upload") <= 1.1 * median(measured, "quiet_step")
