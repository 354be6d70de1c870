"""Checkpoints: the same losses after a resume, at any world size; damaged and half-written ones are passed over."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.training.fault_results import compare, of_steps, scenario
from tests.training.job_ranks import call_on_ranks, run_job, settings_for, write_inputs

Flags = dict[str, Any]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Flags:
    """Flags of the run that all tests here compare with; trained once, whole and up to step 6."""
    return {**write_inputs(tmp_path_factory.mktemp("resume")), "steps": 8, "checkpoint_every": 2, "keep": 10}


@pytest.fixture(scope="module")
def whole(shared: Flags) -> list[float]:
    run = run_job(shared, world=2, name="whole")
    assert len(run.losses) == 8
    return run.losses


@pytest.fixture(scope="module")
def six_steps(shared: Flags) -> Path:
    """The folder of a two-rank run that ended at step 6, with checkpoints at 2, 4 and 6."""
    run_job({**shared, "steps": 6}, world=2, name="six")
    return Path(shared["storage_path"]) / "six"


@pytest.fixture
def inputs(shared: Flags, tmp_path: Path) -> Flags:
    """The same flags over an empty storage of the test's own."""
    return {**shared, "storage_path": str(tmp_path / "store")}


def checkpoints(inputs: Flags, name: str) -> list[Path]:
    return sorted((Path(inputs["storage_path"]) / name / "checkpoints").glob("step-*"))


def interrupted(inputs: Flags, six_steps: Path, name: str, *, at: int = 4) -> None:
    """Run ``name`` as it would lie there had it ended at step ``at``."""
    target = Path(inputs["storage_path"]) / name
    shutil.copytree(six_steps, target)
    for folder in checkpoints(inputs, name):
        if int(folder.name[5:13]) > at:
            shutil.rmtree(folder)


def test_resume_at_the_same_world_size_is_bitwise_equal(inputs: Flags, whole: list[float], six_steps: Path) -> None:
    interrupted(inputs, six_steps, "a")
    second = run_job(inputs, world=2, name="a", submission="s2")
    assert [event["step"] for event in second.of("step")] == [5, 6, 7, 8]
    assert second.losses == whole[4:]
    (restart,) = second.of("restart")
    assert restart["step"] == 4
    assert restart["attempt"] == 2


def test_dropout_goes_on_with_the_random_numbers_of_the_uninterrupted_run(inputs: Flags, tmp_path: Path) -> None:
    model = {
        "model_type": "gpt2", "vocab_size": 260, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
        "resid_pdrop": 0.3, "embd_pdrop": 0.3, "attn_pdrop": 0.0,
    }  # fmt: skip
    losses = {}
    for rate in (0.3, 0.0):
        path = tmp_path / f"gpt2-{rate}.json"
        path.write_text(json.dumps({**model, "resid_pdrop": rate, "embd_pdrop": rate}))
        flags = {**inputs, "model_config": str(path), "steps": 4}
        losses[rate] = run_job(flags, world=2, name=f"whole-{rate}").losses
    assert losses[0.3] != losses[0.0]  # dropout is at work
    flags = {**flags, "model_config": str(tmp_path / "gpt2-0.3.json")}
    first = run_job({**flags, "steps": 2}, world=2, name="parts")
    second = run_job(flags, world=2, name="parts", submission="s2")
    assert first.losses + second.losses == losses[0.3]


def test_a_run_leaves_a_trace_and_tensorboard_files(inputs: Flags) -> None:
    run = run_job({**inputs, "steps": 6, "profile": 2, "warmup_steps": 1}, world=2, name="a")
    trace = json.loads(gzip.decompress(Path(run.outcomes[0]["profile"]).read_bytes()))
    steps = [event for event in trace["traceEvents"] if event.get("name") == "Optimizer.step#AdamW.step"]
    assert len(steps) == 2
    (board,) = (Path(inputs["storage_path"]) / "a" / "tensorboard").glob("events.*")
    values = board.read_bytes()
    assert values.count(b"train/loss") == 6
    assert values.count(b"train/tokens_per_s_per_gpu") == 6


