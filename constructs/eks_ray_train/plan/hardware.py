"""What chips and networks reach in practice. Every constant has its measurement, or the lack of one, beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eks_ray_train.errors import UsageError
from eks_ray_train.instances import InstanceType

if TYPE_CHECKING:
    from .run import Cluster, Transport


@dataclass(frozen=True, kw_only=True)
class AttentionRate:
    """TFLOP/s of causal attention at sequence length S: 1 / (1/limit + start/S). ``limit`` in TFLOP/s at long sequences,
    ``start`` in tokens per TFLOP/s: what short sequences lose to the diagonal and to filling the chip."""

    limit: float
    start: float

    def tflops(self, seq_len: int) -> float:
        return 1.0 / (1.0 / self.limit + self.start / seq_len)


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One GPU: datasheet peaks, and what of the H200's measured rates a training step is taken to reach on it.

    ``peak_tflops`` dense bf16, ``memory_gb_s``; ``measured``: the constants below were measured on this chip, else the
    H200's share of its peaks is carried over. ``fp8_gain``: fp8 products' rate over bf16's; None = the chip has no fp8.
    """

    name: str
    peak_tflops: float
    memory_gb_s: float
    measured: bool
    fp8_gain: float | None

    @property
    def matmul_flops(self) -> float:
        """FLOP/s of bf16 matrix products without their operands' way to memory."""
        return self.peak_tflops * 1e12 * MATMUL_SHARE

    @property
    def memory_bytes_s(self) -> float:
        """Bytes a second of fused element-wise kernels, read plus written."""
        return self.memory_gb_s * 1e9 * MEMORY_SHARE

    @property
    def optimizer_bytes_s(self) -> float:
        """Bytes a second of fused AdamW, read plus written."""
        return self.memory_gb_s * 1e9 * OPTIMIZER_SHARE

    @property
    def copy_bytes_s(self) -> float:
        """Bytes a second of FSDP's copies between parameters and its buffers (a dozen tensors a block)."""
        return self.memory_gb_s * 1e9 * FSDP_COPY_SHARE

    def attention_flops(self, head_dim: int, seq_len: int, *, backward: bool) -> float:
        """FLOP/s of causal attention (half of the square counted), heads of 64 and of 128 measured, between them in line."""
        narrow, wide = (rates[1 if backward else 0].tflops(seq_len) for rates in (ATTENTION[64], ATTENTION[128]))
        part = min(1.0, max(0.0, (head_dim - 64) / 64))
        return (narrow + part * (wide - narrow)) * 1e12 * self.peak_tflops / H200_PEAK_TFLOPS


# All measured on H200 (torch 2.11, CUDA 13.0) by bench/chip_constants.py, results in bench/results/chip_constants.json, and by
# a profile of the job at 8 × 2048 tokens of Qwen2.5-1.5B. Datasheet: 989 dense bf16 TFLOP/s, 4800 GB/s.
H200_PEAK_TFLOPS = 989.0
# Products of 16384 tokens of the 0.5 to 7 billion models: 580 to 780 TFLOP/s alone, fitted by 2·m·k·n / 800e12 + half of the
# operands' bytes at memory speed + 16 µs; in the running step 6 % slower (less power and bandwidth to go round): 750.
MATMUL_SHARE = 0.758
OPERAND_SHARE = 0.5
PRODUCT_START_S = 16e-6
# Forward and backward: 425/311 TFLOP/s at 2048 tokens and 564/468 at 8192 (12 heads of 128); 290/223 and 394/354 (14 of 64).
ATTENTION = {
    64: (AttentionRate(limit=421, start=2.2), AttentionRate(limit=367, start=3.6)),
    128: (AttentionRate(limit=600, start=1.4), AttentionRate(limit=548, start=2.85)),
}
# Copy 4224 GB/s, gated activation 3898 GB/s; AdamW 3298 GB/s. FSDP's copies of a block of Qwen2.5-1.5B: 608 MB in 0.22 ms.
MEMORY_SHARE = 0.86
OPTIMIZER_SHARE = 0.687
FSDP_COPY_SHARE = 0.58
# Host, where the GPU waits for Python and the job does not record its step: 1 × 128 tokens, 28 blocks took 148 ms with weights
# kept gathered, about 200 ms without (and 35 ms recorded).
HOST_BLOCK_S = 0.0043
HOST_GATHER_S = 0.0018
HOST_STEP_S = 0.026
# Keeping 28 blocks gathered saves 6.7 ms of all-gathers and 3.5 ms of copies, and 5 ms of the step: hidden traffic costs the
# work beside it about a quarter of its own time.
OVERLAP_COST = 0.25
# fp8 by torchao, one scale a tensor: products 1.6 times as fast; the whole step 1.17 times at 1.5 billion parameters, 1.34 at 7.
FP8_GAIN = {"H100": 1.6, "H200": 1.6, "B200": 1.6, "B300": 1.6, "L4": 1.6, "L40S": 1.6, "RTX": 1.6}

