"""Standard streams that are closed before the command starts (``>&-``): the work is done and the exit code is the work's."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

CLI = shlex.join([sys.executable, "-m", "eks_ray_train.cli"])
CLOSED = ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"]
# One rank's lines of two nodes over EFA, as NCCL prints them.
LOG = """\
ip-10-0-1-1:1:1 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 1 nics)
ip-10-0-1-1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Libfabric/0
ip-10-0-1-2:1:1 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 1 nics)
ip-10-0-1-2:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/Libfabric/0
"""


def ended(folder: Path, command: str) -> tuple[int, str, str]:
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("closed", CLOSED)
@pytest.mark.parametrize(
    ("words", "code"),
    [("gate run.log --job-status SUCCEEDED", 0), ("gate run.log --job-status FAILED", 3), ("gate /nofile", 2), ("--help", 0), ("gate --help", 0),
     ("gate /nofile --json", 2), ("--version", 0), ("--completion bash", 0)],
)  # fmt: skip
def test_a_closed_stream_changes_neither_the_exit_code_nor_what_the_other_says(
    tmp_path: Path, words: str, code: int, closed: str
) -> None:
    (tmp_path / "run.log").write_text(LOG)
    _, out, error = ended(tmp_path, f"{CLI} {words}")
    said = ended(tmp_path, f"{CLI} {words} {closed}")
    assert said == (code, "" if " >&-" in f" {closed}" else out, "" if "2>&-" in closed else error)


def test_what_is_opened_and_started_later_does_not_get_the_closed_streams_number(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, types; from eks_ray_train.cli import __main__ as m, status\n"
        "def run(args):\n"
        "  with open('data', 'w') as data:\n"
        "    data.write('mine')\n"
        "    data.flush()\n"
        "    subprocess.run([sys.executable, '-c', 'import os; os.write(1, b\"o\"); os.write(2, b\"e\")'], check=True)\n"
        "  return 4\n"
        "m.load_command = lambda _: types.SimpleNamespace(add_parser=status.add_parser, run=run)\n"
        "sys.exit(m.main(['status']))"
    )
    assert ended(tmp_path, f"{shlex.join([sys.executable, '-c', code])} >&- 2>&-") == (4, "", "")
    assert (tmp_path / "data").read_text() == "mine"


def test_nobody_is_asked_where_stdin_is_closed(tmp_path: Path) -> None:
    code = (
        "import sys, types; from eks_ray_train.cli import __main__ as m, consent, status\n"
        "run = lambda args: consent.agree(types.SimpleNamespace(yes=False, json=False), 'Spend it?', refused='nothing was spent')\n"
        "m.load_command = lambda _: types.SimpleNamespace(add_parser=status.add_parser, run=run)\n"
        "sys.exit(m.main(['status']))"
    )
    said = ended(tmp_path, f"{shlex.join([sys.executable, '-c', code])} <&-")
    assert said == (2, "", "eks-ray-train: Spend it? Add --yes to agree; nothing was spent\n")


def open_numbers() -> set[int]:
    """File descriptors of this process."""

    def is_open(number: int) -> bool:
        try:
            os.fstat(number)
        except OSError:
            return False
        return True

    return {number for number in range(256) if is_open(number)}


def test_streams_are_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    from eks_ray_train.cli.streams import lasting_output

    monkeypatch.setattr(sys, "stdout", None)
    before, numbers = sys.stderr, open_numbers()
    with lasting_output():
        print("to nowhere", flush=True)
    assert sys.stdout is None and sys.stderr is before
    assert open_numbers() == numbers
