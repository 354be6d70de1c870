"""Imports point one way: app -> stacks -> constructs and commands -> pure packages -> facts and errors -> the standard library."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

PACKAGE = "eks_ray_train"
PURE = ("capacity", "gate", "manifests", "plan")
# Who may import whom, by group; every group may import itself. "constructs" are the modules that import the CDK, "facts" the rest.
MAY = {
    "facts": {"capacity"},  # the settings' rules ask what a reservation's id looks like
    "capacity": set(),  # the Lambda's whole asset: it must work alone
    "gate": {"facts"},
    "manifests": {"facts"},
    "plan": {"facts"},
    "cli": {"facts", *PURE},
    "constructs": {"facts", *PURE},
    "stacks": {"facts", "constructs"},
    "app": {"facts", "constructs", "stacks"},
}


def module_name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def imports(path: Path, name: str, *, at_load: bool = False) -> list[str]:
    """Dotted names that a file imports, relative ones resolved; imports for type checkers only are left out.

    ``at_load``: without those inside functions.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    later = (ast.FunctionDef, ast.AsyncFunctionDef) if at_load else ()
    left_out = {
        id(node)
        for top in ast.walk(tree)
        if isinstance(top, later) or (isinstance(top, ast.If) and "TYPE_CHECKING" in ast.unparse(top.test))
        for node in ast.walk(top)
    }
    found: list[str] = []
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            found += [f"{start}.{alias.name}" for alias in node.names]
    return found


def library(repo: Path) -> dict[str, Path]:
    root = repo / "constructs"
    return {module_name(path, root): path for path in sorted((root / PACKAGE).rglob("*.py"))}


def group_of(name: str, files: dict[str, Path]) -> str | None:
    """The group of an imported name; None: not ours, or the package itself (its names load lazily)."""
    parts = name.split(".")
    if parts[0] in ("stacks", "app"):
        return parts[0]
    if parts[0] != PACKAGE or len(parts) == 1:
        return None
    if parts[1] in (*PURE, "cli"):
        return parts[1]
    path = files.get(f"{PACKAGE}.{parts[1]}")
    if path is None:
        return None
    cdk = any(other.split(".")[0] in ("aws_cdk", "constructs", "jsii") for other in imports(path, f"{PACKAGE}.{parts[1]}"))
    return "constructs" if cdk else "facts"


def wrong(name: str, path: Path, files: dict[str, Path]) -> list[str]:
    mine = group_of(name, files)
    if mine is None:  # the package's own __init__
        return []
    return [
        f"{name} ({mine}) imports {other} ({theirs})"
        for other in imports(path, name)
        if (theirs := group_of(other, files)) and theirs != mine and theirs not in MAY[mine]
    ]


def test_every_import_points_down(repo: Path) -> None:
    files = library(repo)
    everything = {**files, **{module_name(p, repo): p for p in [*(repo / "stacks").glob("*.py"), repo / "app.py"]}}
    assert len(everything) > 150
    assert [problem for name, path in everything.items() for problem in wrong(name, path, files)] == []


@pytest.mark.parametrize(
    ("name", "line", "found"),
    [
        (f"{PACKAGE}.gate.x", "from eks_ray_train.cli import submit", True),
        (f"{PACKAGE}.cli.x", "from ..efa_gpu_node_group import EfaGpuNodeGroup", True),
        (f"{PACKAGE}.capacity.x", "from ..errors import UsageError", True),
        (f"{PACKAGE}.efa_gpu_node_group", "from stacks import EksStack", True),
        (f"{PACKAGE}.cli.x", "from ..gate import judge", False),
    ],
)
def test_an_import_that_points_up_is_found(repo: Path, tmp_path: Path, name: str, line: str, found: bool) -> None:
    path = tmp_path / "x.py"
    path.write_text(line + "\n")
    assert bool(wrong(name, path, library(repo))) is found


def test_modules_do_not_load_each_other_in_a_circle(repo: Path) -> None:
    files = library(repo)
    edges = {
        name: {
            known
            for other in imports(path, name, at_load=True)
            if (known := other if other in files else other.rpartition(".")[0]) in files and known != name
        }
        for name, path in files.items()
    }
    for names in edges.values():  # the package's own table is lazy, and each package's __init__ stands for its modules
        names.discard(PACKAGE)
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done:
            return []
        for other in sorted(edges[name]):
            if circle := walk(other, (*trail, name)):
                return circle
        done.add(name)
        return []

    assert [circle for name in files if (circle := walk(name, ()))] == []