# NCCL within a node, share of NVLink's one-direction rate (half of the datasheet's figure). A100: 230.8 of 300 GB/s, eight
# GPUs, 1 GiB all-reduce (https://github.com/NVIDIA/nccl/issues/527).
# H200: 263 GB/s of 450 between two GPUs, all-gather of 1 GiB, and 65 µs a call (NVLink multicast off; this machine's).
NVLINK_SHARE = {"A100": 0.77, "H200": 0.60}
NVLINK_DEFAULT_SHARE = 0.60
# Without NVLink: PCIe through host memory (g5, g6 have no peer-to-peer copies). Not measured here; PCIe 4.0 x16 carries 32
# GB/s, x8 16 GB/s, and a shared-memory hop crosses it twice. GB/s of one GPU.
PCIE_GB_S = {"A10G": 8.0, "L4": 8.0, "L40S": 12.0}
PCIE_DEFAULT_GB_S = 20.0

# Network, share of the type's line rate for messages of tens of MB. Bounds from the AWS sample's published benchmark on two
# g6.12xlarge (40 Gbit/s): with 7.7 GB a node and step, a step took at most 2 s over EFA and 2 to 4 s over TCP, so EFA reached
# at least 0.77 and TCP 0.38 to 0.77. 2 × p4d.24xlarge in 2022: 0.59 over EFA (https://github.com/NVIDIA/nccl/issues/527).
EFA_SHARE = 0.85
TCP_SHARE = 0.60


def chip_of(instance: InstanceType) -> Chip:
    """The chip of a catalogue type. Raises UsageError where its datasheet rates are not known."""
    if instance.bf16_tflops is None or instance.memory_bandwidth_gb_s is None:
        raise UsageError(
            f"{instance.name}: the catalogue has no peak rate of {instance.gpu_model}, so no time can be predicted; leave this type out of --instance-type"
        )
    return make_chip(instance.gpu_model, instance.bf16_tflops, instance.memory_bandwidth_gb_s)


def make_chip(name: str, peak_tflops: float, memory_gb_s: float) -> Chip:
    """A chip with the measured H200 shares applied to its datasheet rates."""
    return Chip(
        name=name,
        peak_tflops=peak_tflops,
        memory_gb_s=memory_gb_s,
        measured=name.startswith("H200"),
        fp8_gain=FP8_GAIN.get(name.split()[0]),
    )


def cluster_of(instance: InstanceType, nodes: int, transport: Transport = "efa") -> Cluster:
    """``nodes`` nodes of a catalogue type.

    EFA has the whole line rate; TCP has one network card's, since the nodes have one ENA interface (others are efa-only).
    """
    from .run import Cluster

    gbps = instance.network_gbps if transport == "efa" else instance.network_gbps / instance.network_cards
    share = EFA_SHARE if transport == "efa" else TCP_SHARE
    model = instance.gpu_model.split()[0]
    intra = (
        instance.nvlink_gb_s / 2 * NVLINK_SHARE.get(model, NVLINK_DEFAULT_SHARE)
        if instance.nvlink_gb_s
        else PCIE_GB_S.get(model, PCIE_DEFAULT_GB_S)
    )
    return Cluster(
        name=f"{nodes} × {instance.name}",
        argument=f"{instance.name}:{nodes}",
        chip=chip_of(instance),
        gpus_per_node=instance.gpus,
        nodes=nodes,
        gpu_memory_gib=instance.gpu_memory_mib / 1024,
        intra_gb_s=intra,
        inter_gb_s=gbps / 8 * share,
        transport=transport,
        usd_per_hour=None if instance.usd_per_hour is None else instance.usd_per_hour * nodes,
        inter_latency_s=30e-6 if transport == "efa" else 60e-6,
    )
