"""Storage that fails at an awkward moment, and run folders with more in them than one straight line of checkpoints."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from fsdp_job import restore
from fsdp_job.errors import CheckpointError
from fsdp_job.storage import RunFolder, locate
from tests.training.job_ranks import Run, run_job, write_inputs

Flags = dict[str, Any]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Flags:
    return {**write_inputs(tmp_path_factory.mktemp("faults")), "checkpoint_every": 2, "keep": 3}


@pytest.fixture(scope="module")
def twelve_steps(shared: Flags) -> Path:
    """A run of one rank with checkpoints at 8, 10 and 12, all of its first attempt."""
    run_job({**shared, "steps": 12}, world=1, name="twelve")
    return Path(shared["storage_path"]) / "twelve"


@pytest.fixture
def inputs(shared: Flags, tmp_path: Path) -> Flags:
    return {**shared, "storage_path": str(tmp_path / "store")}


@pytest.fixture
def twelve(inputs: Flags, twelve_steps: Path) -> Path:
    """The test's own copy of that run, as run ``r``."""
    target = Path(inputs["storage_path"]) / "r"
    shutil.copytree(twelve_steps, target)
    return target


def names(inputs: Flags, run: str = "r") -> list[str]:
    return sorted(path.name for path in (Path(inputs["storage_path"]) / run / "checkpoints").iterdir())


def committed(run: Run) -> list[bool]:
    return [event["committed"] for event in run.of("checkpoint")]


def first_step(run: Run) -> int:
    return int(run.of("step")[0]["step"])


def _no_folder_on_rank_1_at_step_4(rank: int) -> None:
    """Its disk is full when it makes the folder, before anything that the ranks do together."""
    original = Path.mkdir

    def mkdir(self: Path, *args: Any, **more: Any) -> None:
        if rank == 1 and "step-00000004" in str(self):
            raise OSError(errno.ENOSPC, "No space left on device")
        original(self, *args, **more)

    Path.mkdir = mkdir  # type: ignore[method-assign]


def test_one_ranks_passing_error_costs_one_checkpoint_and_the_later_ones_are_whole(inputs: Flags) -> None:
    run = run_job({**inputs, "steps": 8}, world=2, name="r", before=_no_folder_on_rank_1_at_step_4)
    assert committed(run) == [True, False, True, True]
    assert "rank 1: OSError: [Errno 28] No space left" in run.of("checkpoint")[1]["error"]
    assert names(inputs) == ["step-00000002-a0001", "step-00000006-a0001", "step-00000008-a0001"]
    again = run_job({**inputs, "steps": 10}, world=2, name="r", submission="s2")
    assert again.of("restart")[0]["passed_over"] == []
    assert first_step(again) == 9


def _rank_1_is_one_save_ahead(rank: int) -> None:
    from fsdp_job.checkpoint import Checkpointer

    original = Checkpointer._write_files

    def write_files(self: Any, target: Any, step: int, *rest: Any) -> int:
        return original(self, target, step + 2 * (rank == 1 and step == 4), *rest)

    Checkpointer._write_files = write_files  # type: ignore[method-assign]


def test_ranks_at_different_steps_make_no_checkpoint(inputs: Flags) -> None:
    run = run_job({**inputs, "steps": 6}, world=2, name="r", before=_rank_1_is_one_save_ahead)
    assert committed(run) == [True, False, True]
    assert "the ranks save different steps (4, 6)" in run.of("checkpoint")[1]["error"]


def _old_ones_cannot_be_removed(rank: int) -> None:
    """A part of the folder goes, then an error: a file that is open on NFS, a delete that S3 denies."""
    from fsdp_job import storage

    original = storage.Location.delete

    def delete(self: Any) -> None:
        if "step-00000002" in self.path:
            next(iter(Path(self.path).glob("*.distcp"))).unlink(missing_ok=True)
            raise OSError(errno.ENOTEMPTY, "Directory not empty", self.path)
        original(self)

    storage.Location.delete = delete  # type: ignore[method-assign]


def test_an_old_checkpoint_that_cannot_be_removed_costs_no_new_one(inputs: Flags) -> None:
    run = run_job({**inputs, "steps": 4, "keep": 1}, world=1, name="r", before=_old_ones_cannot_be_removed)
    assert run.outcomes[0]["status"] == "succeeded"
    assert committed(run) == [True, True]
    assert names(inputs) == ["step-00000002-a0001", "step-00000004-a0001"]
    half = Path(inputs["storage_path"]) / "r" / "checkpoints" / "step-00000002-a0001"
    assert not (half / "complete.json").exists()
    again = run_job({**inputs, "steps": 6, "keep": 1}, world=1, name="r", submission="s2")
    assert first_step(again) == 5
    assert names(inputs) == ["step-00000006-a0002"]


