"""``eks-ray-train train``: the whole way on this machine, and a local cluster that leaves nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from eks_ray_train.cli.processes import descendants

pytest.importorskip("ray")

pytestmark = [pytest.mark.ray, pytest.mark.timeout(580)]

CLUSTER = """
import json, sys, time
from eks_ray_train.cli.local_ray import LocalCluster
with LocalCluster(workers=0) as cluster:
    print(json.dumps({"processes": cluster.processes(), "folder": str(cluster.folder)}), flush=True)
    time.sleep(300)
"""


def alive(processes: list[int]) -> list[int]:
    """Those that live; a zombie that nobody reaps is dead."""
    living = []
    for pid in processes:
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
        if state and not state.startswith("Z"):
            living.append(pid)
    return living


@pytest.mark.parametrize(("sent", "code"), [pytest.param(signal.SIGTERM, 143, marks=pytest.mark.faults), (signal.SIGKILL, -9)])
def test_a_local_cluster_leaves_no_process_behind(sent: signal.Signals, code: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", CLUSTER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    assert len(alive(told["processes"])) > 3
    process.send_signal(sent)
    assert process.wait(60) == code
    give_up = time.monotonic() + 90  # the dashboard takes a while to notice that its cluster has gone
    while alive(told["processes"]) and time.monotonic() < give_up:
        time.sleep(0.5)
    assert alive(told["processes"]) == []
    assert sent is signal.SIGKILL or not Path(told["folder"]).exists()


@pytest.mark.faults  # most of a minute; test_train_refuses.py has a fast one
def test_ctrl_c_on_a_terminal_ends_run_and_cluster_with_130(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("some text of one's own\n" * 4000)
    mine, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 120))  # else the bar has no room
    give_up = time.monotonic() + 300
    process = subprocess.Popen(
        [sys.executable, "-m", "eks_ray_train.cli", "train", "--steps", "100000", "--dataset", "./text", "--job-dir", str(repo / "job"), "--out", "out"],
        cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env={**os.environ, "HF_HUB_OFFLINE": "1"},
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that ^C becomes a signal, as in a user's terminal
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    family: list[int] = []
    try:
        with contextlib.suppress(OSError):  # Linux' end of file: the last process has closed the terminal
            while time.monotonic() < give_up:
                if not select.select([mine], [], [], 1)[0]:
                    continue
                shown += os.read(mine, 65536)
                if not family and re.search(rb"loss \d", shown):
                    family = descendants([process.pid])
                    os.write(mine, b"\x03")
        code = process.wait(60)
    finally:
        process.kill()
        os.close(mine)
    said = shown.decode("utf-8", "replace")
    assert code == 130, said[-4000:]
    assert "stopping demo-" in said and "interrupted" in said, said[-4000:]
    assert "detach" not in said and "goes on" not in said and "Traceback" not in said, said[-4000:]
    assert len(family) > 5 and alive(family) == []


# CI runs `make demo` itself (.ci/run), with fewer steps.
@pytest.mark.faults
def test_the_demo_trains_resumes_and_reports(repo: Path, tmp_path: Path) -> None:
    words = ["train", "--steps", "12", "--batch_size", "2", "--json", "--out", str(tmp_path / "out"), "--report", str(tmp_path / "copy.json")]
    done = subprocess.run(
        [sys.executable, "-m", "eks_ray_train.cli", *words],
        cwd=repo, capture_output=True, text=True, timeout=540, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    document = json.loads(done.stdout)
    assert (document["status"], document["verdict"], document["steps"]) == ("SUCCEEDED", "not-judged", 12)
    assert (document["trained_steps"], document["resumed_from_step"]) == (9, 9)
    assert document["final_loss"] < document["first_loss"] - 0.5
    report = json.loads((tmp_path / "copy.json").read_text())
    trained, resumed = report["runs"]
    assert [s["step"] for s in trained["steps"]] == list(range(1, 10))
    assert [s["step"] for s in resumed["steps"]] == [10, 11, 12]
    assert trained["config"]["world_size"] == 2 and trained["config"]["nodes"] == 2
    page = (Path(document["folder"]) / "report.html").read_text()
    for chart in ("training loss", "throughput"):  # a line a run in each
        assert page.split(f'aria-label="{chart}"')[1].split("</svg>")[0].count("<path d=") == 2, chart
