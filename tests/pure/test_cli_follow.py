"""Following a job through a stop that is not heard, answers that are not Ray's, and logs that never come."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.cli import follow as follow_module
from eks_ray_train.cli.__main__ import main
from eks_ray_train.cli.job_info import JobInfo
from eks_ray_train.cli.job_log import JobLog
from eks_ray_train.cli.jobs_api import JobsClient
from eks_ray_train.errors import ClusterNotReadyError
from tests.deployed_cluster import Deployed, deployed
from tests.ray_stub import StubJob, StubRay, serve

__all__ = ["deployed"]  # a fixture
MARK = "eks-ray-train/active-run"


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_module, "POLL_S", 0.3)


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    value = json.loads(capsys.readouterr().out)
    assert isinstance(value, dict)
    return value


# ---- --timeout: the stop -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("answer", [(503, ""), (500, "agent"), (400, "no"), (200, "null"), (200, '{"stopped": false}')])
def test_a_stop_that_is_not_heard_is_said_again(deployed: Deployed, answer: tuple[int, str], capsys: pytest.CaptureFixture[str]) -> None:
    deployed.ray.make_job = lambda _: StubJob(script=[(0, "RUNNING")])
    deployed.ray.next_answers["POST", "/stop"] = [answer] * 3
    assert main(["submit", "--no-gate", "--timeout", "1", "--json"]) == 4
    document = told(capsys)
    assert (document["status"], document["timed_out"]) == ("STOPPED", True)
    assert deployed.cloud.annotations == {} and not deployed.ray.next_answers["POST", "/stop"]


def test_a_run_that_ends_by_itself_while_no_stop_is_heard_did_not_time_out(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    deployed.ray.make_job = lambda _: StubJob(script=[(0, "RUNNING"), (4, "SUCCEEDED")])
    deployed.ray.next_answers["POST", "/stop"] = [(503, "")] * 1000
    assert main(["submit", "--no-gate", "--timeout", "1", "--json"]) == 0
    document = told(capsys)
    assert (document["status"], document["timed_out"]) == ("SUCCEEDED", False)


@pytest.mark.parametrize("how", ["ignored", "never heard"])
def test_a_job_that_does_not_stop_is_told_in_bounded_time_and_stays_marked(
    deployed: Deployed, how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follow_module, "STOP_WAIT_S", 1.5)
    monkeypatch.setattr(follow_module.follow, "__kwdefaults__", {**(follow_module.follow.__kwdefaults__ or {}), "lost_after_s": 1.5})
    deployed.ray.make_job = lambda _: StubJob(script=[(0, "RUNNING")])
    deployed.ray.ignore_stop = how == "ignored"
    deployed.ray.next_answers["POST", "/stop"] = [] if how == "ignored" else [(503, "")] * 1000
    began = time.monotonic()
    assert main(["submit", "--no-gate", "--timeout", "1", "--json"]) == 4
    assert time.monotonic() - began < 20
    [name] = deployed.ray.jobs
    error = told(capsys)["error"]
    assert "is still RUNNING after" in error and f"stop it: eks-ray-train stop {name}" in error
    assert deployed.cloud.annotations == {MARK: name}


# ---- answers that are not Ray's ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "answer",
    [(200, "null"), (200, '{"submission_id": "x", "status": "RUNNING", "start_time": "2024"}'), (200, "[" * 100_000), (302, ""), (400, "bad"),
     (404, "default backend - 404"), (413, "no"), (401, "no")],
)  # fmt: skip
def test_odd_answers_while_following_are_an_absent_dashboard(
    deployed: Deployed, answer: tuple[int, str], capsys: pytest.CaptureFixture[str]
) -> None:
    deployed.ray.make_job = lambda _: StubJob(script=[(0, "RUNNING"), (3, "SUCCEEDED")])
    deployed.ray.next_answers["GET", "/api/jobs/run-"] = [answer] * 8
    assert main(["submit", "--no-gate", "--json"]) == 0
    assert told(capsys)["status"] == "SUCCEEDED"
    assert deployed.cloud.annotations == {} and not deployed.ray.next_answers["GET", "/api/jobs/run-"]


def test_a_404_that_is_not_rays_is_never_a_vanished_job(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follow_module.follow, "__kwdefaults__", {**(follow_module.follow.__kwdefaults__ or {}), "lost_after_s": 2.0})
    deployed.ray.make_job = lambda _: StubJob(script=[(0, "RUNNING")])
    deployed.ray.next_answers["GET", "/api/jobs/run-"] = [(404, "The page does not exist")] * 1000
    assert main(["submit", "--no-gate", "--json"]) == 6
    [name] = deployed.ray.jobs
    assert "unknown" in told(capsys)["error"]
    assert deployed.cloud.annotations == {MARK: name}


@pytest.mark.parametrize(
    ("words", "path", "text"),
    [
        (["status"], "/api/jobs/", "null"), (["status"], "/api/jobs/", "[null]"), (["status"], "/api/jobs/", '{"a":1}'),
        (["status"], "/api/jobs/", '[{"type": "SUBMISSION"}]'), (["status", "j"], "/api/jobs/j", "null"), (["status", "j"], "/api/jobs/j", "[null]"),
        (["status", "j"], "/api/jobs/j", '{"submission_id": "j", "status": 3}'),
        (["status", "j"], "/api/jobs/j", '{"submission_id": "j", "status": "RUNNING", "start_time": "2024"}'),
        (["status", "j"], "/api/jobs/j", '{"submission_id": "j", "status": "RUNNING", "start_time": 1e400}'),
        (["status", "j"], "/api/jobs/j", '{"submission_id": "j", "status": "RUNNING", "end_time": 1e300}'),
        (["status", "j"], "/api/jobs/j", '{"submission_id": "j", "status": "FAILED", "message": 3}'),
        (["stop", "j"], "/api/jobs/j/stop", "[]"), (["stop", "j"], "/api/jobs/j/stop", '{"a":1}'), (["logs", "j"], "/api/jobs/j", "null"),
    ],
)  # fmt: skip
def test_an_answer_of_another_shape_is_exit_code_6(
    words: list[str], path: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    ray = StubRay()
    ray.jobs = {"j": StubJob()}
    ray.fail[path] = (200, text)
    with serve(ray.app()) as port:
        assert main([*words, "--address", f"http://127.0.0.1:{port}"]) == 6
    error = capsys.readouterr().err
    assert "the dashboard answered" in error and "instead of" in error and "unexpected" not in error


def test_rays_own_answer_is_read() -> None:
    info = JobInfo.from_json({"submission_id": None, "job_id": "01", "status": "failed", "start_time": 1000, "end_time": 2500, "error_type": "X"})
    assert (info.submission_id, info.status, info.seconds, info.error_type) == ("01", "FAILED", 1.5, "X")


def test_nodes_of_another_shape_are_a_cluster_that_is_not_ready() -> None:
    ray = StubRay()
    ray.fail["/nodes"] = (200, '{"data": []}')
    with serve(ray.app()) as port, pytest.raises(ClusterNotReadyError, match="instead of a list of nodes"):
        JobsClient(f"127.0.0.1:{port}").nodes()


# ---- the mark of a submission whose end nobody knows ---------------------------------------------------------------------
def test_a_submission_that_was_never_answered_stays_marked_until_ray_says_that_it_knows_no_such_job(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(JobsClient.submit, "__kwdefaults__", {"within_s": 0.5})
    deployed.ray.next_answers["POST", "/api/jobs/"] = [(503, "")] * 1000
    assert main(["submit", "--no-gate", "--json"]) == 6
    [name] = deployed.cloud.annotations.values()
    assert f"eks-ray-train status {name}" in told(capsys)["error"]
    assert main(["status", name]) == 4
    assert deployed.cloud.annotations == {}


# ---- logs that never come ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED"])
def test_a_job_whose_log_stream_never_begins_ends_with_its_whole_log(
    deployed: Deployed, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "".join(f"line {n}\n" for n in range(20_000))
    deployed.ray.make_job = lambda _: StubJob(script=[(0, "RUNNING"), (1, status)], log=lines.encode())
    deployed.ray.hang = "stream"
    began = time.monotonic()
    assert main(["submit", "--no-gate"]) == (0 if status == "SUCCEEDED" else 4)
    assert time.monotonic() - began < 15
    assert capsys.readouterr().out == lines


def test_a_reader_that_was_left_behind_hands_on_and_counts_nothing_more() -> None:
    """Its answer comes after all, while the end of the log is read by somebody else."""
    ray = StubRay()
    job = ray.jobs["j"] = StubJob(script=[(0, "RUNNING"), (0.5, "SUCCEEDED")], log=b"a\nb\nc\n")
    ray.hang = "stream"
    with serve(ray.app()) as port:
        client = JobsClient(f"127.0.0.1:{port}")
        real, gate = client.open_log, threading.Event()

        def open_log(info: JobInfo, *, follow: bool, read_timeout_s: float) -> Any:
            if follow:
                gate.wait(20)
            return real(info, follow=False, read_timeout_s=read_timeout_s)

        client.open_log = open_log  # type: ignore[method-assign]
        with JobLog(client, "j") as log:
            assert list(log.lines(1)) == [] and job.status() == "SUCCEEDED"
            ending = log.finish(client.info("j"))
            got = [next(ending)]
            gate.set()
            time.sleep(0.5)
            assert [*got, *ending] == [b"a", b"b", b"c"]
            log._thread.join(5)
            assert log.received == 6 and log._queue.empty()


def test_an_endless_wait_for_the_end_of_a_log_is_bounded_too(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed.ray.fail["/api/v0/logs/file"] = (503, "")
    monkeypatch.setattr(JobLog.finish, "__kwdefaults__", {"within_s": 0.5})
    deployed.ray.hang = "stream"
    assert main(["submit", "--no-gate", "--json"]) == 0
    document = told(capsys)
    assert f"eks-ray-train logs {document['submission_id']}" in document["log_problem"]
    assert Path(document["report"]).is_file()
