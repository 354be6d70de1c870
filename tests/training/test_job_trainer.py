"""What the driver asks of Ray Train: groups with a CPU backend, elastic workers, and bounds on every kind of waiting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

import ray
from ray import cloudpickle
from ray.train.torch import TorchTrainer
from ray.train.v2.api import data_parallel_trainer

from fsdp_job import driver
from fsdp_job.config import JobConfig
from fsdp_job.driver import ENVIRONMENT, START_TIMEOUT_S, _check_fewest, _fit_growing, _trainer
from fsdp_job.errors import JobUsageError
from fsdp_job.room import Room, fitting


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


@pytest.mark.parametrize(("available", "batch", "ranks"), [(24, 64, 16), (32, 64, 32), (24, 96, 24), (3, 8, 2), (1, 7, 1), (0, 8, 0)])
def test_the_largest_number_of_ranks_that_share_the_batch_is_taken(available: int, batch: int, ranks: int) -> None:
    assert fitting(available, batch) == ranks


@pytest.mark.parametrize(("placeable", "ranks"), [(32, 32), (31, 16), (24, 16), (8, 8), (7, 4)])
def test_ray_is_asked_for_numbers_of_ranks_that_divide_the_global_batch(
    placeable: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through Ray's own trainer and policy: fails where a release of Ray decides elsewhere."""
    given: dict[str, Any] = {}

    def run(self: Any, **kwargs: Any) -> Any:
        given.update(kwargs)
        return SimpleNamespace(error=None)

    monkeypatch.setattr(TorchTrainer, "_initialize_and_run_controller", run)
    monkeypatch.setattr(data_parallel_trainer, "ObjectRefWrapper", lambda function: function)  # it would start Ray in this process
    trainer(JobConfig(min_workers=4, batch_size=2), world=32).fit()
    policy = given["scaling_policy"]
    monkeypatch.setattr(policy, "_maybe_send_resource_request", lambda: None)
    monkeypatch.setattr(policy, "_get_reserved_resources", lambda: [{"CPU": 1.0}] * placeable)
    decision = policy.make_decision_for_non_running_worker_group()
    assert not ray.is_initialized()
    assert decision.num_workers == ranks
    assert type(cloudpickle.loads(cloudpickle.dumps(policy))).__name__ == "DividingPolicy"  # it travels to the controller


def test_a_least_number_of_ranks_that_cannot_share_the_batch_is_refused_at_once() -> None:
    with pytest.raises(JobUsageError, match=r"--min-workers must divide the global batch of 8 sequences, got 3; give one of 1, 2, 4"):
        _check_fewest(JobConfig(min_workers=3, batch_size=2), 4)
    _check_fewest(JobConfig(min_workers=2, batch_size=2), 4)
    _check_fewest(JobConfig(batch_size=2), 3)


class Runs:
    """Stands in for the trainers of a run: each gives an outcome, after so many attempts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *outcomes: tuple[int, int | None, int]) -> None:
        self.outcomes, self.asked, self.attempts = iter(outcomes), [], 0  # type: ignore[var-annotated]
        monkeypatch.setattr(driver, "_trainer", self.trainer)
        monkeypatch.setattr(driver, "_attempts", lambda _: self.attempts)

    def trainer(self, cfg: JobConfig, settings: dict[str, Any], **more: Any) -> Any:
        self.asked.append((settings["may_grow"], more["max_failures"]))
        world, grow_to, attempts = next(self.outcomes)
        self.attempts += attempts
        status = "succeeded" if grow_to is None else "grow"
        result = SimpleNamespace(return_value={"status": status, "grow_to": grow_to, "world_size": world, "step": 5})
        return SimpleNamespace(fit=lambda: result)


def grown(cfg: JobConfig) -> dict[str, Any]:
    return _fit_growing(cfg, {"sink": None}, world=4, on_gpus=False, folder="/nonexistent")


def test_a_run_grows_as_often_as_it_shrinks_and_its_failures_are_counted_over_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch, (2, 4, 2), (2, 4, 2), (2, 4, 2), (4, None, 1))
    assert grown(JobConfig(min_workers=2, checkpoint_every=5, max_failures=4))["status"] == "succeeded"
    assert runs.asked == [(True, 4), (True, 3), (True, 2), (True, 1)]


def test_growth_that_brought_nothing_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch, (2, 4, 2), (2, 4, 1), (2, None, 1))
    grown(JobConfig(min_workers=2, checkpoint_every=5))
    assert [may for may, _ in runs.asked] == [True, True, False]


def test_a_run_that_is_not_elastic_never_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch, (4, None, 1))
    grown(JobConfig(checkpoint_every=5))
    assert runs.asked == [(False, 3)]


def test_room_that_comes_and_goes_or_that_cannot_share_the_batch_is_not_taken() -> None:
    state = Free()
    room = Room(world=2, most=4, global_batch=8, free=lambda: state.ranks, clock=lambda: state.now)
    for state.now, state.ranks in ((50, 2), (60, 0), (90, 2), (100, 2)):
        room.look()
    assert room.size() is None  # seen again for 10 s only
    state.now, state.ranks = 130, 1
    room.look()
    state.now = 160
    assert room.size() is None  # 3 ranks could run, which cannot share 8 sequences: 2 as now
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
