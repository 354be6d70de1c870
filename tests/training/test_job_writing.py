"""A checkpoint's files written beside the loop: hashed on the way, paced where the loop needs the CPUs, quick for who waits."""

from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path

import pytest
import torch

from fsdp_job.storage import locate
from fsdp_job.writing import Pace, upload, write_sharded
from tests.training.job_ranks import call_on_ranks


def work(seconds: float) -> None:
    """So much processor time of this thread, whatever else runs."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        continue


def test_a_paced_writer_works_its_share_of_the_time() -> None:
    pace, began = Pace(0.2, free_s=0.0), time.monotonic()
    pace.begin()
    for _ in range(5):
        work(0.02)
        pace.rest()
    assert time.monotonic() - began >= 0.45  # 0.1 s of work and four times that of rest, but for the clock's grain


@pytest.mark.parametrize(("share", "free_s"), [(1.0, 0.0), (0.1, 10.0)])
def test_a_writer_at_full_share_and_a_small_write_never_rest(
    monkeypatch: pytest.MonkeyPatch, share: float, free_s: float
) -> None:
    pace = Pace(share, free_s)
    monkeypatch.setattr(pace._hurry, "wait", lambda _seconds: pytest.fail("it rested"))
    pace.begin()
    work(0.02)
    pace.rest()


def test_who_waits_ends_the_rest_at_once_and_for_good() -> None:
    pace = Pace(0.001, free_s=0.0)
    pace.begin()
    work(0.05)
    threading.Timer(0.1, pace.hurry).start()
    began = time.monotonic()
    pace.rest()  # 50 s, were nobody waiting
    work(0.05)
    pace.rest()
    assert time.monotonic() - began < 25


def _write(folder: str) -> dict[str, str]:
    import torch.distributed as dist

    state = {"weight": torch.arange(3_000_000, dtype=torch.float32), "bias": torch.ones(7)}
    return write_sharded(state, Path(folder), dist.group.WORLD, Pace(1.0))


def test_the_hashes_are_those_of_the_files_and_torchs_own_reader_reads_them(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    first, second = call_on_ranks(_write, world=2, args=(str(tmp_path),))
    assert {".metadata", "__0_0.distcp"} <= first.keys()
    assert ".metadata" not in second
    digests = first | second
    assert digests == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.iterdir()}
    loaded = {"weight": torch.zeros(3_000_000), "bias": torch.zeros(7)}
    dcp.load(loaded, storage_reader=dcp.FileSystemReader(tmp_path), no_dist=True)
    assert torch.equal(loaded["weight"], torch.arange(3_000_000, dtype=torch.float32))
    assert torch.equal(loaded["bias"], torch.ones(7))
    assert torch.serialization.get_crc32_options()


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_an_upload_is_the_file_to_the_byte(tmp_path: Path, share: float) -> None:
    source = tmp_path / "a.gz"  # by its name pyarrow would compress it
    source.write_bytes(bytes(range(256)) * 40_000)
    work(0.5)  # before the upload, so none of its rest: it would take ten times as long
    began = time.monotonic()
    upload(source, locate(str(tmp_path / "b.gz")), Pace(share))
    assert time.monotonic() - began < 5
    assert (tmp_path / "b.gz").read_bytes() == source.read_bytes()
