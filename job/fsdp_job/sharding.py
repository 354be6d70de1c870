"""One function applies all parallelism, in this order: activation checkpointing, compile, ``fully_shard``."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from fsdp_job import fuse
from fsdp_job.errors import JobUsageError
from fsdp_job.model import CausalLMLoss
from fsdp_job.ranks import Ranks

STATE_BYTES_PER_PARAMETER = 16
"""fp32 weight, gradient and two AdamW moments: 4 × 4 bytes; what a rank holds of each parameter of its shard."""

STATE_SHARE_OF_MEMORY = 0.5
"""``auto`` shards within a node where state takes at most this part of its GPUs' memory; the rest is for activations."""


KEPT_SHARE_OF_MEMORY = 0.05
"""Gathered weights of all blocks that take at most this part of a GPU's memory are kept from the forward to the backward
pass: one gather a step instead of two, which also takes a third of full sharding's traffic between nodes away."""


def keeps_gathered(*, block_parameters: int, compute_bytes: int, gpu_memory_bytes: int | None) -> bool:
    """Whether blocks stay gathered between the forward and the backward pass (``reshard_after_forward=False``)."""
    return gpu_memory_bytes is not None and block_parameters * compute_bytes <= KEPT_SHARE_OF_MEMORY * gpu_memory_bytes


def choose_sharding(asked: str, *, parameters: int, ranks: Ranks, node_memory_bytes: int | None) -> str:
    """``full`` or ``hybrid``. Hybrid cuts the traffic between nodes to one all-reduce of the gradients a step.

    ``auto`` takes it where there are several nodes with equally many ranks each and one node's memory holds the state.
    """
    if asked != "auto":
        if asked == "hybrid" and not ranks.is_regular:
            raise JobUsageError(
                f"--sharding hybrid needs equally many ranks on each node; {ranks.world_size} ranks, "
                f"{ranks.local_world_size} on node {ranks.node}; use --sharding full"
            )
        return asked
    if ranks.num_nodes == 1 or ranks.local_world_size == 1:
        return "full"
    fits = (
        node_memory_bytes is None or parameters * STATE_BYTES_PER_PARAMETER <= STATE_SHARE_OF_MEMORY * node_memory_bytes
    )
    return "hybrid" if fits else "full"


def make_mesh(sharding: str, ranks: Ranks) -> DeviceMesh:
    """1-D over all ranks (full), or 2-D: replicated across nodes, sharded within a node (hybrid).

    Rows of the 2-D mesh are nodes: Ray Train and torchrun number ranks node by node, which is checked here.
    """
    kind = ranks.device.type
    if sharding == "full":
        return init_device_mesh(kind, (ranks.world_size,), mesh_dim_names=("shard",))
    places: list[Any] = [None] * ranks.world_size
    dist.all_gather_object(places, (ranks.node_rank, ranks.local_rank, ranks.local_world_size))
    per_node = ranks.local_world_size
    expected = [(rank // per_node, rank % per_node, per_node) for rank in range(ranks.world_size)]
    if places != expected:
        raise JobUsageError(
            "--sharding hybrid needs ranks numbered node by node with equally many each; "
            f"got (node, local rank, ranks on the node) {places}; use --sharding full"
        )
    shape = (ranks.world_size // per_node, per_node)
    return init_device_mesh(kind, shape, mesh_dim_names=("replicate", "shard"))


def apply(
    root: CausalLMLoss, blocks: list[nn.Module], mesh: DeviceMesh, *, checkpointing: str, compiled: bool, bf16: bool,
    keep_gathered: bool = False,
) -> None:  # fmt: skip
    """Activation checkpointing, then compile, then ``fully_shard`` by block and last the root, in place.

    What lies outside the blocks (embedding, last norm, head) is the root's group, so tied embeddings stay one parameter.
    """
    for block in blocks:
        if checkpointing != "none":
            _recompute(block, checkpointing)
    for block in blocks:
        if compiled:
            block.compile(backend=fuse.backend)
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bf16 else None, reduce_dtype=torch.float32 if bf16 else None
    )
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=not keep_gathered)
    fully_shard(root, mesh=mesh, mp_policy=policy)


def _recompute(block: nn.Module, how: str) -> None:
    """Wrap the block's forward function; unlike a wrapper module this leaves parameter names as they are.

    A plain function, since torch.compile does not look into a ``functools.partial`` of ``checkpoint``: with one the
    whole block ran uncompiled.
    """
    options: dict[str, Any] = {"use_reentrant": False}
    if how == "selective":
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _keep_expensive)
    original = block.forward

    def recomputed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(original, *args, **options, **kwargs)

    block.forward = recomputed  # type: ignore[method-assign]


_EXPENSIVE = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}


def _keep_expensive(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    """Selective: keep what matrix products and attention gave, recompute the cheap rest."""
    return CheckpointPolicy.MUST_SAVE if operator in _EXPENSIVE else CheckpointPolicy.PREFER_RECOMPUTE


def set_accumulation(root: nn.Module, *, last: bool, sharding: str, across_nodes: bool) -> None:
    """Say before a micro-batch's backward pass whether it is the last of its optimizer step.

    Gradients cross nodes once a step: hybrid reduces within the node each time and across nodes only at the last; full
    sharding over several nodes keeps whole gradients until the last (their memory is the price).
    """
    assert isinstance(root, FSDPModule)
    root.set_is_last_backward(last)
    if sharding == "hybrid":
        root.set_requires_all_reduce(last)
    elif across_nodes:
        root.set_requires_gradient_sync(last)


def gradient_norm(local: list[torch.Tensor], mesh: DeviceMesh) -> torch.Tensor:
    """Norm of the whole gradient from each rank's shards ``local``; a device scalar, never read here.

    Each rank's squares are summed over the shard group; replicas hold equal gradients.
    """
    squares = torch.stack(torch._foreach_norm(local)).float().square().sum()
    dist.all_reduce(squares, group=mesh["shard"].get_group() if mesh.ndim > 1 else mesh.get_group())
    return squares.sqrt()


def clipping(norm: torch.Tensor, max_norm: float) -> torch.Tensor:
    """The factor that brings a gradient of this norm to at most ``max_norm``; at most 1."""
    return torch.clamp(max_norm / (norm + 1e-6), max=1.0)
