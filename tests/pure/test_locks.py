"""The lock files: every package with its version and hashes, what the requirements pin, no address of any index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REPO = Path(__file__).resolve().parents[2]
SOURCES = ("requirements-cdk", "requirements", "requirements-dev", "requirements-docs", "requirements-lint", "requirements-release", "requirements-checkov")
LOCKS = sorted([*(f"{name}.lock" for name in SOURCES), "requirements-torch.lock"])
BLOCK = re.compile(r"^(?P<what>[a-z0-9][a-z0-9._-]*==[^\\\n]+?) \\\n(?P<hashes>(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def locked(name: str) -> dict[str, list[Requirement]]:
    """Package -> its lines in a lock file: several where platforms or Pythons differ."""
    found: dict[str, list[Requirement]] = {}
    for match in BLOCK.finditer((REPO / name).read_text(encoding="utf-8")):
        requirement = Requirement(match["what"])
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def wanted(name: str) -> list[Requirement]:
    """What a requirements file asks for, files that it includes too; the project itself left out."""
    found = []
    for line in (REPO / name).read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text.startswith("-r "):
            found += wanted(text.removeprefix("-r ").strip())
        elif text and not text.startswith("-e"):
            found.append(Requirement(text))
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_of_a_lock_is_a_package_with_hashes_or_a_comment(name: str) -> None:
    text = (REPO / name).read_text(encoding="utf-8")
    rest = [line for line in BLOCK.sub("", text).splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert rest == [] and len(locked(name)) > 1
    assert not re.search(r"https?:|file:|--(?:extra-)?index|--find-links|\+cpu", text)


@pytest.mark.parametrize("name", SOURCES)
def test_a_lock_holds_what_its_requirements_ask_for(name: str) -> None:
    held = locked(f"{name}.lock") | ({"torch": locked("requirements-torch.lock")["torch"]} if name in ("requirements", "requirements-dev") else {})
    for requirement in wanted(f"{name}.txt"):
        lines = held.get(canonicalize_name(requirement.name), [])
        versions = {next(iter(line.specifier)).version for line in lines}
        assert versions, f"{name}.lock lacks {requirement.name}: run make lock"
        assert all(requirement.specifier.contains(Version(v), prereleases=True) for v in versions), f"{requirement} but {versions}: run make lock"


def test_the_job_and_the_tests_share_their_versions() -> None:
    cdk, job, dev = (locked(f"{name}.lock") for name in ("requirements-cdk", "requirements", "requirements-dev"))
    for smaller, larger in ((cdk, job), (job, dev)):
        differ = [name for name in smaller if {str(r.specifier) for r in smaller[name]} != {str(r.specifier) for r in larger.get(name, [])}]
        assert differ == []


def test_pytorch_and_its_cuda_libraries_are_in_a_lock_of_their_own() -> None:
    ours = re.compile(r"torch$|triton$|nvidia-|cuda-")
    assert not [name for lock in ("requirements.lock", "requirements-dev.lock") for name in locked(lock) if ours.match(name)]
    assert all(ours.match(name) for name in locked("requirements-torch.lock"))
