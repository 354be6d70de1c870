"""Writes the lock files: every package of a requirements file with its version and the hashes of all its files on the index.

    make lock        # uv, in an environment of its own

One lock serves every platform and every Python that the project supports (markers inside). PyTorch has a lock of its own,
requirements-torch.lock, with the CUDA libraries of its default build: a CPU build is another file with other hashes, and who wants
that one installs it by version (tools/install_torch.py) and everything else by hash. The project itself is in no lock: pip refuses
an editable install among hashes, so it goes after them by --no-deps -e .
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
# Each gets a lock; the job's and the tests' are without PyTorch and what only PyTorch brings.
LOCKS = ("requirements-cdk", "requirements", "requirements-dev", "requirements-docs", "requirements-lint", "requirements-release", "requirements-checkov")
TORCH_LOCK = "requirements-torch.lock"
TORCH_PARTS = re.compile(r"(torch|triton|nvidia-[\w-]+|cuda-[\w-]+)$")
BLOCK = re.compile(r"^(?P<name>[a-z0-9][a-z0-9._-]*)==.*?(?=^[a-z0-9]|\Z)", re.DOTALL | re.MULTILINE)
HEAD = "# Written by make lock from {source}. Install: pip install --require-hashes --no-deps -r {lock}\n"


def oldest_python() -> str:
    """The first Python that the project supports, from pyproject.toml."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["requires-python"]).removeprefix(">=")


def resolved(source: str) -> str:
    """uv's answer for a requirements file, without the project itself and without the index's address."""
    command = [
        str(Path(sys.executable).parent / "uv"), "pip", "compile", "--quiet", "--universal", "--python-version", oldest_python(),
        "--generate-hashes", "--no-emit-index-url", "--no-emit-package", "eks-ray-train", "--no-header", "--upgrade", source,
    ]  # fmt: skip
    return subprocess.run(command, cwd=REPO, check=True, stdout=subprocess.PIPE, text=True).stdout


def parts(text: str) -> tuple[str, str]:
    """(everything else, PyTorch and its CUDA libraries) of a resolved text."""
    other: list[str] = []
    torch: list[str] = []
    for block in BLOCK.finditer(text):
        (torch if TORCH_PARTS.match(block["name"]) else other).append(block[0])
    return "".join(other), "".join(torch)


def main() -> int:
    for name in LOCKS:
        source, lock = f"{name}.txt", f"{name}.lock"
        other, torch = parts(resolved(source))
        (REPO / lock).write_text(HEAD.format(source=source, lock=lock) + other, encoding="utf-8")
        if name == "requirements":
            (REPO / TORCH_LOCK).write_text(HEAD.format(source=source, lock=TORCH_LOCK) + torch, encoding="utf-8")
        print(f"{lock}: {len(BLOCK.findall(other))} packages" + (f", {len(BLOCK.findall(torch))} in {TORCH_LOCK}" if torch else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
