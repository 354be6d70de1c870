"""``eks-ray-train train`` finds a mistake in the job's flags and files before a cluster is started for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--stepz", "2"), "unknown flag --stepz (did you mean --steps?)"),
        (("--dataset", "nothing/*.txt"), "nothing/*.txt"),
        (("--dataset", "{empty}"), "holds no"),
        (("--learning-rate", "-1"), "--learning-rate"),
    ],
)
def test_a_mistake_is_exit_code_2_before_ray_is_started(tmp_path: Path, repo: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "empty").mkdir()
    given = [word.format(empty=tmp_path / "empty") for word in words]
    done = subprocess.run(
        [sys.executable, "-m", "eks_ray_train.cli", "train", "--out", str(tmp_path / "out"), *given],
        cwd=repo, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "starting Ray" not in done.stderr and "Traceback" not in done.stderr
    assert not any((tmp_path / "out").rglob("*"))
