"""The package's lazy table of public names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import eks_ray_train


def test_no_public_name_is_also_a_modules_name() -> None:
    """Importing the module would put it in the place of the function: which of the two a user gets depended on the order."""
    modules = {path.stem for path in Path(eks_ray_train.__file__).parent.iterdir() if path.suffix in ("", ".py")}
    assert modules & set(eks_ray_train.__all__) == set()


def test_every_public_name_can_be_had_whatever_was_imported_before() -> None:
    code = (
        "import importlib, pkgutil, eks_ray_train as e\n"
        "for name in e._EXPORTS.values(): importlib.import_module(f'eks_ray_train.{name}')\n"
        "for name, module in e._EXPORTS.items():\n"
        "    found = getattr(e, name)\n"
        "    assert type(found).__name__ != 'module', name\n"
        "    assert getattr(importlib.import_module(f'eks_ray_train.{module}'), name) is found, name\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_names_for_type_checkers_are_those_of_the_table() -> None:
    text = Path(eks_ray_train.__file__).read_text(encoding="utf-8").partition("if TYPE_CHECKING:")[2]
    words = {word.strip(",") for word in text.replace("(", " ").replace(")", " ").split()}
    assert set(eks_ray_train._EXPORTS) <= words
