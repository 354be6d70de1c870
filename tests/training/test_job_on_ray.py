"""``train.py`` on a real Ray cluster of a head and two worker nodes, each its own ``ray start`` on this machine."""

from __future__ import annotations

import signal
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.cli.local_ray import LocalCluster
from tests.training.fault_results import check_positions, compare, of_steps, scenario
from tests.training.job_driver import Driver, Finished, run
from tests.training.job_ranks import run_job, write_inputs

pytestmark = [pytest.mark.ray, pytest.mark.timeout(2000)]
STEPS = 12


@pytest.fixture(scope="module")
def cluster(ray_cluster: LocalCluster) -> LocalCluster:
    return ray_cluster


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {**write_inputs(tmp_path_factory.mktemp("ray")), "steps": STEPS, "checkpoint_every": 4, "num_workers": 2}


@pytest.fixture(scope="module")
def whole(cluster: LocalCluster, flags: dict[str, Any]) -> Finished:
    return run(cluster, flags, run_name="whole")


def test_a_run_trains_saves_and_says_so_in_event_lines(whole: Finished) -> None:
    assert whole.code == 0, whole.stderr[-3000:]
    assert whole.done["status"] == "succeeded"
    assert sorted(whole.losses) == list(range(1, STEPS + 1))
    assert whole.losses[STEPS] < whole.losses[1]
    assert [event["step"] for event in whole.of("checkpoint") if event["committed"]] == [4, 8, 12]
    transports = whole.of("transport")
    assert sorted(event["rank"] for event in transports) == [0, 1]
    assert len({event["node"] for event in transports}) == 2
    assert {event["fi_info"]["absent"] for event in transports} == {"fi_info is not installed"}
    (config,) = whole.of("config")
    assert config["nodes"] == 2
    assert config["backend"] == "gloo"


def test_no_step_waits_for_the_controller(whole: Finished) -> None:
    assert statistics.median(event["step_s"] for event in whole.of("step")) < 0.2


@pytest.mark.faults
def test_the_same_run_name_continues_with_more_steps_and_equal_losses(
    cluster: LocalCluster, flags: dict[str, Any], whole: Finished
) -> None:
    first = run(cluster, flags, run_name="twice", steps=4)
    second = run(cluster, flags, run_name="twice", export="hf", profile=2)
    assert (first.code, second.code) == (0, 0), second.stderr[-3000:]
    assert {**first.losses, **second.losses} == whole.losses
    assert second.of("restart")[0]["step"] == 4
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(second.done["export"])
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert Path(second.done["profile"]).stat().st_size > 1000
    board = list((Path(flags["storage_path"]) / "twice" / "tensorboard").glob("events.*"))
    assert board


def test_a_rank_that_raises_ends_the_job_quickly_and_is_named(
    cluster: LocalCluster, flags: dict[str, Any], tmp_path: Path, whole: Finished
) -> None:
    failed = run(cluster, flags, ("raise", "1", "2", str(tmp_path / "mark")), run_name="raise", max_failures=0)
    assert failed.code == 4
    assert failed.done["status"] == "failed"
    error = failed.done["error"]
    assert (error["rank"], error["type"]) == (1, "RuntimeError")
    assert "tripped over a stone" in error["message"]
    assert error["node"] == next(e["node"] for e in failed.of("transport") if e["rank"] == 1)
    assert "the job failed; first: rank 1 on node" in failed.stderr
    assert failed.seconds < whole.seconds + 60


@pytest.mark.matrix
def test_a_killed_worker_restarts_from_the_last_checkpoint_with_equal_losses(
    cluster: LocalCluster, flags: dict[str, Any], tmp_path: Path, whole: Finished
) -> None:
    with scenario("worker process killed", "SIGKILL to one of two workers in step 11, checkpoints every 4 steps") as told:
        survived = run(cluster, flags, ("kill", "1", "11", str(tmp_path / "mark")), run_name="kill")
        assert survived.code == 0, survived.stderr[-3000:]
        assert (tmp_path / "mark").exists()
        compare(told, of_steps(survived.events), whole.losses)
        assert sorted(survived.losses) == sorted(whole.losses)
        (restart,) = survived.of("restart")
        before = survived.events[: survived.events.index(restart)]
        committed = [event["step"] for event in before if event["event"] == "checkpoint" and event["committed"]]
        assert restart["step"] >= max(committed)
        assert survived.done["attempts"] == 2
        assert check_positions(Path(flags["storage_path"]) / "kill") == 3


