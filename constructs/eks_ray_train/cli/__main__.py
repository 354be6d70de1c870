"""``eks-ray-train COMMAND`` (also ``python -m eks_ray_train.cli``): finds the command's module, and is the one error boundary.

A user's mistake becomes one message on stderr and the contract's exit code, never a traceback. Under ``--json`` the
error is the one JSON document on stdout besides. ``EKS_RAY_TRAIN_DEBUG=1`` shows the traceback of everything before it.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from eks_ray_train import __version__
from eks_ray_train.errors import EksRayTrainError, ExitCode, UsageError

from .streams import lasting_output, to_nowhere

PROG = "eks-ray-train"
DEBUG_VARIABLE = "EKS_RAY_TRAIN_DEBUG"
READER_GONE = 141
"""128 + SIGPIPE, as a shell reports it of any program whose reader left early: `logs ID | head`."""

# Command -> what the list of commands says about it. The module has the command's name; one that is absent is not offered.
COMMANDS: dict[str, str] = {
    "init": "write region, zones, administrators and your address into cdk.json",
    "capacity": "find a region and zone that can start the GPU nodes; check a reservation",
    "up": "find capacity, bootstrap and deploy everything",
    "down": "destroy everything, then list what is left",
    "scale": "set the number of GPU nodes, claim capacity again",
    "plan": "memory, traffic, step time and price of a run, before it costs anything",
    "submit": "run job/ on the cluster, follow its logs, judge its transport",
    "status": "state of the cluster's jobs, or of one",
    "logs": "log of a job",
    "stop": "stop a job",
    "dashboard": "forward Ray's dashboard to this machine",
    "gate": "judge the transport by logs that exist already",
    "doctor": "what stands between this cluster and a run",
    "bench": "the same job over EFA and over TCP; NCCL bus bandwidth",
    "render": "the manifests that a deploy would apply, as YAML",
    "teardown": "what is left after destroy",
    "train": "train and resume job/ on a Ray cluster on this machine",
}

EXAMPLES = """\
an example session:
  eks-ray-train train                                   the whole way on this machine: no account, no GPU
  eks-ray-train init && eks-ray-train up                set up and deploy
  eks-ray-train submit -- --model_id Qwen/Qwen2.5-1.5B --steps 100
  eks-ray-train status && eks-ray-train down
  eval "$(eks-ray-train --completion bash)"             completion in this shell; zsh and fish likewise

exit codes: 0 good, 1 unexpected failure, 2 wrong use or settings, 3 gate failed, 4 job failed, stopped or lost,
5 no capacity or quota, 6 cluster not ready or not reachable, 7 something that costs money was left behind
"""


# What the extra `cli` brings (pyproject.toml), by import name: the wheel alone, for its constructs, comes without.
CLI_PACKAGES = ("boto3", "botocore", "kubernetes", "tqdm", "urllib3", "websocket", "yaml")


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are this library's (exit code 2), told by ``main`` alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[:500]}; see {self.prog} --help")


def available_commands() -> list[str]:
    """Commands whose module is installed, in the order of the help text."""
    here = Path(__file__).parent
    return [name for name in COMMANDS if (here / f"{name}.py").is_file() or (here / name / "__init__.py").is_file()]


def load_command(name: str) -> ModuleType:
    """The module of one command."""
    return importlib.import_module(f"eks_ray_train.cli.{name}")


def build_parser(command: str | None = None) -> tuple[argparse.ArgumentParser, ModuleType | None]:
    """The parser with every command listed; only ``command``'s module is imported and gets its real sub-parser."""
    parser = Parser(prog=PROG, description="Distributed PyTorch training with Ray Train on Amazon EKS over EFA.", epilog=EXAMPLES)
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    parser.add_argument("--completion", choices=("bash", "zsh", "fish"), metavar="SHELL", help="print the completion script for bash, zsh or fish")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    module = None
    for name in available_commands():
        if name == command:
            module = load_command(name)
            module.add_parser(subparsers)
            _add_json(subparsers.choices[name])
        else:
            subparsers.add_parser(name, help=COMMANDS[name])
    return parser, module


