"""``bench`` without a cluster: figures, proofs, the order of runs, exit codes, the page."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.cli.__main__ import main
from eks_ray_train.cli.bench_figures import bandwidths, bus_factor, exchanged_bytes, order, spread
from eks_ray_train.cli.bench_page import render
from eks_ray_train.cli.bench_runs import Counted, prove
from eks_ray_train.cli.jobs_api import JobInfo
from eks_ray_train.cli.run_record import RunRecord
from eks_ray_train.cli.runs import RunResult
from tests.deployed_cluster import Deployed, deployed
from tests.headless_browser import browser
from tests.ray_stub import StubJob, StubRay, press_ctrl_c, serve

__all__ = ["deployed"]  # a fixture

JOB = str(Path(__file__).resolve().parents[2] / "job")


@pytest.fixture
def ray() -> StubRay:
    return StubRay()


@pytest.fixture
def url(ray: StubRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "job").mkdir()
    for name in ("train.py", "nccl_bench.py"):
        (tmp_path / "job" / name).write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    with serve(ray.app()) as port:
        yield f"http://127.0.0.1:{port}"


def lines(*events: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def sent(rank: int, count: int) -> dict[str, Any]:
    return {
        "event": "transport",
        "rank": rank,
        "world_size": 2,
        "node": f"n{rank}",
        "nccl_lines": [],
        "interface_bytes": {"eth0": {"sent": count, "received": 1}},
    }


def training(step_s: float, *, moved: int | None = 10**9) -> bytes:
    steps = [
        {
            "event": "step",
            "step": n,
            "steps": 10,
            "loss": 1.0,
            "step_s": 9.0 if n <= 5 else step_s,
            "tokens_per_s": 100.0,
        }
        for n in range(1, 11)
    ]
    config = {"event": "config", "parameters": 1_000_000, "warmup_steps": 5, "steps": 10}
    done = {"event": "done", "status": "succeeded", "steps": 10}
    return lines(config, *steps, *([] if moved is None else [sent(0, moved), sent(1, moved)]), done)


NCCL = {
    "efa": ["h:1:1 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 1 nics)", "h:1:1 [0] NCCL INFO Using network Libfabric",
            "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Libfabric/0", "h:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Libfabric/0"],
    "tcp": ["h:1:1 [0] NCCL INFO Using network Socket", "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
            "h:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0"],
}  # fmt: skip


def over(kind: str, step_s: float) -> bytes:
    """A run's log whose ranks show that transport."""
    counters = {
        "before": {"rdmap0": {"tx_bytes": 0, "rx_bytes": 0}},
        "after": {"rdmap0": {"tx_bytes": 10**9 * (kind == "efa"), "rx_bytes": 10**9 * (kind == "efa")}},
    }
    ranks = [
        {
            **sent(rank, 10**9),
            "host": f"h{rank}",
            "nccl_lines": [line.replace("h:", f"h{rank}:") for line in NCCL[kind]],
            "efa_counters": counters,
        }
        for rank in (0, 1)
    ]
    return training(step_s, moved=None) + lines(*ranks)


