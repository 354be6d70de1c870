"""What the driver asks of Ray Train: groups with a CPU backend, elastic workers, and bounds on every kind of waiting."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray")

from fsdp_job.config import JobConfig
from fsdp_job.driver import ENVIRONMENT, START_TIMEOUT_S, _trainer


def trainer(cfg: JobConfig, *, world: int = 4, on_gpus: bool = False) -> Any:
    settings = {"submission": "abc", "run_name": "r"}
    return _trainer(cfg, settings, world=world, on_gpus=on_gpus, folder="/nonexistent")


def test_collectives_on_gpus_have_a_cpu_backend_too() -> None:
    assert trainer(JobConfig(), on_gpus=True).backend_config.backend == "cpu:gloo,cuda:nccl"
    assert trainer(JobConfig()).backend_config.backend == "gloo"


@pytest.mark.parametrize(("least", "workers"), [(None, 4), (1, (1, 4)), (4, 4)])
def test_min_workers_makes_the_run_elastic(least: int | None, workers: Any) -> None:
    assert trainer(JobConfig(min_workers=least)).scaling_config.num_workers == workers
    assert ENVIRONMENT["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] == str(START_TIMEOUT_S)


@pytest.mark.parametrize(
    ("flags", "restarts"),
    [({}, 0), ({"checkpoint_every": 5}, 3), ({"max_failures": 7}, 7), ({"checkpoint_every": 5, "max_failures": 0}, 0)],
)
def test_restarts_are_as_asked_or_three_where_checkpoints_make_them_worthwhile(flags: Any, restarts: int) -> None:
    assert trainer(JobConfig(**flags)).run_config.failure_config.max_failures == restarts


@pytest.mark.parametrize(("wait_seconds", "attempts"), [(1800.0, 90), (45.0, 3), (1.0, 1)])
def test_placing_the_workers_is_tried_as_long_as_gpus_are_awaited_and_not_for_ever(
    wait_seconds: float, attempts: int
) -> None:
    config = trainer(JobConfig(wait_seconds=wait_seconds)).run_config.failure_config
    assert config.controller_failure_limit == attempts
