"""Ctrl-C while a job is followed: asked about, stopped with every line of its end, or left alone with its mark."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.cli import follow as follow_module
from eks_ray_train.cli.__main__ import main
from eks_ray_train.cli.follow import _Interrupts
from eks_ray_train.cli.job_log import JobLog
from eks_ray_train.cli.jobs_api import JobsClient
from tests.deployed_cluster import Deployed, deployed
from tests.ray_stub import StubJob, StubRay, press_ctrl_c, serve

__all__ = ["deployed"]  # a fixture
MARK = "eks-ray-train/active-run"
STEP = b'{"event": "step", "step": %d, "steps": 3, "loss": 2.0}\n'
LAST_WORDS = b'saved the last state\n{"event": "done", "status": "stopped", "steps": 2, "final_loss": 1.0}\n'


@pytest.fixture
def ray() -> StubRay:
    return StubRay()


@pytest.fixture
def url(ray: StubRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    with serve(ray.app()) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("answer", ["d\n", "\n", "", "what?\n"])
def test_ctrl_c_on_a_terminal_asks_and_anything_but_stop_lets_the_job_go_on(
    ray: StubRay, url: str, answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.make_job = lambda _: StubJob(script=[(0, "RUNNING")])
    press_ctrl_c(monkeypatch, answer)
    assert main(["submit", "--address", url, "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["detached"] is True  # nothing else on stdout
    assert "[d]etach and let it go on, or [s]top it?" in told.err
    [(name, job)] = ray.jobs.items()
    assert f"detached from {name}" in told.err and f"eks-ray-train stop {name} --address {url}" in told.err
    assert not job.stopped


def test_ctrl_c_and_stop_ends_the_job_with_exit_code_4_and_every_line_of_its_end(
    ray: StubRay, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.make_job = lambda _: StubJob(script=[(0, "RUNNING")], log=b"begin\n" + STEP % 1, last_words=STEP % 2 + LAST_WORDS)
    press_ctrl_c(monkeypatch, "s\n")
    assert main(["submit", "--address", url]) == 4
    [job] = ray.jobs.values()
    assert job.stopped
    told = capsys.readouterr()
    shown = [line for line in told.out.splitlines() if not line.startswith("step")]
    assert shown == ["begin", "saved the last state", "job: stopped after 2 steps, final loss 1.0000"]
    assert "STOPPED" in told.err
    [path] = Path("runs").glob("*/report.json")
    assert [step["step"] for step in json.loads(path.read_text())["runs"][0]["steps"]] == [1, 2]


def test_ctrl_c_and_a_stop_that_is_ignored_ends_in_bounded_time_and_keeps_the_mark(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follow_module, "STOP_WAIT_S", 1.0)
    deployed.ray.make_job = lambda _: StubJob(script=[(0, "RUNNING")])
    deployed.ray.ignore_stop = True
    press_ctrl_c(monkeypatch, "s\n")
    assert main(["submit", "--no-gate"]) == 4
    [name] = deployed.ray.jobs
    assert f"stop it: eks-ray-train stop {name}" in capsys.readouterr().err
    assert deployed.cloud.annotations == {MARK: name}


@pytest.mark.parametrize(("status", "code"), [("FAILED", 4), ("SUCCEEDED", 0)])
def test_ctrl_c_at_the_end_of_a_job_that_has_ended_gives_its_result(
    deployed: Deployed, status: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pressed while the end of its log is read, which takes long."""
    deployed.ray.make_job = lambda _: StubJob(script=[(0, status)])

    def finish(log: JobLog, info: Any, **_: Any) -> Iterator[bytes]:
        yield b"one more line"
        raise KeyboardInterrupt

    monkeypatch.setattr(JobLog, "finish", finish)
    assert main(["submit", "--no-gate", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert (document["status"], document["detached"], document["exit_code"]) == (status, False, code)
    assert "eks-ray-train logs run-" in document["log_problem"]
    assert deployed.cloud.annotations == {}


def test_ctrl_c_just_after_the_end_gives_the_result_and_the_whole_log(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed.ray.make_job = lambda _: StubJob(script=[(0, "FAILED")], log=b"why it failed\n")
    press_ctrl_c(monkeypatch, None)
    assert main(["submit", "--no-gate"]) == 4
    told = capsys.readouterr()
    assert told.out == "why it failed\n" and "detached" not in told.err
    assert deployed.cloud.annotations == {}


def test_ctrl_c_in_the_middle_of_a_submission_keeps_the_mark_of_what_may_run(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = JobsClient._request

    def request(client: JobsClient, method: str, path: str, **kwargs: Any) -> Any:
        answer = real(client, method, path, **kwargs)
        if (method, path) == ("POST", "/api/jobs/"):
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(JobsClient, "_request", request)
    assert main(["submit", "--no-gate"]) == 130
    [name] = deployed.ray.jobs
    assert deployed.cloud.annotations == {MARK: name}


def test_ctrl_c_before_anything_was_submitted_leaves_no_mark(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    def upload(*_: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(JobsClient, "upload", upload)
    assert main(["submit", "--no-gate"]) == 130
    assert deployed.cloud.annotations == {} and not deployed.ray.jobs


# ---- with real signals ---------------------------------------------------------------------------------------------------
def test_the_first_ctrl_c_waits_for_lines_on_their_way_and_the_second_does_not() -> None:
    with _Interrupts() as interrupts:
        done = []
        with pytest.raises(KeyboardInterrupt):
            with interrupts.held():
                os.kill(os.getpid(), signal.SIGINT)
                done.append("handed on")
        assert done == ["handed on"]
        with pytest.raises(KeyboardInterrupt):
            with interrupts.held():
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
                done.append("not reached")
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        with interrupts.held():
            done.append("nothing is left over")
    assert done == ["handed on", "nothing is left over"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_in_another_thread_nothing_is_changed() -> None:
    seen: list[Any] = []

    def look() -> None:
        with _Interrupts() as interrupts, interrupts.held():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(10)
    assert seen == [signal.default_int_handler]


def test_no_line_is_lost_or_told_twice_over_a_real_ctrl_c(ray: StubRay, url: str, tmp_path: Path) -> None:
    """A flood of lines, Ctrl-C in the middle of it and `s`: the job's last words come behind every line before them."""
    count = 300_000
    ray.make_job = lambda _: StubJob(
        script=[(0, "RUNNING")], log=b"".join(b"line %d\n" % n for n in range(count)), last_words=b"last words\n"
    )
    ours, theirs = pty.openpty()
    out = tmp_path / "out"
    with out.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "eks_ray_train.cli", "submit", "--no-gate", "--address", url],
            cwd=tmp_path, stdin=theirs, stdout=file, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
    try:
        give_up = time.monotonic() + 60
        while out.stat().st_size < 100_000 and time.monotonic() < give_up:
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        os.write(ours, b"s\n")
        _, err = process.communicate(timeout=90)
    finally:
        process.kill()
        for end in (ours, theirs):
            with contextlib.suppress(OSError):
                os.close(end)
    assert process.returncode == 4, err.decode()
    assert b"[s]top it?" in err and b"Traceback" not in err
    assert out.read_bytes().splitlines() == [*(b"line %d" % n for n in range(count)), b"last words"]