@pytest.mark.matrix
def test_a_stopped_driver_says_done_and_its_run_goes_on_later(
    cluster: LocalCluster, flags: dict[str, Any], tmp_path: Path
) -> None:
    many = {**flags, "steps": 100}  # more than the workers train until the stop has reached them
    did = "SIGTERM to the driver after the first checkpoint (step 4); the same command again"
    with scenario("driver stopped by SIGTERM", did) as told:
        driver = Driver(cluster, many, ("slow", "0", "200", str(tmp_path / "mark")), run_name="stopped")
        driver.until(lambda event: event["event"] == "checkpoint")
        sent = time.monotonic()
        driver.process.send_signal(signal.SIGTERM)
        stopped = driver.finish()
        told["seconds_from_sigterm_to_exit"] = round(time.monotonic() - sent, 1)
        assert stopped.code == 143, stopped.stderr[-3000:]
        assert stopped.done["status"] == "stopped"
        later = run(cluster, many, run_name="stopped")
        assert later.code == 0, later.stderr[-3000:]
        resumed = later.of("restart")[0]["step"]
        assert stopped.of("checkpoint")[-1]["step"] <= resumed < 100
        assert sorted(later.losses) == list(range(resumed + 1, 101))
        uninterrupted = run_job({**many, "storage_path": f"{flags['storage_path']}-100"}, world=2, name="whole")
        compare(told, of_steps([*stopped.events, *later.events]), dict(of_steps(uninterrupted.events)))
        assert check_positions(Path(flags["storage_path"]) / "stopped")


@pytest.mark.faults
def test_a_hang_ends_in_bounded_time_and_names_the_missing_rank(
    cluster: LocalCluster, flags: dict[str, Any], tmp_path: Path
) -> None:
    fault = ("hang", "1", "5", str(tmp_path / "mark"))
    failed = run(cluster, flags, fault, run_name="hang", max_failures=0, collective_timeout_seconds=8)
    assert failed.code == 4
    assert (
        "ranks missing: [1]" in failed.done["error"]["message"]
        or "rank 1 made no progress" in failed.done["error"]["message"]
    )


@pytest.mark.faults
def test_workers_that_never_come_end_the_wait_with_what_there_is(cluster: LocalCluster, flags: dict[str, Any]) -> None:
    failed = run(cluster, flags, run_name="wait", num_workers=5, wait_seconds=2)
    assert failed.code == 4
    assert "5 CPUs are needed, 2 joined within 2 s" in failed.done["error"]["message"]
    assert "give --num-workers 2" in failed.stderr


@pytest.mark.faults
def test_a_loss_that_is_not_finite_stops_the_run_and_names_step_and_checkpoint(
    cluster: LocalCluster, flags: dict[str, Any]
) -> None:
    failed = run(cluster, flags, run_name="nan", learning_rate=1e30, checkpoint_every=1)
    assert failed.code == 4
    message = failed.done["error"]["message"]
    assert failed.done["error"]["type"] == "NonFiniteLossError"
    assert "is not finite; the last good checkpoint is" in message
    assert "step-00000001-a0001" in message
    assert failed.done["attempts"] == 1


@pytest.mark.faults
@pytest.mark.parametrize("after_s", [0.3, 1.0, 1.6, 2.2, 2.8, 3.4, 4.2, 5.0])
def test_a_stop_while_the_driver_starts_is_told_as_stopped(
    cluster: LocalCluster, flags: dict[str, Any], after_s: float
) -> None:
    driver = Driver(cluster, flags, run_name=f"early-{after_s}")
    time.sleep(after_s)
    driver.process.send_signal(signal.SIGTERM)
    stopped = driver.finish()
    if stopped.events or after_s > 1:  # before its first line, Python ends as every program does
        assert (stopped.done["status"], stopped.code) == ("stopped", 143), stopped.stderr[-2000:]
    else:
        assert stopped.code == -signal.SIGTERM
