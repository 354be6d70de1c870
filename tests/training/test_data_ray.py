"""Tokenizing and packing as Ray Data tasks on a real local cluster."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fsdp_job.data_cache import localize
from fsdp_job.data_readers import ShardReader
from fsdp_job.data_spec import DataSpec, PreparedData
from fsdp_job.errors import JobUsageError
from fsdp_job.prepare import prepare

pytestmark = pytest.mark.ray

JOB = Path(__file__).parents[2] / "job"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    import ray

    temporary = tempfile.mkdtemp(prefix="r")  # short: Unix socket paths end at 107 characters
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=temporary,
        runtime_env={"env_vars": {"PYTHONPATH": str(JOB)}},
    )
    yield
    ray.shutdown()
    shutil.rmtree(temporary, ignore_errors=True)


def spec(dataset: Path, folder: Path) -> DataSpec:
    return DataSpec(
        dataset=str(dataset), tokenizer="bytes", seq_len=64, seed=1, vocab_size=None, eval_sequences=4,
        cache_dir=str(folder), storage_path=str(folder),
    )  # fmt: skip


def records(prepared: PreparedData) -> tuple[np.ndarray, np.ndarray]:
    reader = ShardReader(*localize(prepared))
    try:
        return reader.read(np.arange(prepared.n_total))
    finally:
        reader.close()


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02d}.txt").write_text(f"document {number} " * (number % 9 + 3))
    return folder


def test_result_of_many_tasks_equals_the_serial_one(cluster: None, texts: Path, tmp_path: Path) -> None:
    serial = prepare(spec(texts, tmp_path / "serial"), use_ray=False)
    for unit_bytes in (300, 2000):
        parallel = prepare(spec(texts, tmp_path / f"ray{unit_bytes}"), unit_bytes=unit_bytes, shard_bytes=1500)
        assert parallel.fingerprint == serial.fingerprint
        assert (parallel.tokens, parallel.documents) == (serial.tokens, serial.documents)
        assert len(list(Path(parallel.folder).glob("*.npy"))) > 3
        for one, other in zip(records(serial), records(parallel), strict=True):
            assert np.array_equal(one, other)


def test_work_runs_in_tasks_not_in_the_driver(
    cluster: None, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsdp_job import data_pack

    def refuse(*arguments: object) -> None:
        raise AssertionError("tokenized in the driver")

    monkeypatch.setattr(data_pack, "_batches", refuse)
    assert prepare(spec(texts, tmp_path / "s")).documents == 40


def test_mistake_found_in_a_task_is_the_users_message_without_rays(cluster: None, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "x"}\n')
    with pytest.raises(
        JobUsageError, match=r"a\.jsonl, byte 0 has no column text or content; its columns: body"
    ) as caught:
        prepare(spec(tmp_path / "a.jsonl", tmp_path / "s"))
    assert "Traceback" not in str(caught.value)


def test_files_that_other_nodes_do_not_have_are_packed_on_the_drivers(
    cluster: None, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from fsdp_job import prepare as module

    real = module.run_with_ray

    def elsewhere(function: Callable[..., Any], arguments: list[dict[str, Any]]) -> list[Any]:
        """The tasks' node has no such folder, as where only the driver's node has the files."""
        gone = []
        for each in arguments:
            pieces = [replace(p, source=replace(p.source, location="/nowhere")) for p in each.get("pieces", ())]
            gone.append(each | ({"pieces": pieces} if pieces else {}))
        return real(function, gone)

    monkeypatch.setattr(module, "run_with_ray", elsewhere)
    assert prepare(spec(texts, tmp_path / "s")).documents == 40
    assert "tokenizing on the driver's node instead" in caplog.text
