"""Checks a built release: contents, version, and the wheel alone in an empty environment.

    python tools/check_dist.py dist      # a folder with one wheel and one sdist; ends with 1 and the problems where there are any
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
PACKAGE = "eks_ray_train"
# What the wheel must do with nothing else installed: the constructs need aws-cdk-lib, these do not.
ALONE = (
    (["-m", "eks_ray_train.cli", "--version"], "eks-ray-train "),
    (["-m", "eks_ray_train.cli", "--help"], "usage: eks-ray-train"),
    (["-c", "import eks_ray_train as e; print(e.get_instance_type('g6.12xlarge').gpus, e.__version__)"], "4 "),
    (["-m", "eks_ray_train.cli", "plan", "--model", "Qwen/Qwen2.5-1.5B", "--nodes", "2"], ""),
)


def source_version() -> str:
    """``__version__`` of the sources: the one place."""
    text = (REPO / "constructs" / PACKAGE / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if not match:
        raise SystemExit("constructs/eks_ray_train/__init__.py holds no __version__")
    return match[1]


def modules() -> set[str]:
    """Every file of the library that a release must hold, as ``eks_ray_train/…``."""
    root = REPO / "constructs"
    return {
        path.relative_to(root).as_posix()
        for path in (root / PACKAGE).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }


def problems(folder: Path) -> Iterator[str]:
    """What is wrong with the wheel and the sdist in ``folder``."""
    wheels, sdists = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        yield f"{folder} must hold one wheel and one sdist, has {len(wheels)} and {len(sdists)}"
        return
    version = source_version()
    for built in (wheels[0], sdists[0]):
        if f"-{version}" not in built.name:
            yield f"{built.name} is not of version {version}"
    with zipfile.ZipFile(wheels[0]) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(n for n in names if n.endswith(".dist-info/METADATA"))).decode()
    inside = {name for name in names if ".dist-info/" not in name}
    yield from (f"the wheel lacks {name}" for name in sorted(modules() - inside))
    yield from (f"the wheel holds {name}, which is no file of the library" for name in sorted(inside - modules()))
    for field in (f"Version: {version}", "License-Expression: Apache-2.0", "Requires-Python: >=3.11", "Description-Content-Type: text/markdown"):
        if f"\n{field}\n" not in metadata:
            yield f"the wheel's metadata lacks {field!r}"
    with tarfile.open(sdists[0]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {f"constructs/{name}" for name in modules()} | {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO"}
    yield from (f"the sdist lacks {name}" for name in sorted(wanted - held))


def alone(wheel: Path) -> Iterator[str]:
    """Installs the wheel, without what it requires, into an empty environment, and uses it there."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder) / "env", with_pip=True)
        python = Path(folder) / "env" / "bin" / "python"
        pip = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel.resolve())]
        subprocess.run(pip, check=True, cwd=folder)
        for words, says in ALONE:
            done = subprocess.run([str(python), "-I", *words], cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode != 0 or not done.stdout.startswith(says):
                yield f"in an empty environment python {' '.join(words)} ended with {done.returncode}: {(done.stderr or done.stdout)[-400:]}"


def main(argv: list[str]) -> int:
    folder = Path(argv[0]) if argv else REPO / "dist"
    found = list(problems(folder))
    if not found:
        found = list(alone(next(folder.glob("*.whl"))))
    for problem in found:
        print(problem, file=sys.stderr)
    if not found:
        print(f"wheel and sdist of {source_version()} hold what they should, and the wheel works in an empty environment")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