def _add_json(parser: argparse.ArgumentParser) -> None:
    """Give a command, and what it nests, the flag that every command has."""
    nested = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for action in nested:
        for child in action.choices.values():
            _add_json(child)
    if not nested and "--json" not in parser._option_string_actions:
        parser.add_argument("--json", action="store_true", help="one JSON document on stdout, human text on stderr")


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, ModuleType]:
    """Arguments and module of the command. A module's JOB_ARGUMENTS says how the job's own flags arrive:
    "after-dashes" (everything behind ``--``, as ``args.job_args``) or "unknown" (also flags the command does not know)."""
    words = list(argv)
    command = next((word for word in words if not word.startswith("-")), None)
    if command is not None and command not in available_commands():
        near = difflib.get_close_matches(command, available_commands(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"no command {command!r}{hint}; commands: {', '.join(available_commands())}")
    parser, module = build_parser(command)
    style = getattr(module, "JOB_ARGUMENTS", None)
    job_args: list[str] = []
    if style and "--" in words:
        cut = words.index("--")
        words, job_args = words[:cut], words[cut + 1 :]
    args, unknown = parser.parse_known_args(words)
    if unknown and style == "unknown":
        job_args = unknown + job_args
    elif unknown:
        hint = f"; the job's own flags go behind --: {PROG} {command} -- {' '.join(unknown)}" if style else ""
        raise UsageError(f"unknown argument {' '.join(unknown)}{hint}; see {PROG} {command} --help")
    if style:
        args.job_args = job_args
    assert module is not None  # a command is required, and only listed ones get this far
    return args, module


def _wants_json(argv: Sequence[str]) -> bool:
    words = list(argv)
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def _tell(message: str, code: int, *, as_json: bool) -> int:
    if os.environ.get(DEBUG_VARIABLE):
        import traceback

        traceback.print_exc(file=sys.stderr)
    print(f"{PROG}: {message}", file=sys.stderr, flush=True)
    if as_json:
        import json

        try:
            print(json.dumps({"error": message, "exit_code": code}), flush=True)
        except OSError:  # stdout itself is what failed (a full disk)
            to_nowhere(sys.stdout)
    return code


def _completion(words: list[str]) -> int:
    from .completion import script

    shell = words[0].partition("=")[2] or (words[1] if len(words) > 1 else "")
    print(script(shell), end="")
    return int(ExitCode.OK)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code and raises nothing but SystemExit of ``--help`` and ``--version``."""
    with lasting_output():
        return _run(argv)


def _run(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = _wants_json(words)
    try:
        if not words:
            build_parser()[0].print_help()
            return int(ExitCode.USAGE)
        if words[0].partition("=")[0] == "--completion":
            return _completion(words)
        args, module = parse(words)
        code = int(module.run(args))
        sys.stdout.flush()  # a full disk may show only here, and is told as any other error
        return code
    except EksRayTrainError as error:
        return _tell(str(error), int(error.exit_code), as_json=as_json)
    except KeyboardInterrupt:
        return _tell("interrupted", 130, as_json=as_json)
    except BrokenPipeError:
        to_nowhere(sys.stdout)
        return READER_GONE
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in CLI_PACKAGES:
            text = f"this command needs the package {error.name}, which is not installed; run pip install '.[cli]' in a checkout of eks-ray-train"
            return _tell(text, int(ExitCode.USAGE), as_json=as_json)
        text = f"unexpected {type(error).__name__}: {error}; {DEBUG_VARIABLE}=1 shows where, please report it"
        return _tell(text, int(ExitCode.UNEXPECTED), as_json=as_json)


if __name__ == "__main__":
    sys.exit(main())
