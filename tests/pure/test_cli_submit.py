"""``submit`` and its relatives against a stand-in for Ray's dashboard: exit codes, messages, nothing sent twice."""

from __future__ import annotations

import io
import json
import re
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.cli import follow as follow_module
from eks_ray_train.cli import run_report
from eks_ray_train.cli import submit as submit_module
from eks_ray_train.cli.__main__ import main
from eks_ray_train.cli.jobs_api import JobsClient
from tests.ray_stub import StubJob, StubRay, serve

STEP = b'{"event": "step", "step": %d, "steps": 3, "loss": %f, "tokens_per_s": 10.0}\n'


@pytest.fixture
def ray() -> StubRay:
    return StubRay()


@pytest.fixture
def url(ray: StubRay) -> Iterator[str]:
    with serve(ray.app()) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(autouse=True)
def app_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "EKS_RAY_TRAIN_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    out = capsys.readouterr().out
    value = json.loads(out)
    assert isinstance(value, dict)
    return value


def test_a_flag_that_the_job_does_not_know_is_told_before_anything_is_sent(
    ray: StubRay, url: str, repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["submit"], ["bench", "transport"]):
        assert main([*command, "--address", url, "--job-dir", str(repo / "job"), "--", "--stepz", "3"]) == 2
        assert "unknown flag --stepz (did you mean --steps?)" in capsys.readouterr().err
    assert not ray.jobs and not ray.packages


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model-config", "nofile.json"], "no such file: nofile.json; give one that lies in the job's folder"),
        (["--dataset", "text/*.jsonl"], "no file matches the pattern"),
        (["--dataset", "text.parquet"], "--dataset text.parquet does not exist"),
        (["--model-config", "train.py"], "train.py is not JSON"),
    ],
)
def test_files_of_the_jobs_folder_are_looked_for_before_anything_is_sent(
    ray: StubRay, url: str, repo: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["submit"], ["bench", "transport"]):
        assert main([*command, "--address", url, "--job-dir", str(repo / "job"), "--", *words]) == 2
        assert says in capsys.readouterr().err
    assert not ray.jobs and not ray.packages


def test_a_check_that_cannot_run_here_says_so_and_lets_the_job_decide(
    ray: StubRay, url: str, app_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (app_folder / "job" / "fsdp_job").mkdir()
    (app_folder / "job" / "fsdp_job" / "check.py").write_text("import a_package_of_the_cluster\n")
    assert main(["submit", "--address", url, "--", "--steps", "1"]) == 0
    assert "could not be checked on this machine (ModuleNotFoundError: No module named 'a_package_of_the_cluster')" in capsys.readouterr().err
    assert len(ray.jobs) == 1


def submit_into(url: str, folder: Path, reader: str) -> subprocess.CompletedProcess[str]:
    """``submit`` in a process of its own, its stdout read by ``reader``; ends with the exit code of ``submit``."""
    shell = f"{sys.executable} -m eks_ray_train.cli submit --address {url} {reader}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", shell], cwd=folder, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(("status", "code"), [("SUCCEEDED", 0), ("FAILED", 4)])
@pytest.mark.parametrize("reader", ["| head -1", "2>&1 | head -1"])
def test_a_run_whose_reader_left_is_followed_to_its_end(
    ray: StubRay, url: str, app_folder: Path, reader: str, status: str, code: int
) -> None:
    ray.make_job = lambda _: StubJob(log=b"a line of the job\n" * 20_000, script=[(0, "RUNNING"), (2.0, status)])
    done = submit_into(url, app_folder, reader)
    assert (done.returncode, len(done.stdout.splitlines())) == (code, 1)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr
    assert len(list((app_folder / "runs").glob("*/*.html"))) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a file that is always full")
def test_a_full_disk_under_the_log_costs_the_lines_and_not_the_run(ray: StubRay, url: str, app_folder: Path) -> None:
    ray.make_job = lambda _: StubJob(script=[(0, "RUNNING"), (1.0, "SUCCEEDED")])
    done = submit_into(url, app_folder, ">/dev/full")
    assert done.returncode == 0
    assert done.stderr.count("the log cannot be shown any more (No space left on device)") == 1
    assert len(list((app_folder / "runs").glob("*/*.html"))) == 1


def test_files_of_the_cluster_are_not_looked_for_here(ray: StubRay, url: str, repo: Path) -> None:
    words = ["--dataset", "/fsx/of/the/cluster/*.parquet", "--model-config", "/fsx/config.json"]
    assert main(["submit", "--address", url, "--job-dir", str(repo / "job"), "--detach", "--", *words]) == 0
    assert len(ray.jobs) == 1


