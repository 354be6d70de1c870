"""A run that would end after the spending limit is asked about, refused where nobody can be asked, and told of while it runs."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.cli import spending, waiting
from eks_ray_train.cli.__main__ import main
from eks_ray_train.cli.consent import agree
from eks_ray_train.cli.run_record import RunRecord
from eks_ray_train.cli.spending import JOB_DEFAULTS, LimitCheck, estimate, observed_step_s
from eks_ray_train.errors import UsageError
from eks_ray_train.settings import Settings
from tests.deployed_cluster import Deployed, deployed
from tests.kube_stub import node
from tests.ray_stub import StubJob

__all__ = ["deployed"]  # a fixture

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def limit_in(d: Deployed, **hours: float) -> None:
    at = datetime.now(UTC) + timedelta(**hours)
    d.cloud.stacks = {"EksRayTrainTraining": {"SpendingLimitAt": at.strftime("%Y-%m-%dT%H:%M:%S")}}


def test_a_run_that_ends_after_the_limit_is_refused_under_json_with_the_command_that_counts_anew(
    deployed: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    limit_in(deployed, hours=2)
    assert main(["submit", "--json", "--", "--steps", "100000", "--seq_len", "2048"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == 2 and not deployed.ray.jobs
    assert "100,000 steps x" in told["error"] and "eks-ray-train scale 2 --hours" in told["error"]
    assert "--yes" in told["error"] and "nothing was submitted" in told["error"]


@pytest.mark.parametrize("steps", [["--steps", "10"], []])
def test_a_run_that_ends_before_the_limit_is_not_asked_about(
    deployed: Deployed, steps: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    limit_in(deployed, hours=2)
    assert main(["submit", "--detach", "--json", "--", *steps]) == 0
    assert "spending limit: the GPU nodes are drained at" in capsys.readouterr().err


def test_the_drain_and_not_the_last_minute_is_what_a_run_must_end_before(deployed: Deployed) -> None:
    limit_in(deployed, minutes=14)
    assert main(["submit", "--detach", "--json", "--", "--steps", "1"]) == 2
    limit_in(deployed, minutes=17)
    assert main(["submit", "--detach", "--json", "--", "--steps", "1"]) == 0


def test_yes_agrees_beforehand(deployed: Deployed) -> None:
    limit_in(deployed, hours=2)
    assert main(["submit", "--yes", "--detach", "--json", "--", "--steps", "100000"]) == 0
    assert len(deployed.ray.jobs) == 1


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2), ("", 2)])
def test_at_a_terminal_the_answer_decides(
    deployed: Deployed, answer: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limit_in(deployed, hours=2)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdin, "readline", lambda: answer, raising=False)
    assert main(["submit", "--detach", "--", "--steps", "100000"]) == code
    assert "Go on? [y/N]" in capsys.readouterr().err
    assert len(deployed.ray.jobs) == (code == 0)


def test_a_limit_that_has_passed_is_told_at_once_and_not_after_half_an_hour_of_waiting(
    deployed: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    limit_in(deployed, hours=-1)
    deployed.kubernetes.nodes = deployed.kubernetes.nodes[:1]
    assert main(["submit", "--json"]) == 2
    told = json.loads(capsys.readouterr().out)["error"]
    assert "the spending limit stopped the GPU nodes at" in told and "scale 2 --hours 1" in told


@pytest.mark.parametrize(
    ("stacks", "says"),
    [
        ({}, ""),
        ({"EksRayTrainTraining": {}}, ""),
        (None, "no permission for cloudformation:DescribeStacks"),
        ({"EksRayTrainTraining": {"SpendingLimitAt": "soon"}}, "is no time: 'soon'"),
    ],
)
def test_without_a_limit_that_can_be_read_nobody_is_asked(
    deployed: Deployed, stacks: Any, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed.cloud.stacks = stacks
    assert main(["submit", "--detach", "--json", "--", "--steps", "100000"]) == 0
    error = capsys.readouterr().err
    assert ("the spending limit is not known" in error) == bool(says) and says in error


def test_a_model_that_the_plan_does_not_know_leaves_the_length_open(
    deployed: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    limit_in(deployed, hours=2)
    assert main(["submit", "--detach", "--json", "--", "--model_id", "some/model", "--steps", "100000"]) == 0
    assert "how long the run takes is not known (--model some/model: its shape is not shipped" in capsys.readouterr().err


def test_what_fitted_before_the_wait_is_asked_about_when_the_wait_has_eaten_the_time(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "POLL_S", 0.1)
    looks: list[int] = []

    later = {"now": lambda: datetime.now(UTC) + timedelta(hours=len(looks))}
    monkeypatch.setattr(LimitCheck.__init__, "__kwdefaults__", {**(LimitCheck.__init__.__kwdefaults__ or {}), **later})
    limit_in(deployed, hours=2.1)
    deployed.kubernetes.nodes[1] = node("gpu-1", ready=False)
    deployed.kubernetes.on_nodes = lambda _: looks.append(1)
    assert main(["submit", "--json", "--", "--steps", "10"]) == 2
    assert len(looks) == 2 and not deployed.ray.jobs
    assert "would end about" in json.loads(capsys.readouterr().out)["error"]


def test_a_run_that_turns_out_slower_than_planned_is_told_of_once_while_it_runs(
    deployed: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    limit_in(deployed, hours=2)
    lines = [{"event": "step", "step": n, "steps": 1000, "step_s": 60.0, "loss": 1.0} for n in range(1, 40)]
    deployed.ray.make_job = lambda _: StubJob(log="".join(json.dumps(line) + "\n" for line in lines).encode())
    assert main(["submit", "--no-gate", "--", "--steps", "1000"]) == 0
    error = capsys.readouterr().err
    assert error.count("as the last steps took, this run ends about") == 1 and "scale 2 --hours 18" in error


# ---- what it stands on -----------------------------------------------------------------------------------------------
def test_the_first_steps_and_one_slow_step_do_not_count() -> None:
    record = RunRecord()
    record.feed({"event": "config", "warmup_steps": 3})
    for number, seconds in enumerate([90.0, 9.0, 1.0, 1.0, 1.0], 1):
        record.feed({"event": "step", "step": number, "step_s": seconds})
    assert observed_step_s(record) is None
    for number, seconds in enumerate([30.0, 1.1, 0.9], 6):
        record.feed({"event": "step", "step": number, "step_s": seconds})
    assert observed_step_s(record) == 1.0


def test_the_estimate_is_the_plans_own_for_the_jobs_flags() -> None:
    from eks_ray_train.instances import get_instance_type
    from eks_ray_train.plan import Run, cluster_of, find_model, predict

    flags = ["--model-id", "Qwen/Qwen2.5-0.5B", "--seq-len=1024", "--batch_size", "4", "--steps", "50", "--num_workers", "4"]
    found = estimate(flags, Settings(gpu_instance_type="g6e.12xlarge"), tcp=False)
    run = Run(shape=find_model("Qwen/Qwen2.5-0.5B"), seq_len=1024, batch_size=4)
    planned = predict(run, cluster_of(get_instance_type("g6e.12xlarge"), 1), steps=50)
    assert (found.steps, found.step_s) == (50, planned.time.total)
    assert estimate(flags[:-2], Settings(), tcp=True).step_s > estimate(flags[:-2], Settings(), tcp=False).step_s


@pytest.mark.parametrize(
    "flags", [["--steps", "many"], ["--steps", "-5"], ["--precision", "int4"], ["--model-config", "nowhere.json"], ["--seq_len", "0"]]
)
def test_flags_that_the_job_would_refuse_give_no_estimate(flags: list[str]) -> None:
    with pytest.raises(UsageError):
        estimate(flags, Settings(), tcp=False)


def test_any_number_of_steps_has_an_end_that_a_date_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cdk.json").write_text("{}")
    monkeypatch.setattr(spending, "read_limit", lambda _: NOW + timedelta(hours=1))
    asked: list[str] = []
    check = LimitCheck(["--steps", "9" * 30], ask=asked.append, cdk_json=tmp_path / "cdk.json", now=lambda: NOW)
    assert check() and not check()
    assert len(asked) == 1 and "2036" in asked[0]


def test_the_defaults_are_the_jobs_own() -> None:
    config = pytest.importorskip("fsdp_job.config")
    for name, value in JOB_DEFAULTS.items():
        own = config.DEFAULT_MODEL if name == "model_id" else getattr(config.JobConfig, name)
        assert str(own) == value, name


def test_nobody_is_asked_twice_and_no_answer_is_a_refusal() -> None:
    args = argparse.Namespace(yes=False, json=True)
    with pytest.raises(UsageError, match="Add --yes to agree; nothing was submitted"):
        agree(args, "question.", refused="nothing was submitted")
