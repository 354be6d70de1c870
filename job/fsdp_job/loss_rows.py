"""One row of logits a program: its loss, and the logits turned into their gradient in place.

A row is read from memory once and again from the cache while it is still there, and written once: a third of the traffic of
the five passes that plain operations need. Triton comes with torch's CUDA builds.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

COLUMNS = 8192
WARPS = 16


@triton.jit
def _rows(  # type: ignore[no-untyped-def]  # Triton reads annotations itself
    logits, labels, losses, scale, stride, vocab: tl.constexpr, ignored: tl.constexpr, columns: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * stride
    label = tl.load(labels + row)
    place = tl.arange(0, columns)
    if label == ignored:
        tl.store(losses + row, 0.0)
        for start in range(0, vocab, columns):
            at = start + place
            tl.store(base + at, tl.zeros([columns], tl.float32).to(logits.dtype.element_ty), mask=at < vocab)
        return
    picked = tl.load(base + label).to(tl.float32)
    highest = float("-inf")
    total = 0.0
    for start in range(0, vocab, columns):
        at = start + place
        x = tl.load(base + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(x))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(x - higher))
        highest = higher
    log_z = highest + tl.log(total)
    tl.store(losses + row, log_z - picked)
    factor = tl.load(scale)
    for start in range(0, vocab, columns):
        at = start + place
        x = tl.load(base + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
        gradient = (tl.exp(x - log_z) - tl.where(at == label, 1.0, 0.0)) * factor
        tl.store(base + at, gradient.to(logits.dtype.element_ty), mask=at < vocab)


def loss_and_gradient(logits: torch.Tensor, labels: torch.Tensor, scale: torch.Tensor, ignored: int) -> torch.Tensor:
    """Summed loss (fp32 scalar) of logits [n, vocab] on CUDA, which become the gradient of ``scale * loss`` to themselves."""
    losses = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    _rows[(logits.shape[0],)](
        logits, labels, losses, scale, logits.stride(0), logits.shape[1], ignored, COLUMNS, num_warps=WARPS
    )  # type: ignore[index]
    return losses.sum()