@pytest.mark.parametrize(("world", "nodes", "sharding"), [(1, 1, "full"), (4, 1, "full"), (4, 2, "hybrid")])
def test_resume_at_another_world_size_and_sharding_keeps_the_losses(
    inputs: Flags, whole: list[float], six_steps: Path, world: int, nodes: int, sharding: str
) -> None:
    interrupted(inputs, six_steps, "a")
    second = run_job(
        {**inputs, "sharding": sharding}, world=world, nodes=nodes, name="a", submission="s2", starting_world=2
    )  # fmt: skip
    assert second.losses == pytest.approx(whole[4:], rel=1e-5)
    config = second.of("config")[0]
    assert config["global_batch"] == 4
    assert config["micro_batch"] * config["micro_batches"] * world == 4


def test_moments_of_the_optimizer_survive_another_world_size(inputs: Flags, six_steps: Path) -> None:
    interrupted(inputs, six_steps, "a")
    settings = settings_for({**inputs, "steps": 8}, world=2, name="a")
    of_two = call_on_ranks(_norms_after_loading, world=2, args=(settings,))[0]
    of_four = call_on_ranks(_norms_after_loading, world=4, args=(settings,))[0]
    assert of_two == pytest.approx(of_four, rel=1e-6)
    assert of_two["step"] == 4
    assert min(of_two.values()) > 0


def _norms_after_loading(settings: dict[str, Any]) -> dict[str, float]:
    from fsdp_job import optim, restore, sharding, state, weights
    from fsdp_job.config import JobConfig
    from fsdp_job.model import CausalLMLoss, build
    from fsdp_job.ranks import from_environment
    from fsdp_job.storage import RunFolder

    cfg, ranks = JobConfig(**settings["config"]), from_environment()
    built = build(cfg)
    root = CausalLMLoss(built.model)
    sharding.apply(
        root, built.blocks, sharding.make_mesh("full", ranks), checkpointing="none", compiled=False, bf16=False
    )
    weights.materialize(root, built, ranks.device)
    optimizer = optim.ShardedAdamW(list(built.model.parameters()), cfg, ranks.device)
    tensors = state.tensors_of(built.model, optimizer, ranks)
    found = RunFolder(settings["storage_path"], settings["run_name"]).saved()
    restore.load_newest(found, tensors, exact=False)
    state.apply_loaded(tensors, optimizer, ranks)
    out = {"step": float(optimizer.step_count)}
    for number, (name, _) in enumerate(built.model.named_parameters()):
        out[name] = optimizer.moments(number)["exp_avg_sq"].full_tensor().norm().item()
    return out


@pytest.mark.matrix
@pytest.mark.parametrize("damage", ["cut", "flip", "missing", "no marker"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    inputs: Flags, whole: list[float], six_steps: Path, damage: str
) -> None:
    interrupted(inputs, six_steps, "a", at=6)
    newest = checkpoints(inputs, "a")[-1]
    assert newest.name.startswith("step-00000006")
    shard = newest / "__1_0.distcp"
    data = shard.read_bytes()
    if damage == "cut":
        shard.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        shard.write_bytes(data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])
    elif damage == "missing":
        shard.unlink()
    else:
        (newest / "complete.json").unlink()
    did = f"one file of the checkpoint at step 6 damaged ({damage}), resumed with the one at step 4 beside it"
    with scenario(f"newest checkpoint damaged: {damage}", did) as told:
        second = run_job(inputs, world=2, name="a", submission="s2")
        compare(told, of_steps(second.events), dict(enumerate(whole, start=1)))
        assert [event["step"] for event in second.of("step")] == [5, 6, 7, 8]
    (restart,) = second.of("restart")
    assert restart["step"] == 4
    said = " ".join(restart["passed_over"])
    assert ("__1_0.distcp" in said) == (damage != "no marker")


def test_where_every_checkpoint_is_damaged_the_run_says_so_and_does_not_start_anew(
    inputs: Flags, six_steps: Path
) -> None:
    interrupted(inputs, six_steps, "a", at=2)
    for shard in Path(inputs["storage_path"]).rglob("*.distcp"):
        shard.write_bytes(b"nothing")
    second = run_job(inputs, world=2, name="a", submission="s2")
    assert {outcome["status"] for outcome in second.outcomes} == {"raised"}
    assert "no checkpoint of this run can be loaded" in second.outcomes[0]["error"]
    assert not second.of("step")


