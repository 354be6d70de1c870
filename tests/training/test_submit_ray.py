"""``submit``, ``logs``, ``status`` and ``stop`` against a real local Ray cluster: the exit code is the job's, no line is lost."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from eks_ray_train.cli.local_ray import LocalCluster
from eks_ray_train.cli.processes import descendants
from tests.ray_stub import StubRay, serve

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
STUB = Path(__file__).resolve().parent.parent / "data" / "stub_job"


@pytest.fixture(scope="module")
def cluster(ray_cluster: LocalCluster) -> LocalCluster:
    return ray_cluster


class Cli:
    """Runs the command line in a process of its own, as a user does."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.env = {**os.environ, **cluster.environment()}

    def start(
        self, *words: str, address: str | None = None, program: tuple[str, ...] = ("-m", "eks_ray_train.cli"), out: Any = subprocess.PIPE
    ) -> subprocess.Popen[bytes]:
        command, *rest = words
        return subprocess.Popen(
            [sys.executable, *program, command, "--address", address or self.cluster.address, *rest],
            cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __call__(self, *words: str, address: str | None = None, timeout: float = 180) -> subprocess.CompletedProcess[bytes]:
        process = self.start(*words, address=address)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def submit(self, *words: str, flags: tuple[str, ...] = (), **kwargs: object) -> subprocess.CompletedProcess[bytes]:
        return self("submit", "--job-dir", str(STUB), *flags, "--", *words, **kwargs)  # type: ignore[arg-type]


@pytest.fixture
def cli(cluster: LocalCluster, tmp_path: Path) -> Cli:
    return Cli(cluster, tmp_path)


class CuttingProxy:
    """A TCP proxy that ends each connection after a random number of bytes from the server, or takes no more at all."""

    def __init__(self, target: tuple[str, int], *, seed: int, low: int, high: int) -> None:
        self.target, self.random, self.low, self.high = target, random.Random(seed), low, high
        self.cuts = 0
        self.closed = threading.Event()
        self.away = threading.Event()
        self.open: set[socket.socket] = set()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self.closed.is_set():
            with contextlib.suppress(OSError):
                client, _ = self.server.accept()
                if self.away.is_set():
                    client.close()
                    continue
                upstream = socket.create_connection(self.target)
                self.open |= {client, upstream}
                # A new connection reads the log from its start, so later ones must live longer to get anywhere.
                budget = int(self.random.randint(self.low, self.high) * 1.6**self.cuts)
                threading.Thread(target=self._pump, args=(client, upstream, None), daemon=True).start()
                threading.Thread(target=self._pump, args=(upstream, client, budget), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, budget: int | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                if budget is not None and len(data) >= budget:
                    sink.sendall(data[:budget])
                    self.cuts += 1
                    break
                sink.sendall(data)
                budget = None if budget is None else budget - len(data)
        self._end(source, sink)

    def _end(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
            self.open.discard(one)

    def cut(self) -> None:
        """End every connection that is open."""
        self._end(*list(self.open))

    def go_away(self, seconds: float) -> None:
        self.away.set()
        self.cut()
        time.sleep(seconds)
        self.away.clear()

    def close(self) -> None:
        self.closed.set()
        self.server.close()
        self._end(*list(self.open))


def proxy_of(cluster: LocalCluster, **kwargs: int) -> CuttingProxy:
    return CuttingProxy(("127.0.0.1", cluster.head.ports + 1), **kwargs)


def numbers(out: bytes) -> list[int]:
    return [int(n) for n in re.findall(rb"^line (\d+) x*$", out, re.MULTILINE)]


def test_the_cluster_has_a_head_without_cpus_and_two_nodes_of_their_own(cluster: LocalCluster) -> None:
    from eks_ray_train.cli.jobs_api import JobsClient

    nodes = {n["raylet"]["nodeManagerAddress"]: n["raylet"] for n in JobsClient(cluster.address, token=cluster.token).nodes()}
    assert set(nodes) == {"127.0.0.2", "127.0.0.3", "127.0.0.4"}
    assert "CPU" not in nodes["127.0.0.2"]["resourcesTotal"] and nodes["127.0.0.2"]["isHeadNode"]
    assert [nodes[a]["resourcesTotal"]["CPU"] for a in ("127.0.0.3", "127.0.0.4")] == [1.0, 1.0]
    assert len({n["tempDir"] for n in nodes.values()}) == 3


def test_a_job_that_succeeds_is_exit_code_0_with_its_numbers_in_the_document(cli: Cli) -> None:
    done = cli.submit("steps", "40", flags=("--json", "--junit", "verdict.xml"))
    document = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr.decode()
    assert (document["status"], document["verdict"], document["steps"]) == ("SUCCEEDED", "not-judged", 40)
    assert document["final_loss"] == pytest.approx(0.1) and document["wall_time_s"] > 0
    report = json.loads((cli.folder / "runs" / document["submission_id"] / "report.json").read_text())
    assert [s["step"] for s in report["runs"][0]["steps"]] == list(range(1, 41))
    assert b"step 40/40  loss 0.1000  1,000 tokens/s  MFU 50.0 %" in done.stderr
    assert "testsuite" in (cli.folder / "verdict.xml").read_text()


def test_a_job_that_fails_is_exit_code_4(cli: Cli) -> None:
    done = cli.submit("fail", flags=("--json",))
    assert done.returncode == 4
    assert json.loads(done.stdout)["status"] == "FAILED"


def test_a_job_that_another_client_stops_is_exit_code_4_not_success(cli: Cli) -> None:
    following = cli.start("submit", "--job-dir", str(STUB), "--json", "--", "sleep", "300")
    job = wait_for_id(cli, "sleep 300")
    stopped = cli("stop", job, "--json")
    out, err = following.communicate(timeout=60)
    assert stopped.returncode == 0 and json.loads(stopped.stdout)["status"] == "STOPPED"
    assert following.returncode == 4, err.decode()
    assert json.loads(out)["status"] == "STOPPED"
    assert cli("status", job).returncode == 4


def test_a_job_over_its_time_limit_is_stopped_and_exit_code_4(cli: Cli) -> None:
    done = cli.submit("sleep", "301", flags=("--timeout", "6", "--json"))
    document = json.loads(done.stdout)
    assert (done.returncode, document["status"], document["timed_out"]) == (4, "STOPPED", True)


def test_interrupting_without_a_terminal_detaches_and_the_job_goes_on(cli: Cli) -> None:
    following = cli.start("submit", "--job-dir", str(STUB), "--", "sleep", "302")
    job = wait_for_id(cli, "sleep 302")
    following.send_signal(signal.SIGINT)
    _, err = following.communicate(timeout=30)
    assert following.returncode == 0 and f"eks-ray-train stop {job}".encode() in err
    assert json.loads(cli("status", job, "--json").stdout)["status"] == "RUNNING"
    assert cli("stop", job).returncode == 0


def test_no_line_is_lost_or_doubled_where_every_connection_is_cut(cli: Cli, cluster: LocalCluster) -> None:
    proxy = proxy_of(cluster, seed=7, low=1500, high=40_000)
    try:
        done = cli.submit("lines", "12000", "200", address=proxy.address)
    finally:
        proxy.close()
    assert done.returncode == 0, done.stderr.decode()
    assert numbers(done.stdout) == list(range(12_000)), done.stderr.decode()
    assert proxy.cuts >= 4


def test_a_dashboard_that_goes_away_and_comes_back_loses_nothing(cli: Cli, cluster: LocalCluster) -> None:
    proxy = proxy_of(cluster, seed=1, low=10**9, high=10**9)
    try:
        following = cli.start("submit", "--job-dir", str(STUB), "--", "lines", "15000", "100", address=proxy.address)
        wait_for_id(cli, "lines 15000 100")
        proxy.go_away(8)
        out, err = following.communicate(timeout=120)
    finally:
        proxy.close()
    assert following.returncode == 0, err.decode()
    assert numbers(out) == list(range(15_000))
    assert b"the dashboard answers again" in err


# The peak since exec: getrusage's would count what the process that forked it had, which holds torch and Ray.
MEASURED = """
import pathlib, re, sys
from eks_ray_train.cli.__main__ import main
code = main()
pathlib.Path("peak").write_text(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
sys.exit(code)
"""


def test_a_flood_of_lines_arrives_whole_and_in_bounded_memory(cli: Cli) -> None:
    """400,000 lines as fast as a program can print them, which is several 100,000 a second, and a reader that is in no hurry."""
    with (cli.folder / "out").open("wb") as out:
        following = cli.start("submit", "--job-dir", str(STUB), "--", "lines", "400000", out=out, program=("-c", MEASURED))
        assert following.stderr is not None
        error = following.stderr.read()
    assert following.wait(30) == 0, error.decode()
    assert numbers((cli.folder / "out").read_bytes()) == list(range(400_000))
    peak_kib = int((cli.folder / "peak").read_text())
    assert 10_000 < peak_kib < 250 * 1024, peak_kib  # the log itself is 24 MB


IMPATIENT = """
import sys
from eks_ray_train.cli import follow
from eks_ray_train.cli.__main__ import main
follow.follow.__kwdefaults__["lost_after_s"] = 12.0
sys.exit(main())
"""


def kill_head(cluster: LocalCluster) -> None:
    """The head and all that it started, at once, as a machine that is switched off."""
    for pid in descendants([cluster.node_process(0).pid]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.faults
def test_a_head_that_dies_is_exit_code_6_in_bounded_time_and_says_how_to_look_again(tmp_path: Path) -> None:
    with LocalCluster(workers=1) as own:
        cli = Cli(own, tmp_path)
        following = cli.start("submit", "--job-dir", str(STUB), "--", "sleep", "303", program=("-c", IMPATIENT))
        job = wait_for_id(cli, "sleep 303")
        kill_head(own)
        began = time.monotonic()
        _, err = following.communicate(timeout=120)
    assert following.returncode == 6, err.decode()
    assert time.monotonic() - began < 60
    assert f"eks-ray-train status {job}".encode() in err and b"Traceback" not in err


@pytest.mark.faults
def test_a_head_that_is_replaced_has_lost_the_job_which_is_exit_code_4(tmp_path: Path) -> None:
    with LocalCluster(workers=1) as own, contextlib.closing(proxy_of(own, seed=1, low=10**9, high=10**9)) as proxy:
        cli = Cli(own, tmp_path)
        following = cli.start("submit", "--job-dir", str(STUB), "--", "sleep", "304", address=proxy.address)
        wait_for_id(cli, "sleep 304")
        proxy.away.set()
        kill_head(own)
        proxy.cut()
        # The new head: the same token (on EKS the operator's secret outlives the head), and no job that it knows.
        with serve(StubRay(token=own.token).app()) as port:
            proxy.target = ("127.0.0.1", port)
            proxy.away.clear()
            _, err = following.communicate(timeout=120)
    assert following.returncode == 4, err.decode()
    assert b"has vanished" in err and b"--resume auto" in err


def test_binary_and_a_line_of_a_megabyte_arrive_whole(cli: Cli) -> None:
    done = cli.submit("binary")
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stdout.decode().split("\n")
    assert {"before", "after", "long " + "y" * 1024**2} <= set(lines)
    assert any(line.startswith("��\x00� not text") for line in lines)


def test_logs_gives_the_bytes_of_the_log_and_knows_no_other_job(cli: Cli) -> None:
    done = cli.submit("binary", flags=("--json",))
    job = json.loads(done.stdout)["submission_id"]
    logs = cli("logs", job)
    assert logs.returncode == 0 and b"before\n\xff\xfe\x00\x80 not text\rcarriage\n" in logs.stdout
    assert cli("logs", "no-such-job").returncode == 4


def test_the_failure_names_the_rank_that_raised_first(cli: Cli) -> None:
    done = cli.submit("rank-one-raises", flags=("--json",), timeout=240)
    failure = json.loads(done.stdout)["failure"]
    assert done.returncode == 4
    assert re.match(r"rank 1 on node 127\.0\.0\.[34] raised first: ValueError: the second rank met a bad sample", failure), failure


def test_words_and_environment_reach_the_job_as_they_are(cli: Cli) -> None:
    odd = ["it's", 'a "b" $HOME;', "--steps=1", "ü\\n"]
    assert json.dumps(odd).encode() in cli.submit("argv", *odd).stdout
    names = ["NCCL_DEBUG", "NCCL_NET", "RAY_DEDUP_LOGS", "MINE"]
    done = cli.submit("env", *names, flags=("--expect", "tcp", "--env", "MINE=a=b", "--json"))
    wanted = {"NCCL_DEBUG": "INFO", "NCCL_NET": "Socket", "RAY_DEDUP_LOGS": "0", "MINE": "a=b"}
    assert json.dumps(wanted).encode() in done.stderr
    assert done.returncode == 3  # it succeeded and showed no transport at all
    assert json.loads(done.stdout)["verdict"] == "fail"


def test_detached_submission_prints_the_id_alone(cli: Cli) -> None:
    done = cli.submit("steps", "1", flags=("--detach",))
    job = done.stdout.decode().strip()
    assert done.returncode == 0 and re.fullmatch(r"run-\d{8}-\d{6}-[0-9a-f]{6}", job)
    assert cli("logs", job, "--follow").returncode == 0


def test_a_wrong_token_is_exit_code_6_and_says_which_variable(cli: Cli) -> None:
    cli.env["RAY_AUTH_TOKEN"] = "f" * 32
    done = cli("status")
    assert done.returncode == 6 and b"RAY_AUTH_TOKEN" in done.stderr and b"Traceback" not in done.stderr


def wait_for_id(cli: Cli, words: str, timeout: float = 60) -> str:
    """The id of the job whose command ends with ``words``, once it runs."""
    give_up = time.monotonic() + timeout
    while time.monotonic() < give_up:
        for job in json.loads(cli("status", "--json").stdout)["jobs"]:
            if job["entrypoint"].endswith(words) and job["status"] == "RUNNING":
                return str(job["submission_id"])
        time.sleep(0.5)
    raise AssertionError(f"no running job {words}")
