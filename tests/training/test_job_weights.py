"""Published weights: read once for the whole job, scattered as shards, equal to what transformers reads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fsdp_job.config import JobConfig
from tests.training.job_ranks import call_on_ranks, run_job, write_inputs
from tests.training.test_job_models import ARCHITECTURES, SMALL


def publish(folder: Path, name: str, dtype: torch.dtype, shard_size: str = "20KB") -> str:
    """A folder as on the Hugging Face hub, its weights in several safetensors files."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    config = AutoConfig.for_model(name, **SMALL, **ARCHITECTURES[name], pad_token_id=0)
    AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(folder, max_shard_size=shard_size)
    assert len(list(folder.glob("*.safetensors"))) > 1
    return str(folder)


def _loaded(cfg: JobConfig, hybrid: bool) -> tuple[dict[str, torch.Tensor], int]:
    from fsdp_job import sharding, weights
    from fsdp_job.model import CausalLMLoss, build
    from fsdp_job.ranks import from_environment

    reads = 0
    from transformers import AutoModelForCausalLM

    original = AutoModelForCausalLM.from_pretrained

    def counting(*args: Any, **more: Any) -> Any:
        nonlocal reads
        reads += 1
        return original(*args, **more)

    AutoModelForCausalLM.from_pretrained = counting  # type: ignore[method-assign, assignment]
    ranks = from_environment()
    built = build(cfg)
    root = CausalLMLoss(built.model)
    mesh = sharding.make_mesh("hybrid" if hybrid else "full", ranks)
    sharding.apply(root, built.blocks, mesh, checkpointing="none", compiled=False, bf16=False)
    weights.materialize(root, built, ranks.device)
    weights.load_pretrained(built, ranks, mesh)
    values = {name: p.detach().full_tensor().clone() for name, p in built.model.named_parameters()}  # type: ignore[operator]
    return values, reads


@pytest.mark.parametrize(
    ("name", "dtype", "world", "nodes"),
    [
        ("qwen2", torch.bfloat16, 2, 1),
        ("llama", torch.float32, 3, 1),
        ("gpt2", torch.float32, 2, 1),
        ("qwen2", torch.float32, 4, 2),
    ],
)
def test_every_rank_gets_its_shard_and_one_rank_reads(
    tmp_path: Path, name: str, dtype: torch.dtype, world: int, nodes: int
) -> None:
    from transformers import AutoModelForCausalLM

    folder = publish(tmp_path / "hub", name, dtype)
    expected = dict(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters())
    answers = call_on_ranks(_loaded, world=world, nodes=nodes, args=(JobConfig(model_id=folder, seq_len=64), nodes > 1))
    assert sum(reads for _, reads in answers) == 1
    for values, _ in answers:
        assert values.keys() == expected.keys()
        for label, value in values.items():
            assert torch.equal(value, expected[label]), label
            assert value.dtype == torch.float32


def _peak_while_loading(cfg: JobConfig) -> tuple[int, int]:
    """(bytes that this process's resident memory rose by at its peak, bytes of its own shards)."""
    from fsdp_job import sharding, weights
    from fsdp_job.model import CausalLMLoss, build
    from fsdp_job.optim import local_of
    from fsdp_job.ranks import from_environment

    ranks = from_environment()
    built = build(cfg)
    root = CausalLMLoss(built.model)
    mesh = sharding.make_mesh("full", ranks)
    sharding.apply(root, built.blocks, mesh, checkpointing="none", compiled=False, bf16=False)
    weights.materialize(root, built, ranks.device)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here: man 5 proc
    weights.load_pretrained(built, ranks, mesh)
    return _memory("VmHWM") - before, sum(local_of(p.data).nbytes for p in built.model.parameters())  # type: ignore[operator]


def _memory(field: str) -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads a process's peak memory from /proc")
def test_only_the_rank_that_reads_ever_holds_the_whole_model(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "llama", vocab_size=2000, hidden_size=512, intermediate_size=1536, num_hidden_layers=12, num_attention_heads=8,
        num_key_value_heads=8, tie_word_embeddings=True, pad_token_id=0,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    whole = sum(p.nbytes for p in model.parameters())
    largest = max(p.nbytes for p in model.parameters())
    model.save_pretrained(tmp_path / "hub", max_shard_size="30MB")
    first, *others = call_on_ranks(_peak_while_loading, world=4, args=(JobConfig(model_id=str(tmp_path / "hub")),))
    print(f"whole model {whole / 2**20:.0f} MiB; rose by {[round(rose / 2**20) for rose, _ in (first, *others)]} MiB")
    assert whole > 150 * 2**20
    for rose, own in others:  # own shards are touched here for the first time, and one tensor in passing
        assert rose < own + 3 * largest + 40 * 2**20 < 0.7 * whole
    assert first[0] < 1.4 * whole


def test_training_starts_from_the_published_weights_and_exports_a_folder_that_loads(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = publish(tmp_path / "hub", "llama", torch.float32)
    flags = {**write_inputs(tmp_path), "model_id": folder, "model_config": None, "steps": 2, "export": "hf"}
    flags["dataset"] = "random"
    run = run_job(flags, world=2, name="tuned")
    assert run.outcomes[0]["status"] == "succeeded", run.outcomes[0]
    tuned = AutoModelForCausalLM.from_pretrained(run.outcomes[0]["export"], dtype=torch.float32)
    start = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    moved = [(a - b).abs().max().item() for a, b in zip(tuned.parameters(), start.parameters(), strict=True)]
    assert 0 < max(moved) <= 2 * 1.1 * flags["learning_rate"]


def test_weights_that_are_not_there_are_one_clear_error_on_every_rank(tmp_path: Path) -> None:
    folder = publish(tmp_path / "hub", "llama", torch.float32)
    for path in Path(folder).glob("*.safetensors*"):
        path.unlink()
    flags = {**write_inputs(tmp_path), "model_id": folder, "model_config": None, "dataset": "random"}
    run = run_job(flags, world=2, name="none")
    assert [outcome["status"] for outcome in run.outcomes] == ["failed", "failed"]
    assert f"cannot read the weights of {folder}" in run.outcomes[0]["error"]
