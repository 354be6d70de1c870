"""Manifests are pure: no CDK, no clock, no environment, no network."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

_ALLOWED = {
    "__future__", "base64", "collections", "dataclasses", "eks_ray_train", "hashlib", "json", "pathlib", "re", "shlex", "typing",
}  # fmt: skip


def _modules(repo: Path) -> list[Path]:
    return sorted((repo / "constructs" / "eks_ray_train" / "manifests").glob("*.py"))


def test_manifest_modules_import_nothing_that_is_not_pure(repo: Path) -> None:
    for path in _modules(repo):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                roots = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                roots = {str(node.module).partition(".")[0]}
            else:
                continue
            assert roots <= _ALLOWED, f"{path.name} imports {roots - _ALLOWED}"


@pytest.mark.parametrize("blocked", ["aws_cdk", "constructs", "boto3", "yaml", "ray"])
def test_manifests_load_without(blocked: str, repo: Path) -> None:
    names = [f"eks_ray_train.manifests.{path.stem}" for path in _modules(repo) if path.stem != "__init__"]
    code = f"import sys; sys.modules[{blocked!r}] = None\n" + "\n".join(f"import {name}" for name in names)
    path = repo / "constructs"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(path)!r})\n{code}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
