"""The same losses as a plain loop, whatever the number of ranks, the sharding and the cut into micro-batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.training.job_ranks import run_job, settings_for, write_inputs

STEPS = 6
GLOBAL_BATCH = 8


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {**write_inputs(tmp_path_factory.mktemp("equivalence")), "steps": STEPS, "batch_size": 2}


@pytest.fixture(scope="module")
def plain_losses(inputs: dict[str, Any]) -> list[float]:
    """One process, no FSDP, whole batches, whole logits, torch's own cross entropy, clipping and AdamW."""
    from fsdp_job import weights
    from fsdp_job.config import JobConfig
    from fsdp_job.data import Position, PreparedData, open_batches
    from fsdp_job.model import CausalLMLoss, build

    settings = settings_for(inputs, world=1, name="plain")
    built = build(JobConfig(**settings["config"]))
    weights.materialize(CausalLMLoss(built.model), built, torch.device("cpu"))
    weights.initialize(built, torch.device("cpu"), seed=0)
    model: Any = built.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=inputs["learning_rate"])
    losses = []
    with open_batches(
        PreparedData.from_json(settings["prepared"]), split="train", rank=0, world_size=1, micro_batch=GLOBAL_BATCH,
        accumulate=1, position=Position(0, 0),
    ) as batches:  # fmt: skip
        for _ in range(STEPS):
            (batch,) = next(batches)
            logits = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
            loss = F.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


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
    inputs: dict[str, Any], plain_losses: list[float], world: int, nodes: int, sharding: str, accumulate: int,
    checkpointing: str,
) -> None:  # fmt: skip
    run = run_job(
        {**inputs, "sharding": sharding, "accumulate": accumulate, "activation_checkpointing": checkpointing},
        world=world, nodes=nodes, name=f"{world}-{nodes}-{sharding}-{accumulate}",
    )  # fmt: skip
    assert [outcome["status"] for outcome in run.outcomes] == ["succeeded"] * world, run.outcomes
    assert run.losses == pytest.approx(plain_losses, rel=1e-5)
    assert run.of("config")[0]["sharding"] == sharding
    assert plain_losses[-1] < plain_losses[0]


def test_hybrid_with_accumulation_equals_the_plain_loop(inputs: dict[str, Any], plain_losses: list[float]) -> None:
    run = run_job(
        {**inputs, "batch_size": 1, "accumulate": 2, "sharding": "hybrid"}, world=4, nodes=2, name="hybrid-acc"
    )
    assert run.losses == pytest.approx(plain_losses, rel=1e-5)


def test_the_hybrid_mesh_shards_within_a_node_and_replicates_across(inputs: dict[str, Any]) -> None:
    from tests.training.job_ranks import call_on_ranks

    rows = call_on_ranks(_mesh_of_this_rank, world=4, nodes=2)
    assert rows == [([0, 1], [0, 2]), ([0, 1], [1, 3]), ([2, 3], [0, 2]), ([2, 3], [1, 3])]


def _mesh_of_this_rank() -> tuple[list[int], list[int]]:
    import torch.distributed as dist

    from fsdp_job.ranks import from_environment
    from fsdp_job.sharding import make_mesh

    mesh = make_mesh("hybrid", from_environment())
    return (
        dist.get_process_group_ranks(mesh["shard"].get_group()),
        dist.get_process_group_ranks(mesh["replicate"].get_group()),
    )
