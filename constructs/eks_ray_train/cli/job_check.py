"""The job's own look at its flags, before anything is started or waited for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from eks_ray_train.errors import ExitCode, UsageError


def check_job(command: str, job_dir: Path, job_args: list[str], *, elsewhere: bool = False) -> None:
    """Raises UsageError with the job's words where it would refuse its flags, or cannot read a file that they name.

    ``elsewhere``: files are on the machines of a cluster and cannot be looked for. A job of the user's own, without
    ``fsdp_job/check.py``, tells its mistakes when it runs.
    """
    if not (job_dir / "fsdp_job" / "check.py").is_file():
        return
    words = [sys.executable, "-m", "fsdp_job.check", *(["--elsewhere"] if elsewhere else []), *job_args]
    done = subprocess.run(words, cwd=job_dir, capture_output=True, text=True, check=False)
    if done.stdout:
        print(done.stdout, end="", file=sys.stderr)
    if done.returncode == int(ExitCode.USAGE):
        raise UsageError(f"the job refuses its flags: {done.stderr.strip()}; correct them, or see eks-ray-train {command} --help")
