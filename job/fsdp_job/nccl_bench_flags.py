"""``argv`` of ``nccl_bench.py`` -> its settings. Only the standard library, so that ``--help`` and a wrong flag answer at once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from fsdp_job.config import MOST, JobConfig
from fsdp_job.errors import JobUsageError
from fsdp_job.flags import dashed

SEE = "see python nccl_bench.py --help"
LARGEST_BYTES = 64 * 2**30


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise JobUsageError(f"{message[:300]}; {SEE}")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The settings of a command line; raises JobUsageError with every problem named."""
    parser = _Parser(
        prog="nccl_bench.py", allow_abbrev=False,
        description="Bandwidth between the ranks by message size: all-reduce through torch.distributed inside Ray Train.",
    )  # fmt: skip
    parser.add_argument("--min-bytes", type=int, default=8 * 2**10, help="smallest message (default: 8 KiB)")
    parser.add_argument("--max-bytes", type=int, help="largest message (default: 1 GiB on GPUs, 16 MiB on CPUs)")
    parser.add_argument("--factor", type=int, default=4, help="each size is so many times the one before (default: 4)")
    parser.add_argument("--iterations", type=int, default=20, help="operations a repetition (default: 20)")
    parser.add_argument("--warm-up", type=int, default=5, help="operations before, not counted (default: 5)")
    parser.add_argument("--repeat", type=int, default=5, help="repetitions of each size (default: 5)")
    parser.add_argument("--num-workers", type=int, help="ranks (default: all GPUs; without GPUs one per node)")
    parser.add_argument("--wait-seconds", type=float, default=1800.0, help="how long to wait for all GPUs to join")
    args, unknown = parser.parse_known_args([dashed(word) for word in argv])
    if unknown:
        raise JobUsageError(f"unknown flag {unknown[0]}; {SEE}")
    problems = _problems(args)
    if problems:
        raise JobUsageError(f"{'; '.join(problems)}; {SEE}")
    JobConfig(num_workers=args.num_workers, wait_seconds=args.wait_seconds)  # raises where these two are wrong
    return args


def _problems(args: argparse.Namespace) -> list[str]:
    limits = {
        "min_bytes": (1, LARGEST_BYTES), "max_bytes": (1, LARGEST_BYTES), "factor": (2, MOST), "iterations": (1, MOST),
        "warm_up": (0, MOST), "repeat": (1, MOST),
    }  # fmt: skip
    found = []
    for name, (low, high) in limits.items():
        value = getattr(args, name)
        if value is not None and not low <= value <= high:
            found.append(f"--{name.replace('_', '-')} must be from {low} to {high}, got {value}")
    if not found and args.max_bytes is not None and args.max_bytes < args.min_bytes:
        found.append(f"--max-bytes must not be below --min-bytes ({args.min_bytes}), got {args.max_bytes}")
    return found
