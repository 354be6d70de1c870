"""TensorBoard's files: all numbers are in them, and no trouble with them ends, fails or holds up the training."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest

from fsdp_job import metrics
from fsdp_job.metrics import Board
from fsdp_job.storage import Location
from tests.training.job_ranks import run_job, write_inputs

NUMBERS = {"step": 1, "loss": 2.5, "tokens": 64, "mfu": None, "note": "text"}
WITHOUT = "training goes on without TensorBoard"


class Remote(Location):
    """A local folder that the job takes for remote storage."""

    @property
    def is_local(self) -> bool:
        return False


def local(folder: Path) -> Location:
    return Location(pyarrow.fs.LocalFileSystem(), str(folder), str(folder))


def remote(folder: Path) -> Location:
    folder.mkdir()
    return Remote(pyarrow.fs.LocalFileSystem(), str(folder), str(folder))


def content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("events.*")))


def break_writer(after: int) -> None:
    """tensorboardX's record number ``after`` meets a full disk, once."""
    from tensorboardX import record_writer

    real, written = record_writer.RecordWriter.write, iter(range(10**9))

    def write(self: Any, data: bytes) -> None:
        if next(written) == after:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, data)

    record_writer.RecordWriter.write = write


def break_writer_on(rank: int) -> None:
    break_writer(after=40)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboardX import record_writer

    monkeypatch.setattr(record_writer.RecordWriter, "write", record_writer.RecordWriter.write)  # put back afterwards
    break_writer(after=3)


def test_all_numbers_added_are_in_the_files_after_close(tmp_path: Path) -> None:
    board = Board(local(tmp_path / "board"))
    for step in range(1, 301):
        board.add(step, {**NUMBERS, f"only_{step}": step})
    board.close()
    written = content(tmp_path / "board")
    assert all(f"train/only_{step}".encode() in written for step in range(1, 301))
    assert b"train/loss" in written and b"train/step" not in written and b"train/note" not in written


def test_remote_storage_gets_what_was_added_last_too_and_nothing_is_left_behind(tmp_path: Path) -> None:
    board = Board(remote(tmp_path / "store"))
    board.add(1, NUMBERS)
    board.sync()
    board.add(2, {"last": 1.0})
    board.close()
    assert b"train/last" in content(tmp_path / "store")
    assert board._scratch is not None and not board._scratch.exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.usefixtures("full_disk")
def test_a_writer_that_met_a_full_disk_is_told_once_and_blocks_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = Board(local(tmp_path / "board"))
    started = time.monotonic()
    for step in range(1, 3001):
        board.add(step, NUMBERS)
    board.sync()
    board.close()
    assert time.monotonic() - started < 10
    told = capsys.readouterr().err
    assert told.count(WITHOUT) == 1 and f"{tmp_path}/board" in told


def test_an_upload_that_fails_is_told_once_and_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(source: Path, target: Location) -> None:
        raise OSError(errno.EIO, "When uploading part: AWS Error SLOW_DOWN")

    monkeypatch.setattr(metrics, "upload_folder", fail)
    board = Board(remote(tmp_path / "store"))
    for step in range(1, 4):
        board.add(step, NUMBERS)
        board.sync()
    board.close()
    told = capsys.readouterr().err
    assert told.count(WITHOUT) == 1 and "SLOW_DOWN" in told
    assert board._scratch is not None and not board._scratch.exists()


def test_storage_that_does_not_answer_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = threading.Event()
    monkeypatch.setattr(metrics, "upload_folder", lambda source, target: answer.wait(60))
    monkeypatch.setattr(metrics, "BOARD_CLOSE_S", 0.2)
    monkeypatch.setattr(metrics, "BOARD_BACKLOG", 50)
    started = time.monotonic()
    board = Board(remote(tmp_path / "store"))
    board.sync()
    for step in range(1, 200):
        board.add(step, NUMBERS)
    board.close()
    slow = Board(remote(tmp_path / "other"))
    slow.sync()
    slow.close()
    took = time.monotonic() - started
    answer.set()
    assert took < 10
    told = capsys.readouterr().err
    assert "50 steps wait to be written" in told and "still not written after 0.2 s" in told and told.count(WITHOUT) == 2


def test_a_folder_that_cannot_be_made_does_not_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    board = Board(local(tmp_path / "file" / "board"))
    board.add(1, NUMBERS)
    board.sync()
    board.close()
    assert capsys.readouterr().err.count(WITHOUT) == 1


def test_a_run_whose_board_fails_succeeds_with_all_its_checkpoints(tmp_path: Path) -> None:
    flags = {**write_inputs(tmp_path), "steps": 20, "checkpoint_every": 10, "collective_timeout_seconds": 4.0, "num_workers": 1}
    run = run_job(flags, world=1, name="a", before=break_writer_on)
    assert run.outcomes[0]["status"] == "succeeded" and len(run.losses) == 20
    assert len(list((tmp_path / "store" / "a" / "checkpoints").glob("step-*"))) == 2
