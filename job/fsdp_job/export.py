"""``--export hf``: a folder that ``AutoModelForCausalLM.from_pretrained`` loads, written by rank 0 at the end."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from fsdp_job.config import JobConfig
from fsdp_job.metrics import upload_folder
from fsdp_job.model import BuiltModel
from fsdp_job.ranks import Ranks
from fsdp_job.storage import Location


def export_hf(built: BuiltModel, cfg: JobConfig, ranks: Ranks, target: Location, *, bf16: bool) -> str:
    """Gather parameter by parameter on all ranks (a collective), write on rank 0; returns the folder's address.

    Stored in the precision that the run computed in. The tokenizer goes along where it is one of transformers.
    """
    dtype = torch.bfloat16 if bf16 else torch.float32
    state: dict[str, torch.Tensor] = {}
    for name, parameter in built.model.named_parameters():
        data = parameter.data
        full = data.full_tensor() if isinstance(data, DTensor) else data
        if ranks.is_first:
            state[name] = full.to(device="cpu", dtype=dtype, copy=True)
    if ranks.is_first:
        _write(built, cfg, state, dtype, target)
    dist.barrier()
    return target.uri


def _write(
    built: BuiltModel, cfg: JobConfig, state: dict[str, torch.Tensor], dtype: torch.dtype, target: Location
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with torch.device("meta"):
        plain: Any = AutoModelForCausalLM.from_config(built.model.config, dtype=dtype)
    state |= {name: value.cpu() for name, value in built.buffers.items()}
    known = {name for name, _ in plain.named_parameters()} | {name for name, _ in plain.named_buffers()}
    plain.load_state_dict({name: value for name, value in state.items() if name in known}, strict=False, assign=True)
    plain.tie_weights()
    plain.config.use_cache = True
    with tempfile.TemporaryDirectory() as scratch:
        plain.save_pretrained(scratch)
        tokenizer = cfg.tokenizer or built.source
        if tokenizer and tokenizer != "bytes":
            AutoTokenizer.from_pretrained(tokenizer).save_pretrained(scratch)
        upload_folder(Path(scratch), target)
