"""The same losses as a plain loop, whatever the number of ranks, the sharding and the cut into micro-batches."""

from __future__ import annotations

from typing import Any

import pytest

from tests.training.job_ranks import run_job, write_inputs
from tests.training.plain_loop import Plain, train_plainly

STEPS = 6
GLOBAL_BATCH = 8


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {**write_inputs(tmp_path_factory.mktemp("equivalence")), "steps": STEPS, "batch_size": 2}


@pytest.fixture(scope="module")
def plain(inputs: dict[str, Any]) -> Plain:
    return train_plainly(inputs, steps=STEPS, global_batch=GLOBAL_BATCH)


@pytest.mark.parametrize(
    ("world", "nodes", "sharding", "accumulate", "checkpointing"),
    [
        (1, 1, "full", 4, "none"),
        (2, 1, "full", 2, "none"),
        (2, 2, "full", 2, "full"),
        (4, 1, "full", 1, "selective"),
        (4, 2, "hybrid", 1, "none"),
        (4, 2, "full", 1, "none"),
    ],
)
def test_losses_equal_the_plain_loop(
    inputs: dict[str, Any], plain: Plain, world: int, nodes: int, sharding: str, accumulate: int,
    checkpointing: str,
) -> None:  # fmt: skip
    run = run_job(
        {**inputs, "sharding": sharding, "accumulate": accumulate, "activation_checkpointing": checkpointing},
        world=world, nodes=nodes, name=f"{world}-{nodes}-{sharding}-{accumulate}",
    )  # fmt: skip
    assert [outcome["status"] for outcome in run.outcomes] == ["succeeded"] * world, run.outcomes
    assert run.losses == pytest.approx(plain.losses, rel=1e-5)
    assert [event["grad_norm"] for event in run.of("step")] == pytest.approx(plain.norms, rel=1e-4)
    assert run.of("config")[0]["sharding"] == sharding
    assert plain.losses[-1] < plain.losses[0]
    assert max(plain.norms) > 1.0, "clipping would not show"


def test_hybrid_with_accumulation_equals_the_plain_loop(inputs: dict[str, Any], plain: Plain) -> None:
    run = run_job(
        {**inputs, "batch_size": 1, "accumulate": 2, "sharding": "hybrid"}, world=4, nodes=2, name="hybrid-acc"
    )
    assert run.losses == pytest.approx(plain.losses, rel=1e-5)


def test_the_hybrid_mesh_shards_within_a_node_and_replicates_across(inputs: dict[str, Any]) -> None:
    from tests.training.job_ranks import call_on_ranks

    rows = call_on_ranks(_mesh_of_this_rank, world=4, nodes=2)
    assert rows == [([0, 1], [0, 2]), ([0, 1], [1, 3]), ([2, 3], [0, 2]), ([2, 3], [1, 3])]


@pytest.mark.parametrize(("world", "nodes", "sharding", "batch_size"), [(1, 1, "full", 4), (4, 2, "hybrid", 1)])
def test_the_held_out_loss_is_the_plain_models_at_each_evaluation(
    inputs: dict[str, Any], world: int, nodes: int, sharding: str, batch_size: int
) -> None:
    # Five held-out sequences: the last step of an evaluation is filled up, and ranks get unequal shares of real ones.
    flags = {**inputs, "eval_every": 2, "eval_sequences": 5, "steps": 5}
    plain = train_plainly(flags, steps=5, global_batch=4, name="plain-held-out")
    run = run_job(
        {**flags, "batch_size": batch_size, "sharding": sharding}, world=world, nodes=nodes, name=f"held-out-{world}"
    )
    told = {event["step"]: event["eval_loss"] for event in run.of("step") if "eval_loss" in event}
    assert sorted(told) == [2, 4, 5]
    assert told == pytest.approx(plain.held_out, rel=1e-5)
    assert run.losses == pytest.approx(plain.losses, rel=1e-5)
    assert run.of("config")[0]["held_out_sequences"] == 5


def _mesh_of_this_rank() -> tuple[list[int], list[int]]:
    import torch.distributed as dist

    from fsdp_job.ranks import from_environment
    from fsdp_job.sharding import make_mesh

    mesh = make_mesh("hybrid", from_environment())
    return (
        dist.get_process_group_ranks(mesh["shard"].get_group()),
        dist.get_process_group_ranks(mesh["replicate"].get_group()),
    )
