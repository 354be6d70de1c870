"""What became of each line of the fault matrix, written to bench/results/faults.json where ``RECORD_FAULTS`` is set.

``make test-faults`` sets it. In ``make test`` the same checks are made and nothing is written.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
RESULTS = REPO / "bench" / "results" / "faults.json"
COMMAND = "make test-faults"
FP32, BF16 = 1e-5, 1e-3
"""Largest relative difference of a step's loss at another world size or sharding."""


@contextlib.contextmanager
def scenario(name: str, did: str) -> Iterator[dict[str, Any]]:
    """One line of the matrix: the body does ``did`` and fills the row by ``compare``; written whether it passed or not."""
    told: dict[str, Any] = {"scenario": name, "did": did, "passed": False}
    began = time.monotonic()
    try:
        yield told
        told["passed"] = True
    except BaseException as error:
        told["error"] = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise
    finally:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        told |= {
            "seconds": round(time.monotonic() - began, 1), "date": time.strftime("%Y-%m-%d"),
            "command": f"RECORD_FAULTS=1 python -m pytest -m 'faults or matrix' '{test}'",
            "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
        }  # fmt: skip
        if os.environ.get("RECORD_FAULTS"):
            record(told)


def record(told: dict[str, Any]) -> None:
    old = json.loads(RESULTS.read_text())["scenarios"] if RESULTS.exists() else []
    rows = sorted([row for row in old if row["scenario"] != told["scenario"]] + [told], key=lambda row: row["scenario"])
    RESULTS.write_text(json.dumps({"command": COMMAND, "scenarios": rows}, indent=1) + "\n")


def compare(
    told: dict[str, Any], losses: Iterable[tuple[int, float]], expected: dict[int, float], *, within: float = 0.0
) -> None:
    """Fails where a step's loss is not the uninterrupted run's; 0.0: bitwise. ``losses`` may hold a step more than once."""
    steps = list(losses)
    worst = max(abs(loss - expected[step]) / abs(expected[step]) for step, loss in steps)
    bitwise = all(loss == expected[step] for step, loss in steps)
    told.setdefault("steps_compared", 0)
    told["steps_compared"] += len(steps)
    told["steps_trained_again"] = told.get("steps_trained_again", 0) + len(steps) - len({step for step, _ in steps})
    told["asked"] = f"within {within:g} relative" if within else "bitwise equal"
    told["largest_relative_difference"] = max(worst, told.get("largest_relative_difference", 0.0))
    told["bitwise_equal"] = bitwise and told.get("bitwise_equal", True)
    assert bitwise if not within else worst <= within, f"largest relative difference {worst}"


def of_steps(events: Iterable[dict[str, Any]]) -> list[tuple[int, float]]:
    """(step, loss) of each ``step`` event, in order."""
    return [(event["step"], event["loss"]) for event in events if event["event"] == "step"]


def check_positions(run_folder: Path) -> int:
    """Every complete checkpoint of the run lies where its step must: no sequence skipped or counted twice; their number."""
    markers = [json.loads(path.read_text()) for path in sorted(run_folder.glob("checkpoints/step-*/complete.json"))]
    for marker in markers:
        tokens_a_step = marker["global_batch"] * marker["config"]["seq_len"]
        assert marker["tokens"] == marker["step"] * tokens_a_step, marker["step"]
    # Counted in sequences the position moves on by one global batch a step, whatever the number of sequences an epoch has.
    for one, other in itertools.pairwise(markers):
        if one["position"]["epoch"] == other["position"]["epoch"]:
            moved = other["position"]["index"] - one["position"]["index"]
            assert moved == (other["step"] - one["step"]) * one["global_batch"], (one["step"], other["step"])
    return len(markers)
