"""The command line's frame: one error boundary, exit codes, ``--json`` everywhere, a ``--help`` that answers at once."""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eks_ray_train.cli import __main__ as cli
from eks_ray_train.errors import NoCapacityError, UsageError

CONTRACT = [
    "init", "capacity", "up", "down", "scale", "plan", "submit", "status", "logs", "stop", "dashboard", "gate", "doctor", "bench",
    "render", "teardown", "train",
]  # fmt: skip
HEAVY = ("boto3", "botocore", "kubernetes", "urllib3", "ray", "torch", "aws_cdk", "jsii", "yaml", "tqdm", "aiohttp")


def test_the_commands_are_the_contracts() -> None:
    assert list(cli.COMMANDS) == CONTRACT


@pytest.mark.parametrize("command", cli.available_commands())
def test_every_command_has_help_with_an_example_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    parser, _ = cli.build_parser(command)
    assert f"eks-ray-train {command}" in text
    for leaf in leaves(parser, command):
        assert "--json" in leaf._option_string_actions, leaf.prog


def leaves(parser: argparse.ArgumentParser, command: str) -> list[argparse.ArgumentParser]:
    top = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction)).choices[command]
    nested = [a for a in top._actions if isinstance(a, argparse._SubParsersAction)]
    return [child for action in nested for child in action.choices.values()] or [top]


# The flags of the contract, command by command: taking one away or renaming it breaks somebody's script.
FLAGS = {
    "plan": "--instance-type --nodes --model --seq-len --batch-size --accumulate --sharding --activation-checkpointing --precision "
    "--transport --tokens --steps --html",
    "submit": "--address --follow --detach --gate --no-gate --expect --allow-tcp --timeout --junit --runtime-env-json --env "
    "--deployed-code --job-dir --report-dir",
    "status": "--address", "logs": "--address --follow", "stop": "--address", "dashboard": "--address --port",
    "gate": "--job-status --nodes --expect --instance-type --junit", "doctor": "", "render": "--context --kind",
    "bench": "--address --over --repeat --timeout --job-dir --report-dir", "train": "--keep-running --report --out --job-dir",
    "init": "--private --region", "scale": "--hours", "up": "", "down": "",
}  # fmt: skip


@pytest.mark.parametrize("command", FLAGS)
def test_every_flag_of_the_contract_is_there(command: str) -> None:
    parser, _ = cli.build_parser(command)
    for leaf in leaves(parser, command):
        assert {*FLAGS[command].split(), "--json"} <= set(leaf._option_string_actions), leaf.prog


@pytest.mark.parametrize("words", [["--help"], *([command, "--help"] for command in cli.available_commands())])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys; from eks_ray_train.cli.__main__ import main\n"
        f"try: main({words!r})\nexcept SystemExit: pass\n"
        f"print(','.join(m for m in {HEAVY!r} if m in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == ""


def test_help_takes_less_than_a_third_of_a_second_of_cpu() -> None:
    def cpu() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    times = []
    for _ in range(5):
        before = cpu()
        subprocess.run([sys.executable, "-m", "eks_ray_train.cli", "--help"], stdout=subprocess.DEVNULL, check=True)
        times.append(cpu() - before)
    assert min(times) < 0.3


