"""The job's folder as a zip: what goes in, what stays out, and a refusal before anything is sent."""

from __future__ import annotations

import io
import os
import time
import zipfile
from pathlib import Path

import pytest

from eks_ray_train.cli.package_dir import LIMIT_BYTES, build_package
from eks_ray_train.errors import UsageError


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "a.py").write_text("A = 1\n")
    return tmp_path


def names(data: bytes) -> list[str]:
    return sorted(zipfile.ZipFile(io.BytesIO(data)).namelist())


def test_the_same_files_give_the_same_name_whenever_they_are_packed(job: Path) -> None:
    first = build_package(job)
    os.utime(job / "train.py", (1, 1))
    assert build_package(job) == first
    (job / "train.py").write_text("print('other')\n")
    assert build_package(job).name != first.name


def test_a_git_folder_of_150_mb_stays_out(job: Path) -> None:
    objects = job / ".git" / "objects"
    objects.mkdir(parents=True)
    for number in range(150):
        (objects / str(number)).write_bytes(os.urandom(1024**2))
    assert names(build_package(job).data) == ["pkg/a.py", "train.py"]


def test_caches_environments_and_secrets_stay_out(job: Path) -> None:
    for path in ("__pycache__/x.pyc", "pkg/__pycache__/a.pyc", ".venv/lib/x", "node_modules/x", ".mypy_cache/x", ".env", ".DS_Store", "pkg/b.pyc"):
        (job / path).parent.mkdir(parents=True, exist_ok=True)
        (job / path).write_text("x")
    assert names(build_package(job).data) == ["pkg/a.py", "train.py"]


def test_a_folder_of_150_mb_is_refused_with_size_limit_and_largest_entries(job: Path) -> None:
    (job / "weights").mkdir()
    for number in range(3):
        (job / "weights" / f"{number}.bin").write_bytes(os.urandom(40 * 1024**2))
    (job / "notes.bin").write_bytes(os.urandom(30 * 1024**2))
    began = time.monotonic()
    with pytest.raises(UsageError) as error:
        build_package(job)
    text = str(error.value)
    assert "150.0 MiB in 6 files" in text and "limit of 100.0 MiB" in text
    assert "largest: weights/ 120.0 MiB in 3 files, notes.bin 30.0 MiB" in text
    assert time.monotonic() - began < 60


def test_what_packs_small_enough_may_be_large(job: Path) -> None:
    (job / "zeros.bin").write_bytes(bytes(150 * 1024**2))
    assert len(build_package(job).data) < LIMIT_BYTES


def test_file_modes_and_bytes_survive(job: Path) -> None:
    (job / "run.sh").write_bytes(b"#!/bin/sh\n")
    (job / "run.sh").chmod(0o755)
    archive = zipfile.ZipFile(io.BytesIO(build_package(job).data))
    assert archive.getinfo("run.sh").external_attr >> 16 & 0o777 == 0o755
    assert archive.read("pkg/a.py") == b"A = 1\n"


def test_links_are_followed_once_and_a_dead_one_is_an_error(job: Path) -> None:
    (job / "loop").symlink_to(job, target_is_directory=True)
    (job / "again").symlink_to(job / "pkg", target_is_directory=True)
    found = names(build_package(job).data)
    assert len(found) == 2 and "train.py" in found
    (job / "dead").symlink_to(job / "nowhere")
    with pytest.raises(UsageError, match="leads nowhere"):
        build_package(job)


def test_a_missing_folder_or_entry_point_names_the_flag(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--job-dir"):
        build_package(tmp_path / "none")
    with pytest.raises(UsageError, match=r"has no train\.py"):
        build_package(tmp_path)


def test_ray_unpacks_it(job: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    packaging = pytest.importorskip("ray._private.runtime_env.packaging")
    target = tmp_path_factory.mktemp("unpacked")
    package = target / "package.zip"
    package.write_bytes(build_package(job).data)
    packaging.unzip_package(str(package), str(target / "out"), remove_top_level_directory=False, unlink_zip=True)
    assert (target / "out" / "pkg" / "a.py").read_text() == "A = 1\n"
