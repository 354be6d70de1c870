"""Numbers on the command line, as argparse types: a wrong one is told with what is allowed, at both ends."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

# Above these no run exists, and a typing mistake (one zero too many, 1e300) would give a plan that means nothing.
MOST_NODES = 450  # nodes of one managed node group (EKS's default quota)
MOST_STEPS = 10**9
MOST_TOKENS = 1e16
MOST_SEQ_LEN = 2**24
MOST_PER_STEP = 2**16
MOST_SECONDS = 366 * 86400


def whole(low: int, high: int, *, remedy: str = "") -> Callable[[str], int]:
    """A whole number from ``low`` to ``high``; ``remedy`` ends the message."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:  # no number, or one of thousands of digits
            value = None
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError(_said(f"must be a whole number from {low:,} to {high:,}", text, remedy))
        return value

    return read


def amount(low: float, high: float, *, remedy: str = "") -> Callable[[str], float]:
    """A number from ``low`` to ``high``, such as 1e9; ``remedy`` ends the message."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:  # also where it is not a number
            raise argparse.ArgumentTypeError(_said(f"must be a number from {low:g} to {high:g}", text, remedy))
        return value

    return read


def seconds(remedy: str) -> Callable[[str], float]:
    """A positive number of seconds, at most a year; ``remedy`` ends the message."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= MOST_SECONDS:
            raise argparse.ArgumentTypeError(
                _said("must be a positive number of seconds, at most a year", text, remedy)
            )
        return value

    return read


def _said(must: str, got: str, remedy: str) -> str:
    shown = got if len(got) <= 40 else got[:40] + "…"
    return f"{must}, got {shown!r}" + (f"; {remedy}" if remedy else "")