def test_the_folder_arrives_and_the_command_is_quoted_for_the_shell(ray: StubRay, url: str) -> None:
    assert main(["submit", "--address", url, "--", "--steps", "3", "a b"]) == 0
    [job] = ray.jobs.values()
    assert job.body["entrypoint"] == "python train.py --steps 3 'a b'"
    name = job.body["runtime_env"]["working_dir"].removeprefix("gcs://")
    assert zipfile.ZipFile(io.BytesIO(ray.packages[name])).namelist() == ["train.py"]
    assert job.body["runtime_env"]["env_vars"]["RAY_DEDUP_LOGS"] == "0"


def test_the_same_folder_is_sent_once(ray: StubRay, url: str) -> None:
    assert [main(["submit", "--address", url, "--detach"]) for _ in range(2)] == [0, 0]
    assert len(ray.packages) == 1 and len(ray.jobs) == 2


def test_an_answer_that_got_lost_does_not_submit_twice(ray: StubRay, url: str) -> None:
    ray.lose_answers = 1
    assert main(["submit", "--address", url, "--detach"]) == 0
    assert (len(ray.jobs), ray.posts) == (1, 1)


def test_a_lost_answer_of_a_slow_head_is_no_refusal(ray: StubRay, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The second POST meets the job of the first one, which the head did not know yet when it was asked."""
    ray.lose_answers, ray.appear_after_s = 1, 0.5
    assert main(["submit", "--address", url, "--detach"]) == 0
    assert (len(ray.jobs), ray.posts) == (1, 2)
    assert "already exists" not in capsys.readouterr().err


def test_a_refusal_after_a_lost_answer_is_believed_only_where_the_job_is_unknown(ray: StubRay, url: str) -> None:
    ray.lose_answers, ray.appear_after_s = 1, 0.5
    ray.next_answers["GET", "/api/jobs/run-"] = [(503, "")]
    ray.next_answers["POST", "/api/jobs/"] = []
    real = ray.make_job

    def job(body: dict[str, Any]) -> StubJob:
        ray.next_answers["POST", "/api/jobs/"] = [(400, "ValueError: something else")]
        return real(body)

    ray.make_job = job
    assert main(["submit", "--address", url, "--detach"]) == 0
    assert len(ray.jobs) == 1


@pytest.mark.parametrize("words", [["submit", "--detach"], ["status", "nope"], ["stop", "nope"], ["logs", "nope"]])
def test_every_command_that_is_advised_repeats_the_address(
    ray: StubRay, url: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main([*words, "--address", url])
    error = capsys.readouterr().err
    advised = re.findall(r"eks-ray-train (?:logs|stop|status)[^`;\n]*", error)
    assert len(advised) == (2 if "--detach" in words else 1), error
    assert all(command.endswith(f" --address {url}") for command in advised), error


def test_an_advised_command_is_quoted_for_the_shell() -> None:
    assert JobsClient("http://h:1", typed="http://h:1/a b").command("stop", "it's") == (
        "eks-ray-train stop 'it'\"'\"'s' --address 'http://h:1/a b'"
    )
    assert JobsClient("http://h:1").command("logs", "run-1", "--follow") == "eks-ray-train logs run-1 --follow"


def test_the_jobs_status_decides_and_the_document_has_its_numbers(
    ray: StubRay, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.make_job = lambda _: StubJob(log=b"".join(STEP % (n, 4 - n) for n in (1, 2, 3)))
    assert main(["submit", "--address", url, "--json"]) == 0
    told = document(capsys)
    assert (told["status"], told["verdict"], told["final_loss"], told["steps"]) == ("SUCCEEDED", "not-judged", 1.0, 3)
    assert told["wall_time_s"] == 2.5
    assert Path(told["report"]).is_file()


@pytest.mark.parametrize("status", ["FAILED", "STOPPED"])
def test_any_end_but_success_is_exit_code_4(ray: StubRay, url: str, status: str) -> None:
    ray.make_job = lambda _: StubJob(script=[(0, "RUNNING"), (0.2, status)])
    assert main(["submit", "--address", url]) == 4


def test_a_job_that_never_started_tells_rays_reason(ray: StubRay, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    ray.make_job = lambda _: StubJob(script=[(0, "FAILED")], node=None, message="runtime_env setup failed: no such package")
    assert main(["submit", "--address", url, "--json"]) == 4
    assert "no such package" in document(capsys)["failure"]


def test_a_gate_without_evidence_fails_a_job_that_succeeded(ray: StubRay, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "--address", url, "--expect", "efa", "--json"]) == 3
    told = document(capsys)
    assert told["verdict"] == "fail" and told["gate"]["expected"] == "efa" and told["gate"]["reasons"]
    [job] = ray.jobs.values()
    assert job.body["runtime_env"]["env_vars"]["NCCL_NET"] == "Libfabric"


def nccl_lines(net: str) -> dict[int, list[str]]:
    """What two ranks on two hosts print of their network."""
    chosen = ["NET/OFI Selected provider is efa, fabric is efa (found 1 nics)"] if net == "Libfabric" else []
    said = [*chosen, f"Using network {net}", f"Channel 00/0 : 0[0] -> 1[0] [send] via NET/{net}/0"]
    return {rank: [f"gpu-{rank}:7:8 [0] NCCL INFO {line}" for line in said] for rank in (0, 1)}


def told_by_events(net: str, moved: int) -> bytes:
    lines = []
    for rank, said in nccl_lines(net).items():
        counters = {"before": {"rdmap0": {"tx_bytes": 1, "rx_bytes": 1}}, "after": {"rdmap0": {"tx_bytes": 1 + moved, "rx_bytes": 1 + moved}}}
        event = {"event": "transport", "rank": rank, "node": f"10.0.0.{rank}", "world_size": 2, "nccl_lines": said, "efa_counters": counters}
        lines.append(json.dumps(event))
    return "\n".join(lines).encode() + b"\n"


@pytest.mark.parametrize(("expect", "net"), [("efa", "Libfabric"), ("tcp", "Socket")])
def test_the_ranks_own_events_are_needed_and_free_lines_do_not_do(
    ray: StubRay, url: str, expect: str, net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    free = "\n".join(line for said in nccl_lines(net).values() for line in said).encode() + b"\n"
    ray.make_job = lambda _: StubJob(log=free)
    assert main(["submit", "--address", url, "--expect", expect, "--json"]) == 3
    assert "no transport event" in document(capsys)["gate"]["reasons"][0]
    (tmp_path / "run.log").write_bytes(free)
    assert main(["gate", "run.log", "--expect", expect, "--job-status", "SUCCEEDED"]) == 0
    ray.make_job = lambda _: StubJob(log=told_by_events(net, 10**6 if expect == "efa" else 0))
    assert main(["submit", "--address", url, "--expect", expect]) == 0


def test_the_negative_control_passes_over_tcp_and_fails_over_efa(ray: StubRay, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    ray.make_job = lambda _: StubJob(log=told_by_events("Libfabric", 10**6))
    assert main(["submit", "--address", url, "--expect", "tcp", "--json"]) == 3
    told = document(capsys)["gate"]
    assert told["transport"] == "efa" and "uses EFA, not TCP sockets" in " ".join(told["reasons"])


def test_a_failed_job_is_exit_code_4_whatever_the_gate_says(ray: StubRay, url: str) -> None:
    ray.make_job = lambda _: StubJob(script=[(0, "FAILED")])
    assert main(["submit", "--address", url, "--expect", "efa"]) == 4


def test_without_the_gate_a_job_that_succeeded_is_good(ray: StubRay, url: str) -> None:
    assert main(["submit", "--address", url, "--expect", "efa", "--no-gate"]) == 0


def test_a_vanished_job_is_exit_code_4_in_bounded_time(ray: StubRay, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    ray.make_job = lambda _: StubJob(script=[(0, "RUNNING")], gone_after=0.5)
    began = time.monotonic()
    assert main(["submit", "--address", url]) == 4
    assert time.monotonic() - began < 15
    assert "has vanished" in capsys.readouterr().err


def test_a_cluster_that_dies_under_a_run_is_exit_code_6_and_says_how_to_look_again(
    ray: StubRay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follow_module.follow, "__kwdefaults__", {**(follow_module.follow.__kwdefaults__ or {}), "lost_after_s": 2.0})
    ray.make_job = lambda _: StubJob(script=[(0, "RUNNING")])
    codes: list[int] = []
    with serve(ray.app()) as port:
        run = threading.Thread(target=lambda: codes.append(main(["submit", "--address", f"http://127.0.0.1:{port}"])))
        run.start()
        while not ray.jobs:
            time.sleep(0.05)
        time.sleep(1)
    run.join(40)
    assert codes == [6]
    assert "eks-ray-train status run-" in capsys.readouterr().err


def test_the_end_of_a_log_that_cannot_be_read_does_not_change_the_result(
    ray: StubRay, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from eks_ray_train.cli.job_log import JobLog

    monkeypatch.setattr(JobLog.finish, "__kwdefaults__", {"within_s": 0.5})
    ray.fail["/api/v0/logs"] = (500, "500 Internal Server Error")
    assert main(["submit", "--address", url, "--json"]) == 0
    assert "cannot be read" in document(capsys)["log_problem"]


@pytest.mark.parametrize(("status", "code"), [("SUCCEEDED", 1), ("FAILED", 4)])
def test_a_report_that_cannot_be_written_any_more_hides_nothing_of_the_run(
    ray: StubRay, url: str, status: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.make_job = lambda _: StubJob(script=[(0, status)])
    monkeypatch.setattr(Path, "write_text", lambda *_a, **_k: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert main(["submit", "--address", url, "--json"]) == code
    told = document(capsys)
    assert (told["status"], told["exit_code"]) == (status, code)
    assert "No space left on device" in told["report_problem"]


@pytest.mark.parametrize(("status", "code"), [("SUCCEEDED", 1), ("FAILED", 4)])
def test_a_fault_of_the_report_costs_neither_the_document_nor_the_jobs_exit_code(
    ray: StubRay, url: str, status: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.make_job = lambda _: StubJob(script=[(0, status)])
    monkeypatch.setattr(run_report, "write_report", lambda *_: 1 / 0)
    assert main(["submit", "--address", url, "--json"]) == code
    told = document(capsys)
    assert (told["status"], told["exit_code"]) == (status, code)
    assert "ZeroDivisionError" in told["report_problem"]


# ---- what cannot be reached ----------------------------------------------------------------------------------------------
def unreachable(kind: str) -> tuple[str, Any]:
    if kind == "refused":
        probe = socket.create_server(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        return f"http://127.0.0.1:{port}", None
    if kind == "silent":
        server = socket.create_server(("127.0.0.1", 0))
        return f"http://127.0.0.1:{server.getsockname()[1]}", server
    if kind == "no route":
        return "http://192.0.2.1:8265", None  # TEST-NET-1, never routed (RFC 5737)
    return "http://no-such-host.invalid:8265", None


@pytest.mark.parametrize("kind", ["refused", "silent", "no route", "unknown name"])
@pytest.mark.parametrize("command", [["submit"], ["status"]])
def test_an_unreachable_dashboard_is_exit_code_6_within_10_seconds(
    kind: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    address, keep = unreachable(kind)
    began = time.monotonic()
    assert main([*command, "--address", address]) == 6
    assert time.monotonic() - began < 10
    error = capsys.readouterr().err
    assert address in error and "check the address" in error and "Traceback" not in error
    if keep:
        keep.close()


def test_a_server_that_is_no_ray_dashboard_is_told(ray: StubRay, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    ray.fail["/api/version"] = (404, "404")
    assert main(["status", "--address", url]) == 6
    assert "no Ray dashboard" in capsys.readouterr().err


def test_a_missing_token_names_the_variables(ray: StubRay, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    ray.token = "secret"
    assert main(["status", "--address", url]) == 6
    error = capsys.readouterr().err
    assert "RAY_AUTH_TOKEN" in error and "secret named like the RayCluster" in error


def test_the_token_is_read_from_the_file_that_ray_itself_reads(
    ray: StubRay, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.token = "t0ken"
    (tmp_path / "token").write_text("t0ken\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    assert main(["status", "--address", url]) == 0


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("ftp://x", "URL of a Ray dashboard"), ("http://", "URL of a Ray dashboard"), ("http://h:port", "wrong port"),
        ("http://[::1", "URL of a Ray dashboard"), ("http://%zz", "no host that can exist"), ("http://a b", "no host that can exist"),
    ],
)  # fmt: skip
def test_a_wrong_address_is_exit_code_2(address: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--address", address]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("RAY_AUTH_TOKEN", "t€ken", "not printable ASCII"),
        ("RAY_AUTH_TOKEN", "line\nline", "more than one line"),
        ("RAY_AUTH_TOKEN_PATH", b"t\xff\xfe", "is not text"),
        ("RAY_AUTH_TOKEN_PATH", b"line\nline", "more than one line"),
        ("RAY_AUTH_TOKEN_PATH", None, "cannot read"),
    ],
)
def test_a_token_that_no_header_can_carry_is_exit_code_2_and_is_not_shown(
    ray: StubRay, url: str, name: str, value: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "RAY_AUTH_TOKEN_PATH":
        if value is not None:
            (tmp_path / "token").write_bytes(value)
        value = str(tmp_path / "token")
    monkeypatch.setenv(name, value)
    assert main(["status", "--address", url]) == 2
    error = capsys.readouterr().err
    assert says in error and name in error and "t€ken" not in error and "line\nline" not in error


# ---- refusals before anything is sent ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--expect", "efa", "--env", "NCCL_DEBUG=WARN"], "hides the lines that show the transport"),
        (["--expect", "efa", "--runtime-env-json", '{"env_vars": {"NCCL_DEBUG": "VERSION"}}'], "NCCL_DEBUG=VERSION"),
        (["--expect", "efa", "--env", "NCCL_DEBUG_SUBSYS=COLL"], "INIT and NET"),
        (["--runtime-env-json", "{"], "is not JSON"),
        (["--runtime-env-json", '{"working_dir": "/x"}'], "must not set working_dir"),
        (["--env", "NOVALUE"], "NAME=VALUE"),
        (["--junit", "x.xml", "--no-gate"], "leave one of them out"),
        (["--junit", "x.xml", "--detach"], "--detach"),
        (["--timeout", "0"], "positive number"),
        (["--job-dir", "nowhere"], "no job folder"),
        (["--steps", "3"], "submit -- --steps 3"),
    ],
)
def test_wrong_use_is_exit_code_2_and_submits_nothing(
    ray: StubRay, url: str, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "--address", url, *words, "--", "--steps", "1"]) == 2
    assert says in capsys.readouterr().err
    assert not ray.jobs


def test_a_refused_job_gives_rays_last_line_not_its_traceback(ray: StubRay, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    ray.fail["/api/jobs/"] = (400, "Traceback (most recent call last):\n  File …\nTypeError: pip must be a list")
    assert main(["submit", "--address", url]) == 2
    error = capsys.readouterr().err
    assert "TypeError: pip must be a list" in error and "Traceback" not in error


def test_an_upload_that_the_server_finds_too_large_says_so(ray: StubRay, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    ray.fail["/api/packages"] = (413, "Maximum request body size exceeded")
    assert main(["submit", "--address", url]) == 2
    assert "413" in capsys.readouterr().err


# ---- the same jobs, later ------------------------------------------------------------------------------------------------
def test_status_lists_jobs_and_its_exit_code_follows_one(ray: StubRay, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    ray.jobs = {"good": StubJob(script=[(0, "SUCCEEDED")]), "bad": StubJob(script=[(0, "FAILED")], message="boom")}
    assert main(["status", "--address", url]) == 0
    assert main(["status", "good", "--address", url]) == 0
    assert main(["status", "bad", "--address", url]) == 4
    assert "boom" in capsys.readouterr().out
    assert main(["status", "none", "--address", url]) == 4


def test_stop_waits_for_the_end_and_says_when_there_was_nothing_to_stop(
    ray: StubRay, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.jobs = {"run": StubJob(script=[(0, "RUNNING")])}
    assert main(["stop", "run", "--address", url, "--json"]) == 0
    assert document(capsys)["status"] == "STOPPED"
    assert main(["stop", "run", "--address", url]) == 0
    assert "had ended before" in capsys.readouterr().err


def test_logs_prints_bytes_as_they_are(ray: StubRay, url: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    ray.jobs = {"run": StubJob(script=[(0, "SUCCEEDED")], log=b"a\xffb\r\nc")}
    assert main(["logs", "run", "--address", url]) == 0
    assert capsysbinary.readouterr().out == b"a\xffb\r\nc"


@pytest.mark.parametrize("cuts", [[0], [1], [5, 70_000], [100_000, 3, 200_000]])
def test_logs_goes_on_where_a_connection_broke(
    ray: StubRay, url: str, cuts: list[int], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    log = bytes(range(256)) * 1000
    ray.jobs = {"run": StubJob(script=[(0, "SUCCEEDED")], log=log)}
    ray.cut_logs_after = list(cuts)
    assert main(["logs", "run", "--address", url]) == 0
    assert capsysbinary.readouterr().out == log
    assert not ray.cut_logs_after


def test_errors_are_one_document_under_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "none", "--address", url, "--json"]) == 4
    told = document(capsys)
    assert told["exit_code"] == 4 and "none" in told["error"]


def test_the_example_for_another_cluster_trains_a_small_model(ray: StubRay, url: str, repo: Path) -> None:
    """Whoever copies it must not download 1.5 billion parameters."""
    [example] = [line.split() for line in submit_module.EXAMPLES.splitlines() if "--address" in line]
    words = example[example.index("--") + 1 :]
    assert main(["submit", "--address", url, "--job-dir", str(repo / "job"), "--detach", "--", *words]) == 0
    [job] = ray.jobs.values()
    assert "--model-config configs/qwen2-tiny.json --tokenizer bytes" in job.body["entrypoint"]
