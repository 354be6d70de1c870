"""Cross entropy of a linear head without ever holding all logits.

The head's product, the softmax and **both gradients** are computed chunk by chunk in the forward pass, so the backward
pass only scales them: the logits of one chunk live at a time, and nothing is computed twice. (Measured on two H200s with
a 1.5-billion-parameter model: 5 % faster than recomputing the chunks in the backward pass, at 2 GiB more.)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

IGNORED = -100
"""Label of a position that does not count."""

CHUNK_LOGITS = 2**29
"""Logits of one chunk at most: 2**29 elements are 1 GiB in bf16 and 2 GiB in fp32, large enough for full-speed products."""


TILE = 128
"""Rows of one tile of a matrix product: a chunk that is a multiple leaves no tile half empty."""


def _chunk_loss_and_gradient(
    logits: torch.Tensor, labels: torch.Tensor, scale: torch.Tensor, softcap: float | None
) -> torch.Tensor:
    """Summed loss (fp32 scalar) of logits [n, vocab], which become the gradient of ``scale * loss`` to themselves.

    In place: a chunk's logits and their gradient never exist side by side.
    """
    x = logits.float()
    if softcap is not None:
        t = torch.tanh(x / softcap)
        x = t * softcap
    valid = labels != IGNORED
    target = labels.clamp(min=0)
    log_z = torch.logsumexp(x, dim=-1)
    picked = x.gather(-1, target[:, None])[:, 0]
    loss = torch.where(valid, log_z - picked, 0.0).sum()
    hot = torch.arange(x.shape[-1], device=x.device) == target[:, None]
    grad = torch.where(valid[:, None], torch.exp(x - log_z[:, None]) - hot.to(x.dtype), 0.0)
    if softcap is not None:
        grad = grad * (1 - t * t)
    logits.copy_(grad * scale)
    return loss


_compiled: Any = None


def _rows(logits: torch.Tensor, labels: torch.Tensor, scale: torch.Tensor, _softcap: None) -> torch.Tensor:
    from fsdp_job.loss_rows import loss_and_gradient

    return loss_and_gradient(logits, labels, scale, IGNORED)


def _kernel(device: torch.device, compiled: bool, softcap: float | None) -> Any:
    """The function above or, on CUDA where compiling was asked for, a kernel that reads a chunk once and writes it once.

    Capped logits go through torch.compile.
    """
    global _compiled
    if not compiled or device.type != "cuda":
        return _chunk_loss_and_gradient
    if softcap is None:
        return _rows
    if _compiled is None:
        _compiled = torch.compile(_chunk_loss_and_gradient, dynamic=False)
    return _compiled


def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """``total += a @ b`` with an fp32 total: inside the product itself on CUDA, where it saves two passes over the total."""
    if total.is_cuda and a.dtype in (torch.bfloat16, torch.float16):
        torch.ops.aten.addmm.dtype_out(total, a, b, torch.float32, out=total)
    else:
        total += a @ b


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, labels: torch.Tensor,
        scale: torch.Tensor, softcap: float | None, factor: float, chunk: int, compiled: bool, with_grad: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        kernel = _kernel(hidden.device, compiled, softcap)
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        grad_hidden = torch.empty_like(hidden) if with_grad else None
        # Several chunks are summed in fp32: in bf16 each addition would round away small contributions.
        several = chunk < hidden.shape[0]
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if with_grad and several else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if with_grad and bias is not None else None
        for start in range(0, hidden.shape[0], chunk):
            h = hidden[start : start + chunk]
            logits = F.linear(h, weight, bias)
            if factor != 1.0:
                logits.mul_(factor)
            loss += kernel(logits, labels[start : start + chunk], scale, softcap)
            grad = logits  # the kernel puts it in their place
            if grad_hidden is not None:
                if factor != 1.0:
                    grad.mul_(factor)
                torch.mm(grad, weight, out=grad_hidden[start : start + chunk])
                if grad_weight is None:
                    grad_weight = grad.t() @ h
                else:
                    _add_product(grad_weight, grad.t(), h)
                if grad_bias is not None:
                    grad_bias += grad.sum(0, dtype=torch.float32)
            del logits, grad  # else this chunk, a gigabyte, would live until the next one is there
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.dtypes = (weight.dtype, None if bias is None else bias.dtype)
        ctx.mark_non_differentiable(loss)
        return loss * scale, loss

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        outer = grads[0]
        hidden, weight, bias = ctx.saved_tensors
        weight_dtype, bias_dtype = ctx.dtypes
        g_bias = None if bias is None else (bias * outer).to(bias_dtype)
        # Cast first: a product in fp32 would need as much memory again, and ``outer`` is 1 but for users of their own.
        g_weight = weight.to(weight_dtype, copy=True).mul_(outer)
        return hidden * outer, g_weight, g_bias, None, None, None, None, None, None, None


def chunk_rows(rows: int, vocab: int, chunk_logits: int) -> int:
    """Rows of one chunk: as many as ``chunk_logits`` allows, in equal chunks of whole tiles of the product where possible."""
    most = max(1, min(rows, chunk_logits // vocab))
    even = -(-rows // -(-rows // most))  # the same number of chunks, equally large
    tiled = -(-even // TILE) * TILE
    return tiled if tiled <= most else (most // TILE * TILE or most)


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    softcap: float | None = None,
    factor: float = 1.0,
    chunk_logits: int = CHUNK_LOGITS,
    compiled: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropies of ``softcap(factor * (hidden @ weight.T + bias))`` against ``labels``: (scaled sum, plain sum).

    hidden [..., d], weight [vocab, d], labels [...] (int64, already shifted; IGNORED positions count nothing). Both
    results are fp32 scalars; only the first has a gradient. ``scale`` (fp32 scalar tensor, default 1) enters before the
    gradient is rounded to the hidden state's dtype. ``chunk_logits`` bounds the logits that exist at one time.
    """
    flat = hidden.reshape(-1, hidden.shape[-1])
    chunk = chunk_rows(flat.shape[0], weight.shape[0], chunk_logits)
    with_grad = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    if scale is None:
        scale = torch.ones((), dtype=torch.float32, device=hidden.device)
    return _LinearCrossEntropy.apply(
        flat, weight, bias, labels.reshape(-1), scale, softcap, factor, chunk, compiled, with_grad
    )