def test_resume_never_starts_anew_and_auto_then_continues_the_new_run(
    inputs: Flags, whole: list[float], six_steps: Path
) -> None:
    interrupted(inputs, six_steps, "a", at=6)
    anew = run_job({**inputs, "steps": 2, "resume": "never"}, world=2, name="a", submission="s2")
    assert anew.losses == whole[:2]
    again = run_job(inputs, world=2, name="a", submission="s3")
    assert again.losses == whole[2:]


def test_a_restart_within_a_submission_that_never_resumes_goes_on(
    inputs: Flags, whole: list[float], six_steps: Path
) -> None:
    interrupted(inputs, six_steps, "a", at=6)
    flags = {**inputs, "resume": "never"}
    run_job({**flags, "steps": 4}, world=2, name="a", submission="s2")
    restarted = run_job(flags, world=2, name="a", submission="s2")
    assert restarted.losses == whole[4:]


def test_resume_from_a_path_starts_another_run_there(inputs: Flags, whole: list[float], six_steps: Path) -> None:
    interrupted(inputs, six_steps, "a", at=4)
    path = str(checkpoints(inputs, "a")[0])
    other = run_job({**inputs, "resume": path}, world=2, name="b")
    assert other.losses == whole[2:]
    missing = run_job({**inputs, "resume": path + "-not"}, world=2, name="c")
    assert "no complete checkpoint there" in missing.outcomes[0]["error"]


def test_only_the_newest_checkpoints_are_kept(inputs: Flags, six_steps: Path) -> None:
    run = run_job({**inputs, "keep": 2}, world=2, name="a")
    assert [path.name for path in checkpoints(inputs, "a")] == ["step-00000006-a0001", "step-00000008-a0001"]
    assert [event["committed"] for event in run.of("checkpoint")] == [True] * 4
    marker = json.loads((checkpoints(inputs, "a")[-1] / "complete.json").read_text())
    assert sum(entry["bytes"] for entry in marker["files"].values()) == run.of("checkpoint")[-1]["bytes"]


def test_other_data_under_the_same_run_name_is_an_error(inputs: Flags, six_steps: Path, tmp_path: Path) -> None:
    interrupted(inputs, six_steps, "a")
    other = tmp_path / "other.txt"
    other.write_text("other words\n" * 900)
    second = run_job({**inputs, "dataset": str(other)}, world=2, name="a", submission="s2")
    assert second.outcomes[0]["status"] == "failed"
    assert "the data differ" in second.outcomes[0]["error"]


def test_a_world_that_does_not_divide_the_global_batch_names_the_sizes_that_do(inputs: Flags, six_steps: Path) -> None:
    interrupted(inputs, six_steps, "a")
    second = run_job(inputs, world=3, name="a", submission="s2", starting_world=2)
    assert "world sizes that divide it: 1, 2, 4" in second.outcomes[0]["error"]


def test_a_checkpoint_that_cannot_be_written_is_reported_and_training_goes_on(
    inputs: Flags, whole: list[float]
) -> None:
    run = run_job(inputs, world=2, name="a", before=_fail_the_second_save)
    assert run.losses == whole
    assert [event["committed"] for event in run.of("checkpoint")] == [True, False, True, True]
    assert "No space left" in run.of("checkpoint")[1]["error"]
    assert [path.name[:13] for path in checkpoints(inputs, "a")] == ["step-00000002", "step-00000006", "step-00000008"]


def _fail_the_second_save(rank: int) -> None:
    """Rank 1's disk is full at step 4."""
    from fsdp_job.checkpoint import Checkpointer

    original = Checkpointer._own_files

    def own_files(self: Any, folder: Path, digests: dict[str, str]) -> Any:
        if rank == 1 and "step-00000004" in str(folder):
            raise OSError(28, "No space left on device")
        return original(self, folder, digests)

    Checkpointer._own_files = own_files  # type: ignore[method-assign]


def test_a_loss_that_is_not_finite_ends_all_ranks_alike_and_names_the_last_good_checkpoint(inputs: Flags) -> None:
    run = run_job({**inputs, "learning_rate": 1e30, "checkpoint_every": 1}, world=2, name="a")
    assert [outcome["status"] for outcome in run.outcomes] == ["failed", "failed"]
    assert "step 2: loss nan is not finite; the last good checkpoint is" in run.outcomes[0]["error"]
    assert "step-00000001-a0001" in run.outcomes[0]["error"]
    assert [path.name for path in checkpoints(inputs, "a")] == ["step-00000001-a0001"]
