"""Shell completion offers what ``--help`` knows: commands, what they nest, flags and their choices; else the shell's files."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from eks_ray_train.cli.__main__ import available_commands, main
from eks_ray_train.cli.completion import script
from eks_ray_train.errors import UsageError


@pytest.fixture(scope="module")
def bash() -> Iterator[str]:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    yield script("bash")


def offered(bash: str, line: str) -> set[str]:
    """What is offered for the last word of ``line``."""
    words = ["eks-ray-train", *line.split(" ")]
    quoted = " ".join(f"'{word}'" for word in words)
    test = f"{bash}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _eks_ray_train; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "--norc", "-c", test], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_every_command_is_offered(bash: str) -> None:
    assert set(available_commands()) <= offered(bash, "")
    assert offered(bash, "sub") == {"submit"}


def test_what_a_command_nests_is_offered(bash: str) -> None:
    assert {"transport", "nccl"} <= offered(bash, "bench ")
    assert "--repeat" in offered(bash, "bench nccl --")
    assert offered(bash, "teardown ch") == {"check"}


@pytest.mark.parametrize("command", ["plan", "submit", "gate", "status", "doctor"])
def test_every_flag_of_a_command_is_offered_and_no_other_commands(command: str, bash: str) -> None:
    from eks_ray_train.cli.__main__ import build_parser

    top = build_parser(command)[0]
    choices = next(action.choices for action in top._actions if action.dest == "command")
    flags = {flag for action in choices[command]._actions for flag in action.option_strings}  # type: ignore[index, union-attr, call-overload]
    assert offered(bash, f"{command} -") == flags


def test_choices_of_a_flag_are_offered_and_types_of_the_catalogue(bash: str) -> None:
    assert offered(bash, "plan --sharding ") == {"full", "hybrid", "auto"}
    assert offered(bash, "submit --detach --expect e") == {"efa"}
    assert "p5.48xlarge" in offered(bash, "gate --instance-type p5.")


def test_files_are_left_to_the_shell(bash: str) -> None:
    assert "complete -o default -F" in bash  # files, where nothing is offered
    for line in ("gate --junit ", "submit -- --st", "plan --model "):
        assert offered(bash, line) == set()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_take_their_script(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n", "/dev/stdin"], input=script(shell), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_fish_offers_commands_flags_and_choices() -> None:
    text = script("fish")
    assert "complete -c eks-ray-train -f -n '__fish_use_subcommand' -a submit\n" in text
    assert "complete -c eks-ray-train -n '__fish_seen_subcommand_from plan' -l sharding -x -a 'full hybrid auto'\n" in text
    assert "__fish_seen_subcommand_from bench; and __fish_seen_subcommand_from nccl' -l repeat -r\n" in text


def test_the_flag_prints_it_and_knows_no_other_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--completion", "bash"]) == 0
    assert main(["--completion=fish"]) == 0
    assert "_eks_ray_train()" in capsys.readouterr().out
    assert main(["--completion", "tcsh"]) == 2
    assert main(["--completion"]) == 2
    with pytest.raises(UsageError, match="bash, zsh, fish"):
        script("")
