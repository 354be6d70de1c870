"""Install the job's torch, without the CUDA build's 3 GB where the machine has no NVIDIA driver and a CPU build is to be had.

Usage: python tools/install_torch.py [pip arguments]. The version is the one of requirements.txt.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements.txt"


def wanted() -> str:
    """The exact requirement, ``torch==X.Y.Z``, as requirements.txt pins it."""
    match = re.search(r"^torch==\S+$", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE)
    if not match:
        raise SystemExit(f"{REQUIREMENTS.name} must pin torch==X.Y.Z on a line of its own")
    return match.group(0)


def has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def pip(*arguments: str, quiet: bool = False) -> int:
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "-q", *arguments]
    return subprocess.run(command, capture_output=quiet, check=False).returncode


def main(extra: list[str]) -> int:
    requirement = wanted()
    if extra or has_nvidia_driver() or sys.platform != "linux":
        return pip(requirement, *extra)
    # A CPU build carries the local version label +cpu (PEP 440): pip takes it from any index or folder of wheels that it
    # is set up with. The default index only has the CUDA build, and then that is what remains.
    if pip("--dry-run", "--no-deps", f"{requirement}+cpu", quiet=True) == 0:
        return pip(f"{requirement}+cpu")
    print(
        "no NVIDIA driver here, and pip sees no CPU build of torch: installing what the default index has (on x86_64 Linux a "
        "CUDA build of several GB). To avoid it: make TORCH_PIP_ARGS='--index-url <index of CPU wheels, see pytorch.org>'",
        file=sys.stderr,
    )
    return pip(requirement)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