def run_with(monkeypatch: pytest.MonkeyPatch, error: BaseException | int, words: list[str]) -> int:
    def run(_args: argparse.Namespace) -> int:
        if isinstance(error, int):
            return error
        raise error

    real = cli.load_command("status")
    module: Any = SimpleNamespace(add_parser=real.add_parser, run=run)
    monkeypatch.setattr(cli, "load_command", lambda _: module)
    return cli.main(["status", *words])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("u"), 2), (NoCapacityError("c"), 5), (KeyboardInterrupt(), 130), (RuntimeError("boom"), 1), (0, 0), (3, 3), (4, 4), (7, 7),
    ],
)  # fmt: skip
def test_each_error_has_its_exit_code_and_one_message(
    error: BaseException | int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EKS_RAY_TRAIN_DEBUG", raising=False)
    assert run_with(monkeypatch, error, []) == code
    told = capsys.readouterr()
    assert told.out == "" and "Traceback" not in told.err
    if not isinstance(error, int):
        assert told.err.startswith("eks-ray-train: ") and told.err.count("\n") == 1


def test_an_unexpected_error_says_how_to_see_more(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("EKS_RAY_TRAIN_DEBUG", raising=False)
    run_with(monkeypatch, ZeroDivisionError("division by zero"), [])
    assert "ZeroDivisionError: division by zero; EKS_RAY_TRAIN_DEBUG=1" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(UsageError("u"), 2), (NoCapacityError("c"), 5), (RuntimeError("boom"), 1)])
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_the_debug_variable_adds_a_traceback_and_changes_nothing_else(
    error: BaseException, code: int, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EKS_RAY_TRAIN_DEBUG", raising=False)
    run_with(monkeypatch, error, words)
    without = capsys.readouterr()
    monkeypatch.setenv("EKS_RAY_TRAIN_DEBUG", "1")
    assert run_with(monkeypatch, error, words) == code
    told = capsys.readouterr()
    assert told.out == without.out
    assert told.err.startswith("Traceback") and told.err.endswith(without.err) and "in run" in told.err


def test_under_json_an_error_is_the_one_document_and_the_same_line_as_ever(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_with(monkeypatch, NoCapacityError("no zone has it"), ["--json"]) == 5
    told = capsys.readouterr()
    assert json.loads(told.out) == {"error": "no zone has it", "exit_code": 5}
    assert told.err == "eks-ray-train: no zone has it\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["statsu"], "did you mean status?"),
        (["nonsense"], "commands: "),
        (["status", "--unknown"], "unknown argument --unknown"),
        (["submit", "--steps", "3"], "the job's own flags go behind --: eks-ray-train submit -- --steps 3"),
        (["submit", "--expect", "ib"], "invalid choice: 'ib'"),
        (["submit", "--follow", "--detach"], "not allowed with"),
        (["stop"], "required: ID"),
        (["status", "--addres", "x"], "unknown argument --addres"),
        (["train", "--steps", "1"], "--steps must be at least 2"),
    ],
)
def test_wrong_words_are_exit_code_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert says in error and "Traceback" not in error


def test_wrong_words_under_json_are_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--nope", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2


def test_json_behind_the_dashes_is_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    args, _ = cli.parse(["submit", "--", "--json", "--", "x"])
    assert args.job_args == ["--json", "--", "x"] and args.json is False


def test_train_hands_flags_that_it_does_not_know_to_the_job() -> None:
    args, _ = cli.parse(["train", "--steps", "20", "--keep-running", "--seq_len=64"])
    assert args.job_args == ["--steps", "20", "--seq_len=64"] and args.keep_running


def test_no_words_print_the_help_and_are_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "exit codes: 0 good" in capsys.readouterr().out


def piped(body: str, reader: str, *, stderr_too: bool = False) -> tuple[int, str]:
    """(exit code, stderr) of a command that does ``body`` into a pipe whose reader is ``reader``."""
    code = (
        "import sys, types; from eks_ray_train.cli import __main__ as m, status\n"
        f"def run(args):\n  {body}\n"
        "m.load_command = lambda _: types.SimpleNamespace(add_parser=status.add_parser, run=run)\n"
        "sys.exit(m.main(['status']))"
    )
    shell = f"{shlex.join([sys.executable, '-c', code])} {'2>&1 ' if stderr_too else ''}| {reader}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_a_command_does_its_work_to_the_end_without_a_reader(tmp_path: Path) -> None:
    body = f"[print('x' * 1000) for _ in range(10000)]; open({str(tmp_path / 'done')!r}, 'w').close(); return 4"
    assert piped(body, "head -1") == (4, "")
    assert (tmp_path / "done").exists()


def test_nor_does_it_need_anybody_to_read_stderr(tmp_path: Path) -> None:
    body = f"[print('x' * 1000, file=sys.stderr) for _ in range(10000)]; open({str(tmp_path / 'done')!r}, 'w').close(); return 0"
    assert piped(body, "head -1", stderr_too=True) == (0, "")
    assert (tmp_path / "done").exists()


def test_a_short_answer_that_nobody_waits_for_is_no_complaint_at_exit() -> None:
    assert piped("import time; time.sleep(0.3); print('short'); return 0", "true") == (0, "")


def test_bytes_for_a_reader_that_left_end_the_command_as_sigpipe_would() -> None:
    assert piped("[sys.stdout.buffer.write(b'x' * 1000) for _ in range(10000)]; return 0", "head -c 1") == (141, "")


def test_nor_is_help_a_complaint() -> None:
    shell = f"{sys.executable} -m eks_ray_train.cli status --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    from eks_ray_train import __version__

    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"eks-ray-train {__version__}\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a file that is always full")
def test_a_full_disk_under_stdout_is_one_line_on_stderr() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "eks_ray_train.cli", "plan", "--model", "Qwen/Qwen2.5-0.5B", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr
