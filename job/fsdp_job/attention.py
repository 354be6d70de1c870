"""Attention over packed documents without a mask of seq_len² and without waiting for the device.

transformers finds packed documents from the position ids by itself, but looks at a value on the device in every forward
pass (which stops the queue of work) and then builds a mask that rules the fast kernels out. Here the boundaries are
counted on the CPU, where the batch comes from, and travel to every layer as the "attention mask": cumulative document
starts, which the variable-length flash kernel takes as they are.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

NAME = "fsdp_job"

try:
    from torch.nn.attention import varlen as _module
except ImportError:  # before torch 2.10
    _varlen: Any = None
else:
    _varlen = _module.varlen_attn
_OPTIONS = set(inspect.signature(_varlen).parameters) if _varlen else set()


def choose(config: Any, model_class: Any, device_type: str) -> str:
    """The attention implementation for a model: ours on CUDA where its layers take one by name, else transformers' own.

    Soft-capped attention scores (Gemma 2) exist in transformers' eager implementation alone.
    """
    if getattr(config, "attn_logit_softcapping", None):
        return "eager"
    if device_type == "cuda" and getattr(model_class, "_supports_attention_backend", False):
        register()
        return NAME
    return "sdpa"


def register() -> None:
    """Make the implementation known to transformers under ``NAME`` (again does no harm)."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention)


def boundaries(position_ids: torch.Tensor, *, bucket: int = 64, always: bool = False) -> torch.Tensor | None:
    """Cumulative starts of the documents of a batch (CPU, int64 [batch, seq_len]) as int32 [1, 1, 1, n]; None where each
    row is one document, unless ``always``.

    n is rounded up with empty documents at the end, so that compiled blocks meet few different shapes.
    """
    flat = position_ids.reshape(-1)
    starts = torch.nonzero(flat == 0).reshape(-1)
    if len(starts) == position_ids.shape[0] and not always:
        return None
    total = flat.numel()
    out = torch.full((-(-(len(starts) + 1) // bucket) * bucket,), total, dtype=torch.int32)
    out[: len(starts)] = starts.to(torch.int32)
    return out.view(1, 1, 1, -1)


def attention(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None,
    dropout: float = 0.0, scaling: float | None = None, sliding_window: int | None = None, **more: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Causal attention within documents: query [b, heads, t, d], key and value [b, kv heads, t, d] -> [b, t, heads, d].

    ``attention_mask`` is what ``boundaries`` gave. The flash kernel where it can serve, a mask where it cannot.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    batch, heads, length, size = query.shape
    window = sliding_window if sliding_window and sliding_window < length else None
    if attention_mask is None and window is None:
        return sdpa_attention_forward(module, query, key, value, None, dropout=dropout, scaling=scaling, is_causal=True)
    if attention_mask is None:
        starts = torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device=query.device)
    else:
        starts = attention_mask.view(-1)
    flash = query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and size % 8 == 0 and size <= 256
    options = _flash_options(window)
    if flash and options is not None and dropout == 0.0:
        q, k, v = (x.transpose(1, 2).reshape(batch * length, x.shape[1], size) for x in (query, key, value))
        out = _varlen(q, k, v, starts, starts, length, length, scale=scaling, **options)
        return out.view(batch, length, heads, size), None
    mask = document_mask(starts, batch, length, window)
    return sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, scaling=scaling, is_causal=False)


def _flash_options(window: int | None) -> dict[str, Any] | None:
    """Keyword arguments that make the kernel causal (with a window), or None where this torch's kernel cannot."""
    options: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in _OPTIONS else {}
    if "window_size" in _OPTIONS:
        return {**options, "window_size": (-1 if window is None else window - 1, 0)}
    if "is_causal" in _OPTIONS and window is None:
        return {**options, "is_causal": True}
    return None


def document_mask(starts: torch.Tensor, batch: int, length: int, window: int | None) -> torch.Tensor:
    """True where a query may see a key: bool [batch, 1, length, length]; the same document, not later, within the window."""
    place = torch.arange(batch * length, device=starts.device, dtype=starts.dtype)
    document = torch.searchsorted(starts, place, right=True).view(batch, length)
    mask = (document[:, :, None] == document[:, None, :]).tril()
    if window is not None:
        mask &= ~torch.ones_like(mask).tril(-window)
    return mask[:, None]
