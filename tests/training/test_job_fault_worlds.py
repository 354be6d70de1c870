"""Lines of the fault matrix about the storage and the world around the ranks: a full disk, other world sizes and shardings."""

from __future__ import annotations

import errno
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.fault_results import BF16, FP32, check_positions, compare, of_steps, scenario
from tests.training.job_ranks import run_job, write_inputs

pytestmark = [pytest.mark.matrix]
Flags = dict[str, Any]


@pytest.fixture
def flags(tmp_path: Path) -> Flags:
    return {**write_inputs(tmp_path), "checkpoint_every": 2, "keep": 10}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if sys.platform != "linux":
        pytest.skip("needs Linux (a tmpfs of its own)")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a file system: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill_at_step_4(filler: str, rank: int) -> None:
    """Before the files of step 4 are written something else takes the rest of the disk; afterwards it is gone."""
    from fsdp_job.checkpoint import Checkpointer

    real = Checkpointer._write_files

    def write(self: Any, target: Any, *rest: Any) -> Any:
        full = rank == 0 and "step-00000004" in target.path
        if full:
            with Path(filler).open("wb", buffering=0) as out:
                try:
                    while out.write(b"\0" * 4096):
                        continue
                except OSError as error:
                    assert error.errno == errno.ENOSPC
        try:
            return real(self, target, *rest)
        finally:
            if full:
                Path(filler).unlink()

    Checkpointer._write_files = write  # type: ignore[method-assign]


def test_a_full_disk_costs_one_checkpoint_and_nothing_else(flags: Flags, small_disk: Path) -> None:
    whole = dict(of_steps(run_job({**flags, "steps": 8}, world=2, name="whole").events))
    there = {**flags, "storage_path": str(small_disk)}
    did = "the disk is full while the checkpoint at step 4 is written; later stopped after step 6 and resumed"
    with scenario("disk full at a checkpoint", did) as told:
        before = functools.partial(fill_at_step_4, str(small_disk / "filler"))
        first = run_job({**there, "steps": 6}, world=2, name="run", before=before)
        assert [(event["step"], event["committed"]) for event in first.of("checkpoint")] == [
            (2, True),
            (4, False),
            (6, True),
        ]
        assert "No space left" in first.of("checkpoint")[1]["error"]
        second = run_job({**there, "steps": 8}, world=2, name="run", submission="s2")
        assert second.of("restart")[0]["step"] == 6
        compare(told, of_steps([*first.events, *second.events]), whole)
        assert check_positions(small_disk / "run") == 3


@pytest.mark.faults
@pytest.mark.parametrize(("precision", "within"), [("fp32", FP32), ("bf16", BF16)])
def test_a_run_goes_on_with_four_then_two_then_eight_ranks(flags: Flags, precision: str, within: float) -> None:
    run_flags = {**flags, "precision": precision, "steps": 12}
    whole = dict(of_steps(run_job(run_flags, world=4, name="whole").events))
    did = f"{precision}: trained to step 4 on 4 ranks, to 8 on 2, to 12 on 8; compared with 4 ranks throughout"
    with scenario(f"resume on 4, 2, 8 ranks ({precision})", did) as told:
        for number, (world, steps) in enumerate([(4, 4), (2, 8), (8, 12)]):
            part = run_job(
                {**run_flags, "steps": steps}, world=world, name="run", submission=f"s{number}", starting_world=4
            )
            assert [event["step"] for event in part.of("step")] == list(range(steps - 3, steps + 1)), part.outcomes
            assert part.of("config")[0]["global_batch"] == 8
            compare(told, of_steps(part.events), whole, within=0.0 if world == 4 else within)
        told["asked"] = f"within {within:g} relative, bitwise on 4 ranks"
        assert check_positions(Path(flags["storage_path"]) / "run") == 6


@pytest.mark.faults
@pytest.mark.parametrize("order", [("full", "hybrid", "full"), ("hybrid", "full", "hybrid")])
def test_a_run_goes_on_with_another_sharding(flags: Flags, order: tuple[str, str, str]) -> None:
    whole = dict(of_steps(run_job({**flags, "sharding": order[0], "steps": 12}, world=4, nodes=2, name="whole").events))
    did = f"four ranks on two nodes: four steps each {', '.join(order)}; compared with {order[0]} throughout"
    with scenario(f"resume with another sharding ({' to '.join(order)})", did) as told:
        for number, sharding in enumerate(order):
            steps = 4 * (number + 1)
            part = run_job(
                {**flags, "sharding": sharding, "steps": steps}, world=4, nodes=2, name="run", submission=f"s{number}"
            )
            assert [event["step"] for event in part.of("step")] == list(range(steps - 3, steps + 1)), part.outcomes
            assert part.of("config")[0]["sharding"] == sharding
            compare(told, of_steps(part.events), whole, within=FP32)
        assert check_positions(Path(flags["storage_path"]) / "run") == 6