def test_both_transports_are_run_in_turn_and_compared_after_the_warm_up(
    ray: StubRay, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds: list[str] = []

    def job(body: dict[str, Any]) -> StubJob:
        kinds.append(body["metadata"]["eks-ray-train/expect"])
        return StubJob(log=over(kinds[-1], {"efa": 0.5, "tcp": 1.0}[kinds[-1]]))

    ray.make_job = job
    assert (
        main(
            [
                "bench",
                "transport",
                "--address",
                url,
                "--over",
                "efa,tcp",
                "--repeat",
                "2",
                "--json",
                "--",
                "--batch_size",
                "2",
            ]
        )
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert kinds == ["efa", "tcp", "tcp", "efa"]
    assert told["ratio"] == pytest.approx(2.0)
    assert told["transports"]["efa"]["median_step_s"] == {
        "count": 2,
        "median": 0.5,
        "low": 0.5,
        "high": 0.5,
        "spread": 0.0,
    }
    networks = [job.body["runtime_env"]["env_vars"]["NCCL_NET"] for job in ray.jobs.values()]
    assert networks == ["Libfabric", "Socket", "Socket", "Libfabric"]
    assert all(
        job.body["entrypoint"].endswith("--batch_size 2 --steps=30 --warmup_steps=5") for job in ray.jobs.values()
    )
    assert Path(told["report"]).is_file() and (Path(told["report"]).parent / "bench.json").is_file()


def test_a_run_on_another_transport_does_not_count_and_is_exit_code_3(
    ray: StubRay, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.make_job = lambda _: StubJob(log=over("tcp", 1.0))
    assert main(["bench", "transport", "--address", url, "--over", "efa,tcp", "--repeat", "1", "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert [(run["transport"], run["counts"]) for run in told["runs"]] == [("efa", False), ("tcp", True)]
    assert told["runs"][0]["why_not"] and told["ratio"] is None
    assert told["transports"]["efa"]["median_step_s"]["count"] == 0


def test_jobs_that_fail_are_exit_code_4(ray: StubRay, url: str) -> None:
    ray.make_job = lambda _: StubJob(script=[(0, "FAILED")])
    assert main(["bench", "transport", "--address", url, "--repeat", "1"]) == 4


def third_breaks(ray: StubRay, how: str) -> None:
    """Two runs succeed; the third vanishes, is refused, or never ends."""

    def job(_: dict[str, Any]) -> StubJob:
        if len(ray.jobs) < 2:
            if how == "refused" and ray.jobs:
                ray.next_answers["POST", "/api/jobs/"] = []
                threading.Timer(0.3, lambda: ray.next_answers["POST", "/api/jobs/"].append((400, "ValueError: no more"))).start()
            return StubJob(log=training(0.25))
        return StubJob(script=[(0, "RUNNING")], gone_after=0.5)

    ray.make_job = job


@pytest.mark.parametrize(("how", "code"), [("vanishes", 4), ("refused", 2)])
def test_runs_that_were_made_are_reported_where_the_next_one_breaks_off(
    ray: StubRay, url: str, how: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    third_breaks(ray, how)
    assert main(["bench", "transport", "--address", url, "--repeat", "3", "--json"]) == code
    told = capsys.readouterr()
    assert json.loads(told.out)["exit_code"] == code
    [path] = Path("runs").glob("*/bench.json")
    document = json.loads(path.read_text())
    assert [run["counts"] for run in document["runs"]] == [True, True]
    assert document["exit_code"] == code and document["incomplete"] == json.loads(told.out)["error"]
    assert document["transports"]["none"]["median_step_s"]["count"] == 2
    assert str(path.parent) in told.err and "of 2 runs" in told.err


def test_an_interrupted_benchmark_keeps_the_mark_of_the_run_that_goes_on(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed.ray.make_job = lambda _: StubJob(script=[(0, "RUNNING")])
    press_ctrl_c(monkeypatch, None)
    assert main(["bench", "transport", "--over", "efa", "--repeat", "1"]) == 4
    [name] = deployed.ray.jobs
    assert deployed.cloud.annotations == {"eks-ray-train/active-run": name}
    assert f"{name} goes on; stop it: eks-ray-train stop {name}" in capsys.readouterr().err


def test_a_benchmarks_run_that_ended_leaves_no_mark(deployed: Deployed) -> None:
    assert main(["bench", "transport", "--over", "efa", "--repeat", "1"]) == 3
    assert deployed.cloud.annotations == {} and len(deployed.cloud.marks) == 2


def test_without_nccl_the_interfaces_bytes_are_the_proof(
    ray: StubRay, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.make_job = lambda _: StubJob(log=training(0.25))
    assert main(["bench", "transport", "--address", url, "--repeat", "1", "--json"]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert run["transport"] == "none" and "n0 eth0 1,000.0 MB" in run["proof"]
    ray.make_job = lambda _: StubJob(log=training(0.25, moved=1000))
    assert main(["bench", "transport", "--address", url, "--repeat", "1", "--json"]) == 3
    assert "less than the 10.0 MB" in json.loads(capsys.readouterr().out)["runs"][0]["why_not"]


def test_bandwidth_is_put_against_the_line_rate(ray: StubRay, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    events = [
        {
            "event": "bandwidth",
            "collective": "all_reduce",
            "bytes": size,
            "seconds": [1e-3, 2e-3, 1e-3],
            "iterations": 5,
            "world_size": 2,
            "nodes": 2,
        }
        for size in (2**20, 2**10)
    ]
    log = lines({"event": "config", "world_size": 2}, *events, sent(0, 10**9), sent(1, 10**9))
    ray.make_job = lambda _: StubJob(log=log)
    assert main(["bench", "nccl", "--address", url, "--json", "--", "--max-bytes", "1048576"]) == 0
    told = json.loads(capsys.readouterr().out)
    [job] = ray.jobs.values()
    assert job.body["entrypoint"] == "python nccl_bench.py --max-bytes 1048576"
    assert [row["bytes"] for row in told["bandwidth"]["none"]] == [1024, 2**20]
    assert told["bandwidth"]["none"][1]["bus_gb_s"]["median"] == pytest.approx(2**20 / 1e-3 / 1e9)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["transport", "--over", "efa,ib"], "--over takes efa, tcp and none"),
        (["transport", "--over", "tcp,tcp"], "each once"),
        (["nccl", "--repeat", "0"], "--repeat: must be a whole number from 1 to 1,000"),
        (["nccl", "--job-dir", "nowhere"], "no job folder"),
        (["nccl", "--job-dir", "only-train"], "only-train has no nccl_bench.py"),
        (["nccl", "--job-dir", JOB, "--", "--min-bytez", "8"], "unknown flag --min-bytez"),
        (["nccl", "--job-dir", JOB, "--", "--factor", "1"], "--factor must be from 2 to"),
        (["nccl", "--job-dir", JOB, "--", "--max-bytes=0"], "--max-bytes must be from 1 to"),
        (["nccl", "--job-dir", JOB, "--", "--min_bytes", "64", "--max_bytes", "32"], "--max-bytes must not be below --min-bytes (64), got 32"),
        (["nccl", "--job-dir", JOB, "--", "--num-workers", "0"], "--num-workers must be at least 1, got 0"),
        (["nccl", "--job-dir", JOB, "--", "--wait-seconds", "nan"], "--wait-seconds must be a positive number"),
    ],
)
def test_wrong_use_is_exit_code_2_before_anything_is_sent(
    ray: StubRay, url: str, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("only-train").mkdir()
    Path("only-train/train.py").write_text("")
    assert main(["bench", words[0], "--address", url, *words[1:]]) == 2
    assert says in capsys.readouterr().err and not ray.jobs and not ray.packages


def test_bus_bandwidth_is_that_of_the_nccl_tests() -> None:
    assert [bus_factor(n) for n in (1, 2, 8)] == [0.0, 1.0, 1.75]
    event = {"bytes": 10**9, "seconds": [0.5], "world_size": 8, "nodes": 2, "iterations": 4}
    [row] = bandwidths([event], line_gbps=40.0)
    assert row["algorithm_gb_s"] == pytest.approx(2.0) and row["bus_gb_s"]["median"] == pytest.approx(3.5)
    assert row["line_rate_share"] == pytest.approx(3.5 / 5.0)
    assert exchanged_bytes([event]) == pytest.approx(10**9 * 4 / 2)


def test_every_second_repetition_runs_backwards() -> None:
    assert order(["efa", "tcp"], 3) == [(1, "efa"), (1, "tcp"), (2, "tcp"), (2, "efa"), (3, "efa"), (3, "tcp")]


def test_the_spread_is_relative_to_the_median() -> None:
    assert spread([1.0, 2.0, 3.0]) == {"count": 3, "median": 2.0, "low": 1.0, "high": 3.0, "spread": 1.0}
    assert spread([])["median"] is None


def result(*, events: bytes = b"", status: str = "SUCCEEDED") -> RunResult:
    record = RunRecord()
    for line in events.splitlines():
        record.feed(json.loads(line))
    return RunResult(submission_id="bench-1", info=JobInfo(submission_id="bench-1", status=status), record=record)


@pytest.mark.parametrize(
    ("nodes", "moved", "is_told"),
    [(("127.0.0.3", "127.0.0.4"), 10, True), (("10.0.0.1", "10.0.0.2"), 0, True), (("gpu-a", "gpu-b"), 10, False)],
)
def test_two_nodes_of_one_machine_are_told_why_their_interfaces_say_nothing(nodes: tuple[str, str], moved: int, is_told: bool) -> None:
    events = lines(*({**sent(rank, moved), "node": node} for rank, node in enumerate(nodes)))
    why_not = str(prove(result(events=events), over="none", least_bytes=10**6)[1])
    assert "less than the 1.0 MB" in why_not
    assert ("nodes on one machine talk over its loopback" in why_not and "two machines" in why_not) == is_told


def test_one_node_proves_nothing() -> None:
    assert "needs two" in str(prove(result(events=lines(sent(0, 10**9))), over="none", least_bytes=1)[1])


@pytest.mark.parametrize("kind", ["transport", "nccl"])
def test_the_page_opens_without_network_also_where_nothing_counts(kind: str) -> None:
    runs = [Counted(over="none", repeat=1, result=result(), proof="", why_not="a < b")]
    empty = spread([])
    more = (
        {"transports": {"none": {"median_step_s": empty, "median_tokens_per_s": empty}}, "ratio": None}
        if kind == "transport"
        else {"line_rate_gb_s": 5.0, "bandwidth": {"none": []}}
    )
    text = render({"benchmark": kind, "cluster": "c", **more}, runs)
    assert "a &lt; b" in text and "http" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("width", [1280, 390])
def test_both_pages_show_in_a_browser_without_error_or_overflow(tmp_path: Path, width: int) -> None:
    efa = Counted(
        over="efa",
        repeat=1,
        result=result(events=over("efa", 0.5)),
        proof="gate: efa on 2 of 2 nodes " + "x" * 200,
        why_not=None,
    )
    tcp = Counted(over="tcp", repeat=1, result=result(events=over("tcp", 1.0)), proof="gate", why_not=None)
    one, two = spread([0.5, 0.6]), spread([1.0])
    rate = {"median_step_s": one, "median_tokens_per_s": two}
    events = [
        {"bytes": 2**k, "seconds": [2**k / 1e9, 2**k / 2e9], "world_size": 8, "nodes": 2, "iterations": 1}
        for k in range(13, 31, 2)
    ]
    pages = {
        "transport": render(
            {"benchmark": "transport", "cluster": "c" * 150, "transports": {"efa": rate, "tcp": rate}, "ratio": 1.5},
            [efa, tcp],
        ),
        "nccl": render(
            {
                "benchmark": "nccl",
                "cluster": "c",
                "line_rate_gb_s": 5.0,
                "bandwidth": {"efa": bandwidths(events, line_gbps=40)},
            },
            [efa],
        ),
    }
    with browser(tmp_path / "chromium") as tab:
        for name, text in pages.items():
            path = tmp_path / f"{name}.html"
            path.write_text(text)
            tab.open(path, width=width)
            assert tab.errors == [] and tab.too_wide() == []
            assert tab.value("document.querySelectorAll('svg path[stroke-width]').length") == (
                2 if name == "transport" else 1
            )
            if name == "nccl":
                assert tab.value("document.querySelectorAll('svg path.limit').length") == 1
                tab_text = tab.value("document.body.innerText")
                assert "1GB" in tab_text or "512MB" in tab_text
