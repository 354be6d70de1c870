"""What the driver asks of Ray Train: groups with a CPU backend, elastic workers, and bounds on every kind of waiting."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray")

from fsdp_job.config import JobConfig
from fsdp_job.driver import ENVIRONMENT, START_TIMEOUT_S, _trainer
from fsdp_job.room import Room


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


def test_ray_never_resizes_a_running_group_by_itself_which_would_cost_the_steps_since_the_last_checkpoint() -> None:
    assert trainer(JobConfig(min_workers=1)).scaling_config.elastic_resize_monitor_interval_s > 365 * 86400


class Free:
    """A clock and a number of free ranks to set."""

    now, ranks = 0.0, 0


@pytest.mark.parametrize(
    ("free", "waited", "size"),
    [(0, 100, None), (1, 24, None), (1, 26, 3), (2, 26, 4), (9, 26, 4), (-1, 26, None)],
)
def test_room_is_taken_once_it_has_been_there_long_enough_for_ray_to_see_it_too(free: int, waited: float, size: int | None) -> None:
    state = Free()
    room = Room(world=2, most=4, global_batch=12, free=lambda: state.ranks, clock=lambda: state.now)
    room.look()
    state.now, state.ranks = 50.0, free
    room.look()
    state.now += waited
    room.look()
    assert room.size() == size


def test_room_that_comes_and_goes_or_that_cannot_share_the_batch_is_not_taken() -> None:
    state = Free()
    room = Room(world=2, most=4, global_batch=8, free=lambda: state.ranks, clock=lambda: state.now)
    for state.now, state.ranks in ((50, 2), (60, 0), (90, 2), (100, 2)):
        room.look()
    assert room.size() is None  # seen again for 10 s only
    state.now, state.ranks = 130, 1
    room.look()
    state.now = 160
    assert room.size() is None  # 8 sequences for 3 ranks
    state.ranks = 2
    room.look()
    state.now = 190
    assert room.size() == 4


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
