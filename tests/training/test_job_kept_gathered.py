"""Weights kept gathered between the forward and the backward pass change nothing but speed, evaluations and saves included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from fsdp_job.precision import choose_precision
from fsdp_job.sharding import KEPT_SHARE_OF_MEMORY, keeps_gathered
from tests.training.job_ranks import run_job, write_inputs


def _keep(_rank: int) -> None:
    from fsdp_job import sharding

    sharding.keeps_gathered = lambda **_: True  # type: ignore[assignment]


def test_losses_evaluations_and_resume_are_the_same_with_weights_kept_gathered(tmp_path: Path) -> None:
    flags: dict[str, Any] = {
        **write_inputs(tmp_path),
        "eval_every": 2,
        "eval_sequences": 4,
        "checkpoint_every": 2,
        "steps": 4,
    }
    plain = run_job(flags, world=2, name="plain")
    kept = run_job(flags, world=2, name="kept", before=_keep)
    assert [o["status"] for o in kept.outcomes] == ["succeeded"] * 2, kept.outcomes
    assert kept.losses == pytest.approx(plain.losses, rel=1e-6)
    evaluations = [[e["eval_loss"] for e in run.of("step") if "eval_loss" in e] for run in (plain, kept)]
    assert evaluations[1] == pytest.approx(evaluations[0], rel=1e-6)
    assert len(evaluations[0]) == 2
    # The checkpoint after an evaluation holds the shards, not the gathered weights: it resumes to the same losses.
    more = run_job({**flags, "steps": 6}, world=2, name="kept", before=_keep, submission="s2")
    whole = run_job({**flags, "steps": 6}, world=2, name="whole")
    assert [e["step"] for e in more.of("step")] == [5, 6]
    assert more.losses == pytest.approx(whole.losses[4:], rel=1e-6)


def test_weights_are_kept_where_they_take_a_twentieth_of_the_memory_and_never_on_the_cpu() -> None:
    memory = 100 * 2**30
    most = int(KEPT_SHARE_OF_MEMORY * memory / 2)
    assert keeps_gathered(block_parameters=most, compute_bytes=2, gpu_memory_bytes=memory)
    assert not keeps_gathered(block_parameters=most + 1, compute_bytes=2, gpu_memory_bytes=memory)
    assert not keeps_gathered(block_parameters=1, compute_bytes=2, gpu_memory_bytes=None)


def test_fp8_without_a_gpu_is_a_usage_error_with_the_remedy() -> None:
    import torch

    from fsdp_job.errors import JobUsageError

    with pytest.raises(JobUsageError, match=r"compute capability 8\.9.*--precision bf16"):
        choose_precision("fp8", torch.device("cpu"))