@pytest.mark.parametrize("content", ["", '{"files": {', "[]", "\xff"])
def test_damaged_markers_are_passed_over_with_a_message_and_never_removed(
    inputs: Flags, twelve: Path, content: str
) -> None:
    newest = twelve / "checkpoints" / "step-00000012-a0001"
    (newest / "complete.json").write_bytes(content.encode("latin-1"))
    run = run_job({**inputs, "steps": 14, "keep": 1}, world=1, name="r", submission="s2")
    assert first_step(run) == 11
    assert "complete.json is damaged" in run.of("restart")[0]["passed_over"][0]
    assert names(inputs) == ["step-00000012-a0001", "step-00000014-a0002"]


def test_where_every_marker_is_damaged_nothing_starts_anew(inputs: Flags, twelve: Path) -> None:
    for marker in twelve.glob("checkpoints/*/complete.json"):
        marker.write_text("")
    before = names(inputs)
    run = run_job({**inputs, "steps": 14}, world=1, name="r", submission="s2")
    assert "no checkpoint of this run can be loaded" in run.outcomes[0]["error"]
    assert not run.of("step")
    for record in twelve.glob("attempts/*.json"):
        record.unlink()  # so that nothing says of which line they are
    run = run_job({**inputs, "steps": 14}, world=1, name="r", submission="s3")
    assert "complete.json is damaged" in run.outcomes[0]["error"]
    assert names(inputs) == before
    path = str(twelve / "checkpoints" / "step-00000012-a0001")
    run = run_job({**inputs, "steps": 14, "resume": path}, world=1, name="other", submission="s4")
    assert "the checkpoint cannot be loaded" in run.outcomes[0]["error"]


def test_an_attempts_record_that_cannot_be_read_is_named_with_what_to_do(inputs: Flags, twelve: Path) -> None:
    folder = RunFolder(inputs["storage_path"], "r")
    record = twelve / "attempts" / "attempt-0001.json"
    record.write_text("{")
    with pytest.raises(CheckpointError, match=r"attempt-0001\.json cannot be read .* remove it"):
        folder.past_attempts()
    record.unlink()
    assert folder.next_attempt() == 2  # its checkpoints are still there
    assert folder.current_lineage() == 1


def test_a_run_that_had_nothing_left_to_train_leaves_a_checkpoint_of_its_own(inputs: Flags, twelve: Path) -> None:
    path = str(twelve / "checkpoints" / "step-00000012-a0001")
    run = run_job({**inputs, "steps": 12, "resume": path}, world=1, name="b", submission="s2")
    assert not run.of("step")
    assert names(inputs, "b") == ["step-00000012-a0001"]
    shutil.rmtree(twelve)
    assert first_step(run_job({**inputs, "steps": 13}, world=1, name="b", submission="s3")) == 13
    again = run_job({**inputs, "steps": 13}, world=1, name="b", submission="s4")
    assert again.of("checkpoint") == []  # its own is there


def test_after_never_the_discarded_lines_checkpoints_go_first(inputs: Flags, twelve: Path) -> None:
    run_job({**inputs, "steps": 2, "resume": "never"}, world=1, name="r", submission="s2")
    assert names(inputs) == ["step-00000002-a0002", "step-00000010-a0001", "step-00000012-a0001"]
    run_job({**inputs, "steps": 6}, world=1, name="r", submission="s3")
    assert names(inputs) == ["step-00000002-a0002", "step-00000004-a0003", "step-00000006-a0003"]


