"""Activation checkpointing and torch.compile together: the block is one graph, and gradients are those without either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from fsdp_job import model as models  # noqa: E402
from fsdp_job import sharding  # noqa: E402
from fsdp_job.config import JobConfig  # noqa: E402

CONFIG = {
    "model_type": "qwen2", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True,
}  # fmt: skip


def gradients(folder: Path, how: str, *, compiled: bool) -> tuple[list[Any], dict[str, int]]:
    """(gradients of all parameters after one backward pass, dynamo's counters)."""
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIG))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    built = models.build(JobConfig(model_config=str(path), dataset="random", tokenizer="bytes"))
    model = built.model.to_empty(device="cpu")
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    for name, value in built.buffers.items():
        model.get_buffer(name).copy_(value)
    for block in built.blocks:
        if how != "none":
            sharding._recompute(block, how)
        if compiled:
            block.compile(backend="aot_eager")  # type: ignore[no-untyped-call]
    tokens = torch.randint(0, 96, (2, 17))
    positions = torch.arange(16).expand(2, -1)
    scaled, _ = models.CausalLMLoss(model)(
        input_ids=tokens[:, :-1], labels=tokens[:, 1:].contiguous(), position_ids=positions
    )
    scaled.backward()
    return [p.grad for p in model.parameters()], dict(torch._dynamo.utils.counters["stats"])


@pytest.mark.parametrize("how", ["full", "selective"])
def test_a_checkpointed_block_is_compiled_and_its_gradients_are_the_plain_ones(how: str, tmp_path: Path) -> None:
    plain, _ = gradients(tmp_path, "none", compiled=False)
    ours, counted = gradients(tmp_path, how, compiled=True)
    # Both blocks share one graph; with none captured the blocks would run uncompiled.
    assert counted.get("unique_graphs") == 1
    for a, b in zip(plain, ours, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
