"""What ``eks-ray-train gate`` does where a standard stream is not as usual: another encoding, full, closed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eks_ray_train.errors import UsageError
from eks_ray_train.gate import RunJudge, read_log

GATE = [sys.executable, "-m", "eks_ray_train.cli", "gate"]
BAD = b"gpu-\xff:1:1 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is \xff\xfe (found 1 nics)\n"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252", "utf-8"])
@pytest.mark.parametrize("words", [["--json"], []])
def test_a_log_of_any_bytes_is_judged_in_any_encoding_of_stdout(
    encoding: str, words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "bad.log").write_bytes(BAD)
    command = [*GATE, "bad.log", "--job-status", "SUCCEEDED", "--junit", "gate.xml", *words]
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    if words:
        assert json.loads(done.stdout.decode("ascii"))["verdict"] == "pass"
    else:
        assert done.stdout.startswith(b"PASS")


def test_a_log_whose_name_is_no_utf_8_has_its_junit_file(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/bad\xff.log"
    Path(os.fsdecode(name)).write_bytes(BAD)
    command = [*GATE, name, "--job-status", "SUCCEEDED", "--junit", str(tmp_path / "gate.xml")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert (tmp_path / "gate.xml").read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize("words", [["--json"], []])
def test_a_full_disk_under_stdout_is_one_clear_message(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "bad.log").write_bytes(BAD)
    with Path("/dev/full").open("w") as full:
        command = [*GATE, "bad.log", "--job-status", "SUCCEEDED", *words]
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    (message,) = [line for line in done.stderr.splitlines() if "eks-ray-train" in line]
    assert "cannot write the verdict (pass) to standard output: No space left on device" in message
    assert "report it" not in done.stderr and "Traceback" not in done.stderr


def test_standard_input_that_is_closed_is_wrong_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match=r"standard input .* is closed; pipe a log"):
        read_log(RunJudge(), "-")


@pytest.mark.parametrize("how", ["<&-", "</dev/null"])
def test_nothing_on_standard_input_is_wrong_use(how: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f'"$@" {how}', "bash", *GATE, "-"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "is closed" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_standard_input_that_cannot_be_read_is_wrong_use(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        done = subprocess.run([*GATE, "-"], stdin=file, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "cannot read standard input" in done.stderr
