"""A stop is told as one whenever it comes: before, while and after the driver connects to Ray, and where it does not hear."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

JOB = Path(__file__).resolve().parents[2] / "job"
START = """
import ctypes, os, signal, sys, threading, time
sys.path.insert(0, {job!r})
from fsdp_job import cluster, driver, ending
ending.CLEAN_UP_S = 0.5
def stop(): os.kill(os.getpid(), signal.SIGTERM)
{body}
sys.exit(driver.main(["--steps", "1"]))
"""


@dataclass(frozen=True)
class Ended:
    code: int
    done: list[dict[str, Any]]
    stderr: str
    seconds: float


def ended(body: str) -> Ended:
    """A driver whose surroundings ``body`` has changed, run to its end."""
    began = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-c", START.format(job=str(JOB), body=body)], capture_output=True, text=True, timeout=60,
        env={**os.environ, "RAY_JOB_STOP_WAIT_TIME_S": "2"},
    )  # fmt: skip
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{"event"')]
    return Ended(
        run.returncode, [line for line in lines if line["event"] == "done"], run.stderr, time.monotonic() - began
    )


HEARD = {
    "before Ray is looked for": "driver.load_token = stop",
    "while Ray connects, under the handler that ray.init installs": """
def connect(cfg):
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
    stop()
    time.sleep(30)
cluster.connect = connect
""",
    "once Ray is connected": """
import ray
ray.init = lambda **more: signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(99))
cluster.wait_for_workers = lambda cfg: stop() or time.sleep(30)
""",
    "by Ctrl-C under the handler that Ray Train installs": "cluster.connect = lambda cfg: sys.exit(0)",
}


@pytest.mark.parametrize("when", HEARD)
def test_a_stop_is_told_as_stopped_with_exit_code_143(when: str) -> None:
    run = ended(HEARD[when])
    assert [(done["status"], done["exit_code"], done["error"]) for done in run.done] == [("stopped", 143, None)], (
        run.stderr
    )
    assert run.code == 143
    assert "Traceback" not in run.stderr


DEAF = {
    "is inside a C call": """
def connect(cfg):
    sleeper = threading.Thread(target=time.sleep, args=(30,), daemon=True)
    sleeper.start()
    threading.Timer(0.2, stop).start()
    ctypes.CDLL(None).pthread_join(ctypes.c_ulong(sleeper.ident), None)
cluster.connect = connect
""",
    "loses what the handler raises": """
def connect(cfg):
    try:
        stop()
        time.sleep(30)
    except BaseException:
        time.sleep(30)
cluster.connect = connect
""",
}


@pytest.mark.parametrize("why", DEAF)
def test_a_main_thread_that_does_not_hear_is_ended_before_rays_kill(why: str) -> None:
    run = ended(DEAF[why])
    assert [(done["status"], done["exit_code"]) for done in run.done] == [("stopped", 143)], run.stderr
    assert run.code == 143
    assert run.seconds < 25


def test_what_was_told_stands_whatever_comes_later(capsys: pytest.CaptureFixture[str]) -> None:
    from fsdp_job.ending import Ending

    ending = Ending()
    ending.stop()
    ending.emit()
    ending.succeed()
    ending.emit()
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["status"] == "stopped"
    assert (ending.status, ending.code) == ("stopped", 143)


def test_an_exit_that_is_no_stop_is_told_as_failed_and_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    from fsdp_job.ending import Ending, telling

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit), telling(Ending(), "train.py"):
        sys.exit("a library gave up")
    done = json.loads(capsys.readouterr().out)
    assert (done["status"], done["error"]["message"]) == ("failed", "a library gave up")
    assert signal.getsignal(signal.SIGTERM) is before
