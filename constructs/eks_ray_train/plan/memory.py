"""GiB that one GPU needs, by part."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from .run import Cluster, Run

GIB = float(2**30)
CHUNK_LOGITS = 2**29
"""Logits that the job's loss holds at a time, elements (job/fsdp_job/loss.py; a test compares the two)."""

ALLOCATOR_MARGIN = 0.08
"""Share of the peak that the allocator's fragmentation takes on top. Measured on H200s with memory to spare: reserved over
allocated 1.02 to 1.12 without checkpointing, up to 1.34 with (of small peaks); 1.05 at 110 of 140 GiB, since under pressure
the allocator gives cached blocks back."""

OUTSIDE_TORCH_GIB = 1.6
"""CUDA context, libraries' workspaces and NCCL's buffers, which the allocator does not see. Own estimate from nvidia-smi
against torch's reserved memory on H200 (0.6 context, 0.5–1 NCCL with 2 to 8 ranks)."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """GiB a GPU at the moment of the peak. ``peak_gib`` is what ``torch.cuda.max_memory_allocated`` would say."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    logits: float
    communication: float
    margin: float
    outside: float

    @property
    def peak_gib(self) -> float:
        return self.needed_gib - self.margin - self.outside

    @property
    def needed_gib(self) -> float:
        """All of it: compare with the GPU's memory."""
        return sum(getattr(self, f.name) for f in fields(self))


def activation_elements(run: Run) -> tuple[float, float]:
    """(kept, whole): elements a token that one block keeps for the backward pass, and keeps without checkpointing.

    none: input, two norms' outputs, residual (4·h), queries, keys, values and attention's output (2·q + 2·kv), the MLP's
    two products and their gated product (3·I; 2·I ungated). Measured: 16 against 8 sequences of 2048 tokens took 31.6 GiB
    more on an H200 (Qwen2.5-1.5B), 73.9 kB a token and block; the formula gives 73.2 kB.
    With fp8 products the compiler recomputes the MLP's norm's output and the gated product.
    selective: what matrix products and attention gave, and the input. full: the input alone.
    """
    s = run.shape
    attention = 2.0 * s.query_width + 2.0 * s.kv_width
    norms = {0: 0, 1: 2, 2: 2, 4: 4}.get(s.norms_per_block, 2)
    products = float((s.mlp_matrices - 1) * s.active_intermediate)
    whole = (2.0 + norms) * s.hidden + attention + products + s.active_intermediate
    if run.in_fp8(s.hidden, s.active_intermediate):
        whole -= norms / 2 * s.hidden + s.active_intermediate
    kept = {
        "none": whole,
        "selective": 3.0 * s.hidden + attention + products,
        "full": float(s.hidden),
    }[run.checkpointing]
    return min(kept, whole), whole


def peak_memory(run: Run, cluster: Cluster) -> Memory:
    """Memory at the largest of three moments: the loss (all activations, one chunk of logits, no gradients yet), the start
    of the backward pass (the head's gradient, one block recomputed) and its end (all gradients, the root's being reduced).

    State: fp32 weight, gradient and AdamW's two moments, sharded over ``cluster.shards(run)`` GPUs; a compute copy of the
    root and of two blocks (of all where the job keeps them). With accumulation over nodes under full sharding whole
    gradients are kept in the reduction's type until the last micro-batch. Source: Rajbhandari et al. 2020
    (arXiv:1910.02054) §3; FSDP2's documentation; the order of frees in torch's FSDPParamGroup.post_backward.
    """
    shape, size, shards = run.shape, run.bytes, cluster.shards(run)
    tokens = float(run.micro_tokens)
    kept, whole = activation_elements(run)
    block, root, head = shape.block_parameters, shape.root_parameters, shape.vocab * shape.hidden
    weights = size.weight * shape.parameters / shards
    optimizer = size.optimizer * shape.parameters / shards
    gradients = size.gradient * shape.parameters / shards
    unsynced = run.accumulate > 1 and cluster.resolve(run) == "full" and cluster.nodes > 1
    carried = gradients if run.accumulate > 1 and not unsynced else 0.0
    carried += shape.parameters * size.reduce if unsynced else 0.0
    gathered = size.compute * (root + (shape.layers if cluster.keeps_gathered(run) else 2.0) * block)
    saved = tokens * kept * size.compute * shape.layers + tokens * shape.heads * 4 * shape.layers * (
        run.checkpointing != "full"
    )
    hidden = tokens * shape.hidden * size.compute
    rows = min(tokens, max(1, CHUNK_LOGITS // shape.vocab))
    # The job computes the loss's gradient in place of the logits, and the head's gradient in fp32 where it sums several chunks.
    summed = 4.0 if tokens > rows else float(size.compute)
    loss = rows * shape.vocab * size.compute + head * summed + 3 * hidden
    working = (
        tokens * (whole - kept) * size.compute
        + 2.0 * tokens * (2 * shape.active_intermediate + shape.hidden) * size.compute
    )
    first = head * (summed + size.compute) + 2 * hidden
    shard_sum = block * (size.compute + size.reduce)
    moments = (
        {"gathered": gathered, "activations": saved, "logits": loss, "gradients": carried, "communication": 0.0},
        {"gathered": gathered, "activations": saved + working, "logits": head * size.compute, "gradients": carried, "communication": 0.0},
        {"gathered": gathered, "activations": saved, "logits": first, "gradients": carried, "communication": 0.0},
        {
            "gathered": 0.0, "activations": 0.0, "logits": 0.0, "gradients": max(gradients, carried),
            "communication": root * (size.compute + size.reduce) + shard_sum,
        },
    )  # fmt: skip
    worst = max(moments, key=lambda parts: math.fsum(parts.values()))
    in_gib = {key: value / GIB for key, value in worst.items()}
    peak = math.fsum(in_gib.values()) + (weights + optimizer) / GIB
    return Memory(
        weights=weights / GIB,
        optimizer=optimizer / GIB,
        margin=peak * ALLOCATOR_MARGIN,
        outside=OUTSIDE_TORCH_GIB,
        **in_gib,
    )
