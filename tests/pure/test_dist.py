"""The release: wheel and sdist hold the library and nothing else, one version, and the wheel works in an empty environment."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import eks_ray_train
from eks_ray_train.cli.__main__ import CLI_PACKAGES, main


@pytest.fixture(scope="module")
def tool(repo: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_dist_tool", repo / "tools" / "check_dist.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def dist(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both, built by the backend that pyproject.toml names; it is installed, so that no network is needed."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    subprocess.run(command, cwd=repo, check=True, capture_output=True)
    return out


def test_wheel_and_sdist_hold_the_library_and_nothing_else(tool: ModuleType, dist: Path) -> None:
    assert list(tool.problems(dist)) == []


def test_the_wheel_works_in_an_empty_environment(tool: ModuleType, dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    assert list(tool.alone(wheel)) == []


def test_the_version_has_one_place(tool: ModuleType, repo: Path) -> None:
    project = tomllib.loads((repo / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" not in project and project["dynamic"] == ["version"]
    assert tool.source_version() == eks_ray_train.__version__


def test_a_file_that_is_missing_or_too_much_is_found(tool: ModuleType, dist: Path, tmp_path: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    (wheel,) = dist.glob("*.whl")
    shutil.copy(sdist, tmp_path)
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(tmp_path / wheel.name, "w") as new:
        for name in old.namelist():
            if name != "eks_ray_train/py.typed":
                new.writestr(name, old.read(name))
        new.writestr("stacks/__init__.py", "")
    assert list(tool.problems(tmp_path)) == [
        "the wheel lacks eks_ray_train/py.typed", "the wheel holds stacks/__init__.py, which is no file of the library",
    ]  # fmt: skip
    assert "one wheel and one sdist" in next(iter(tool.problems(tmp_path / "nothing")))


def test_a_command_without_its_packages_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from eks_ray_train.cli import __main__ as cli

    def absent(_: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'urllib3'", name="urllib3.util")

    monkeypatch.setattr(cli, "load_command", absent)
    assert main(["status"]) == 2
    assert "pip install '.[cli]' in a checkout" in capsys.readouterr().err


def test_the_packages_of_that_message_are_those_of_the_extra(repo: Path) -> None:
    extra = tomllib.loads((repo / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]["cli"]
    names = {requirement.partition(">")[0].lower() for requirement in extra}
    imported = {"yaml": "pyyaml", "websocket": "websocket-client", "botocore": "boto3"}
    assert {imported.get(package, package) for package in CLI_PACKAGES} == names
