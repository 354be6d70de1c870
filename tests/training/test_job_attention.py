"""Attention within packed documents equals what transformers makes of the position ids, and asks the device for nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fsdp_job import attention, model, weights
from fsdp_job.config import JobConfig
from tests.training.test_job_models import ARCHITECTURES, SMALL

LENGTH = 24


def positions() -> torch.Tensor:
    """Two rows: three documents, and one."""
    return torch.stack([torch.cat([torch.arange(5), torch.arange(11), torch.arange(8)]), torch.arange(LENGTH)])


def test_boundaries_are_cumulative_starts_padded_with_empty_documents() -> None:
    bounds = attention.boundaries(positions(), bucket=8)
    assert bounds is not None
    assert bounds.shape == (1, 1, 1, 8)
    assert bounds.flatten().tolist() == [0, 5, 16, 24, 48, 48, 48, 48]
    assert bounds.dtype == torch.int32
    assert attention.boundaries(torch.arange(6).expand(3, -1)) is None


def test_the_mask_keeps_documents_apart_and_windows_short() -> None:
    starts = torch.tensor([0, 2, 4, 4, 4], dtype=torch.int32)
    mask = attention.document_mask(starts, batch=1, length=4, window=None)[0, 0].int().tolist()
    assert mask == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    window = attention.document_mask(torch.tensor([0, 4], dtype=torch.int32), 1, 4, 2)[0, 0].int().tolist()
    assert window == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "llama", "mistral", "gpt_neox", "phi", "granite", "cohere"])
def test_losses_equal_those_of_transformers_own_attention(tmp_path: Path, name: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": name, **SMALL, **ARCHITECTURES[name], "pad_token_id": 0}))
    cfg = JobConfig(model_config=str(path))
    torch.manual_seed(0)
    tokens = torch.randint(0, 96, (2, LENGTH + 1))
    totals = []
    for device_type in ("cpu", "cuda"):  # what is chosen for CUDA runs on the CPU too, by its mask
        built = model.build(cfg, device_type)
        root = model.CausalLMLoss(built.model)
        assert root.packs == (device_type == "cuda")
        weights.materialize(root, built, torch.device("cpu"))
        weights.initialize(built, torch.device("cpu"), seed=3)
        documents = attention.boundaries(positions()) if root.packs else None
        totals.append(root.eval()(tokens[:, :-1], tokens[:, 1:], positions(), documents)[1])
    torch.testing.assert_close(totals[0], totals[1], rtol=1e-6, atol=1e-4)


def test_soft_capped_attention_is_left_to_the_implementation_that_has_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gemma2", **SMALL, **ARCHITECTURES["gemma2"]}))
    built = model.build(JobConfig(model_config=str(path)), "cuda")
    assert built.model.config._attn_implementation == "eager"  # type: ignore[union-attr, operator]
