"""Runs the ``cdk`` command: its progress shown through, one signal for one Ctrl-C, settings handed over by ``-c``."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from eks_ray_train.errors import UsageError
from eks_ray_train.node_runtime import use_bundled_node

CONTEXT_PREFIX = "eks-ray-train:"
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """The user stopped the command while ``cdk`` ran; the child has ended. CloudFormation goes on by itself."""


@dataclass(frozen=True, kw_only=True)
class Cdk:
    """The command and where the app is. ``quiet_stdout``: its stdout goes to our stderr (``--json``)."""

    command: Sequence[str]
    app_dir: Path = field(default_factory=Path.cwd)
    quiet_stdout: bool = False

    def bootstrap(self, account: str, region: str) -> int:
        """Once per account and region; needs no synthesis, since the environment is named."""
        return self._run(["bootstrap", f"aws://{account}/{region}"])

    def deploy(
        self, stacks: Sequence[str], settings: Mapping[str, Any], *, parameters: Mapping[str, str] | None = None
    ) -> int:
        """Deploys ``stacks`` (and what they depend on) without asking; returns cdk's exit code."""
        words = ["deploy", *stacks, "--require-approval", "never", *_context(settings)]
        for name, value in (parameters or {}).items():
            words += ["--parameters", f"{name}={value}"]
        return self._run(words)

    def destroy(self, stacks: Sequence[str], settings: Mapping[str, Any], *, exclusively: bool = False) -> int:
        """Destroys ``stacks``, and what depends on them unless ``exclusively``; returns cdk's exit code."""
        words = ["destroy", *stacks, "--force", *(["--exclusively"] if exclusively else []), *_context(settings)]
        return self._run(words)

    def _run(self, words: Sequence[str]) -> int:
        # A group of its own: a terminal's Ctrl-C then reaches only us, and we pass it on exactly once.
        with _forwarded_signals() as relay:
            child = subprocess.Popen(
                [*self.command, *words],
                cwd=self.app_dir,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if self.quiet_stdout else None,
                process_group=0,
                preexec_fn=_ignore_interrupt,
            )
            relay.attach(child)
            code = child.wait()
        if relay.seen:
            raise Interrupted(f"cdk {words[0]} was interrupted")
        return code


def _ignore_interrupt() -> None:
    """For the child: PyPI's ``cdk`` is a Python wrapper that would answer SIGINT with a traceback. Node.js sets every signal
    back to its default when it starts, so that the CDK itself still ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def find_cdk(command: str | None = None, *, quiet_stdout: bool = False) -> Cdk:
    """The ``cdk`` of this environment (or ``command``). Raises UsageError where there is none."""
    if not Path("cdk.json").is_file():
        raise UsageError(f"no cdk.json in {Path.cwd()}; run from the application's folder")
    use_bundled_node()
    found = shutil.which(command or os.environ.get("EKS_RAY_TRAIN_CDK", "cdk"))
    if found is None:
        raise UsageError(
            f"the {command or 'cdk'} command was not found; install the app's requirements-cdk.txt (it holds CDK and "
            "Node.js) and run "
            "inside that environment"
        )
    return Cdk(command=(found,), quiet_stdout=quiet_stdout)


def _context(settings: Mapping[str, Any]) -> list[str]:
    """``-c eks-ray-train:KEY=VALUE`` for each; ``None`` is handed over as the empty text, which means absent."""
    words: list[str] = []
    for key, value in settings.items():
        text = "" if value is None else value if isinstance(value, str) else json.dumps(_plain(value))
        words += ["-c", f"{CONTEXT_PREFIX}{key}={text}"]
    return words


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class _Relay:
    """Passes the first stopping signal on to the child's group; a second one ends the child for good."""

    def __init__(self) -> None:
        self.seen = 0
        self._child: subprocess.Popen[bytes] | None = None

    def attach(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        if self.seen:  # it came while the child was being started
            self._send(signal.SIGINT)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.seen += 1
        if self.seen == 1:
            self._send(signal.SIGINT)
        elif self.seen >= 2:
            self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self._child is not None and self._child.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)


@contextmanager
def _forwarded_signals() -> Iterator[_Relay]:
    """While inside, SIGINT, SIGTERM and SIGHUP go to the relay; afterwards to whoever had them."""
    relay = _Relay()
    before = {number: signal.signal(number, relay) for number in _STOPPING}
    try:
        yield relay
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