def test_after_a_rewind_by_path_auto_follows_the_new_line(inputs: Flags, twelve: Path) -> None:
    path = str(twelve / "checkpoints" / "step-00000008-a0001")
    rewound = run_job({**inputs, "steps": 10, "resume": path}, world=1, name="r", submission="s2")
    assert first_step(rewound) == 9
    assert names(inputs) == ["step-00000008-a0001", "step-00000010-a0002", "step-00000012-a0001"]
    marker = json.loads((twelve / "checkpoints" / "step-00000010-a0002" / "complete.json").read_text())
    assert marker["lineage"] == 2
    (by_folder,) = restore.candidates(RunFolder(inputs["storage_path"], "another"), str(twelve), "s9")
    assert by_folder.location.path.endswith("step-00000010-a0002")
    auto = run_job({**inputs, "steps": 11}, world=1, name="r", submission="s3")
    assert auto.of("restart")[0]["resumed_from"].endswith("step-00000010-a0002")
    damaged = twelve / "checkpoints" / "step-00000010-a0002" / "__0_0.distcp"
    damaged.write_bytes(b"")
    shutil.rmtree(twelve / "checkpoints" / "step-00000011-a0003")
    auto = run_job({**inputs, "steps": 12}, world=1, name="r", submission="s4")
    assert auto.of("restart")[0]["resumed_from"] == path  # back along the line, not to the discarded step 12


def _no_save_works(rank: int) -> None:
    from fsdp_job.checkpoint import Checkpointer

    def own_files(self: Any, folder: Path, digests: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    Checkpointer._own_files = own_files  # type: ignore[method-assign]


def test_a_line_without_a_checkpoint_of_its_own_yet_goes_on_from_where_it_began(inputs: Flags, twelve: Path) -> None:
    path = str(twelve / "checkpoints" / "step-00000008-a0001")
    for name in ("r", "other"):
        flags = {**inputs, "steps": 10, "resume": path}
        failed = run_job(flags, world=1, name=name, submission="s2", before=_no_save_works)
        assert failed.outcomes[0]["status"] != "succeeded"
        auto = run_job({**inputs, "steps": 10}, world=1, name=name, submission="s3")
        assert auto.of("restart")[0]["resumed_from"] == path
        assert first_step(auto) == 9
        again = run_job({**inputs, "steps": 11}, world=1, name=name, submission="s4")
        assert first_step(again) == 11
        assert "/step-00000010-a000" in again.of("restart")[0]["resumed_from"]
        assert "a0001" not in again.of("restart")[0]["resumed_from"]


def test_a_line_whose_beginning_is_gone_does_not_start_anew(inputs: Flags, twelve: Path) -> None:
    path = str(twelve / "checkpoints" / "step-00000008-a0001")
    run_job({**inputs, "resume": path}, world=1, name="other", submission="s2", before=_no_save_works)
    shutil.rmtree(twelve)
    run = run_job(inputs, world=1, name="other", submission="s3")
    assert "complete.json is missing" in run.outcomes[0]["error"]
    assert not run.of("step")


def test_foreign_files_and_folders_among_the_checkpoints_are_left_alone(inputs: Flags, twelve: Path) -> None:
    folder = twelve / "checkpoints"
    (folder / ".DS_Store").write_text("x")
    (folder / "step-00000099-a0001").write_text("a file")
    (folder / "latest").symlink_to("step-00000012-a0001")
    (folder / "best").mkdir()
    (folder / "best" / "notes.txt").write_text("x")
    shutil.copytree(folder / "step-00000008-a0001", folder / "step-00000008-a0001-copy")
    run = run_job({**inputs, "steps": 14, "keep": 1}, world=1, name="r", submission="s2")
    assert first_step(run) == 13
    assert names(inputs) == [
        ".DS_Store", "best", "latest", "step-00000008-a0001-copy", "step-00000014-a0002", "step-00000099-a0001",
    ]  # fmt: skip
    assert (folder / "best" / "notes.txt").exists()
    by_path = {**inputs, "steps": 9, "resume": str(folder / "step-00000008-a0001-copy")}
    assert first_step(run_job(by_path, world=1, name="copied", submission="s3")) == 9
    nothing = run_job({**inputs, "resume": str(folder / ".DS_Store")}, world=1, name="none", submission="s4")
    assert "no complete checkpoint there" in nothing.outcomes[0]["error"]


def test_a_question_mark_in_a_path_is_a_letter_like_others(inputs: Flags, tmp_path: Path) -> None:
    flags = {**inputs, "storage_path": str(tmp_path / "why?not")}
    run_job({**flags, "steps": 2}, world=1, name="what?")
    assert first_step(run_job({**flags, "steps": 4}, world=1, name="what?", submission="s2")) == 3


def test_a_marker_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "complete.json"
    there: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda _file: there.append(marker.exists()))
    locate(str(marker)).write_json({"files": {}})
    assert there == [False]
    assert [path.name for path in tmp_path.iterdir()] == ["complete.json"]
