"""Asks before something is changed or costs money."""

from __future__ import annotations

import argparse
import sys

from eks_ray_train.errors import UsageError


def agree(args: argparse.Namespace, question: str, *, refused: str) -> None:
    """Returns where the user agrees: by ``--yes``, or by typing it at a terminal.

    Raises UsageError (exit code 2) where the answer is no, and where nobody can be asked (no terminal, or ``--json``).
    ``refused`` says what was therefore not done.
    """
    if args.yes:
        return
    if args.json or not sys.stdin.isatty():
        raise UsageError(f"{question} Add --yes to agree; {refused}")
    print(f"{question} Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError(f"not agreed to; {refused}")


def out(args: argparse.Namespace, text: str) -> None:
    """Human text: stdout, or stderr under ``--json``."""
    print(text, file=sys.stderr if args.json else sys.stdout, flush=True)


def note(text: str) -> None:
    """Progress and warnings: always stderr."""
    print(text, file=sys.stderr, flush=True)
