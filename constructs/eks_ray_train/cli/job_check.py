"""The job's own look at its flags, before anything is started or waited for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Literal

from eks_ray_train.errors import ExitCode, UsageError

Where = Literal["here", "elsewhere", "nccl-bench"]


def check_job(command: str, job_dir: Path, job_args: list[str], *, where: Where = "here") -> None:
    """Raises UsageError with the job's words where it would refuse its flags, or cannot read a file that they name.

    ``where``: ``elsewhere`` for a cluster, on which only files of the job's folder can be looked for; ``nccl-bench`` for the
    flags of ``nccl_bench.py``. A job of the user's own, without ``fsdp_job/check.py``, tells its mistakes when it runs.
    """
    if not (job_dir / "fsdp_job" / "check.py").is_file():
        return
    words = [sys.executable, "-m", "fsdp_job.check", *([] if where == "here" else [f"--{where}"]), *job_args]
    done = subprocess.run(words, cwd=job_dir, capture_output=True, text=True, check=False)
    if done.stdout:
        print(done.stdout, end="", file=sys.stderr)
    if done.returncode == int(ExitCode.USAGE):
        raise UsageError(f"the job refuses its flags: {done.stderr.strip()}; correct them, or see eks-ray-train {command} --help")
    if done.returncode and done.stderr.strip():
        last = done.stderr.strip().splitlines()[-1]
        print(f"the job's flags could not be checked on this machine ({last}); the job checks them when it runs", file=sys.stderr)
