"""What is planned: one run's settings, and the hardware it would run on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from eks_ray_train.errors import UsageError

from .hardware import Chip
from .model_shapes import ModelShape

Sharding = Literal["full", "hybrid", "auto"]
Checkpointing = Literal["none", "selective", "full"]
Precision = Literal["bf16", "fp32", "fp8", "pure-bf16"]
Transport = Literal["efa", "tcp"]
Backend = Literal["nccl", "gloo"]

STATE_SHARE_OF_MEMORY = 0.5
"""``auto`` takes hybrid sharding where weights, gradients and optimizer need at most this part of a node's GPU memory;
the job's ``--sharding auto`` follows the same rule, and a test compares the two."""


KEPT_SHARE_OF_MEMORY = 0.05
"""Gathered weights of all blocks up to this part of a GPU's memory are kept (job/fsdp_job/sharding.py has the same)."""


RECORDED_FLOPS = 2e12
"""FLOPs of one block and micro-batch up to which the job records its step as a CUDA graph, which takes the host's time away
(job/fsdp_job/step_graph.py has the same)."""

FP8_ELEMENTS = 2**23
"""Least elements of a weight whose products the job computes in fp8 (job/fsdp_job/precision.py has the same)."""


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """Bytes per parameter of one precision: kept weight, gradient and optimizer (sharded), compute copy, reduction."""

    weight: int
    gradient: int
    optimizer: int
    compute: int
    reduce: int

    @property
    def state(self) -> int:
        """Weight, gradient and optimizer together."""
        return self.weight + self.gradient + self.optimizer


# bf16 and fp8: fp32 weights, gradients and two AdamW moments under a bf16 copy, gradients reduced in fp32 (FSDP2's
# MixedPrecisionPolicy as the job sets it). fp8 changes the matrix products alone. pure-bf16: everything 2 bytes (AWS sample).
PRECISIONS: dict[str, Bytes] = {
    "bf16": Bytes(weight=4, gradient=4, optimizer=8, compute=2, reduce=4),
    "fp8": Bytes(weight=4, gradient=4, optimizer=8, compute=2, reduce=4),
    "fp32": Bytes(weight=4, gradient=4, optimizer=8, compute=4, reduce=4),
    "pure-bf16": Bytes(weight=2, gradient=2, optimizer=4, compute=2, reduce=2),
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the job. ``batch_size`` in sequences a GPU and micro-batch, ``seq_len`` in tokens.

    Raises UsageError that names every number that is out of range.
    """

    shape: ModelShape
    seq_len: int = 128
    batch_size: int = 1
    accumulate: int = 1
    sharding: Sharding = "auto"
    checkpointing: Checkpointing = "none"
    precision: Precision = "bf16"
    backend: Backend = "nccl"

    def __post_init__(self) -> None:
        wrong = [
            f"{flag} must be at least 1, got {value}; leave it out to get the default"
            for flag, value in (
                ("--seq-len", self.seq_len),
                ("--batch-size", self.batch_size),
                ("--accumulate", self.accumulate),
            )
            if value < 1
        ]
        if self.shape.max_seq_len and self.shape.positions and self.seq_len > self.shape.max_seq_len:
            wrong.append(
                f"--seq-len {self.seq_len} is longer than the {self.shape.max_seq_len} positions that {self.shape.name} has; "
                f"give at most --seq-len {self.shape.max_seq_len}"
            )
        if wrong:
            raise UsageError("; ".join(wrong))

    @property
    def bytes(self) -> Bytes:
        return PRECISIONS[self.precision]

    @property
    def micro_tokens(self) -> int:
        """Tokens that one GPU works on at a time."""
        return self.batch_size * self.seq_len

    @property
    def recorded(self) -> bool:
        """Whether the job records its step, so that the host's time does not count."""
        work = 6.0 * self.shape.matmul_parameters * self.micro_tokens / max(1, self.shape.layers)
        return work <= RECORDED_FLOPS

    def in_fp8(self, inner: int, outer: int) -> bool:
        """Whether a product of the blocks is computed in fp8."""
        return self.precision == "fp8" and inner * outer >= FP8_ELEMENTS

    def tokens_per_step(self, gpus: int) -> int:
        """Tokens of one optimizer step of all GPUs."""
        return self.micro_tokens * self.accumulate * gpus


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal nodes. Memory in GiB a GPU, bandwidths in 1e9 bytes a second and one direction: ``intra_gb_s`` of one GPU to
    the others of its node, ``inter_gb_s`` of one node to the others; ``usd_per_hour`` of all nodes, None = unknown.
    ``name`` is for people, ``argument`` what ``--instance-type`` takes for it."""

    name: str
    argument: str = ""
    chip: Chip
    gpus_per_node: int
    nodes: int
    gpu_memory_gib: float
    intra_gb_s: float
    inter_gb_s: float
    transport: Transport = "efa"
    usd_per_hour: float | None = None
    intra_latency_s: float = 65e-6
    inter_latency_s: float = 80e-6

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus_per_node < 1:
            raise UsageError(f"--nodes must be at least 1, got {self.nodes}; leave it out to get cdk.json's")

    @property
    def gpus(self) -> int:
        return self.gpus_per_node * self.nodes

    def resolve(self, run: Run) -> Literal["full", "hybrid"]:
        """The sharding that the job would take: as asked, or by the rule of ``--sharding auto``.

        Auto takes hybrid (shard within a node, replicate across) where there are several nodes of several GPUs and one
        node's memory holds the state at ``STATE_SHARE_OF_MEMORY``: it cuts the traffic between nodes the most.
        """
        if run.sharding != "auto":
            return run.sharding
        if self.nodes == 1 or self.gpus_per_node == 1:
            return "full"
        state = run.shape.parameters * PRECISIONS["fp32"].state
        room = STATE_SHARE_OF_MEMORY * self.gpu_memory_gib * 2**30 * self.gpus_per_node
        return "hybrid" if state <= room else "full"

    def keeps_gathered(self, run: Run) -> bool:
        """Whether blocks stay gathered between the forward and the backward pass: one gather a step instead of two.

        The job keeps them where their compute copy takes at most ``KEPT_SHARE_OF_MEMORY`` of a GPU's memory.
        """
        blocks = run.shape.layers * run.shape.block_parameters * run.bytes.compute
        return blocks <= KEPT_SHARE_OF_MEMORY * self.gpu_memory_gib * 2**30

    def shards(self, run: Run) -> int:
        """GPUs that hold one copy of the state between them."""
        return self.gpus_per_node if self.resolve(run) == "hybrid" else self.gpus


def ceil_div(a: int, b: int) -> int:
    """Whole pieces of size ``b`` that hold ``a``."""
    return math.ceil(a / b)
