"""What chips and networks reach in practice. Every constant has its measurement, or the lack of one, beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eks_ray_train.errors import UsageError
from eks_ray_train.instances import InstanceType

if TYPE_CHECKING:
    from .run import Cluster, Transport


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One GPU. ``peak_tflops`` (dense bf16) and ``memory_gb_s`` are the datasheet's; the rest are shares of them that a
    training step reaches, and host seconds. ``measured``: on this chip; else the H200's shares are carried over."""

    name: str
    peak_tflops: float
    memory_gb_s: float
    measured: bool
    matmul_share: float
    attention_share: float
    memory_share: float
    fp8_gain: float
    host_block_s: float
    host_step_s: float

    @property
    def matmul_flops(self) -> float:
        """FLOP/s of large bf16 matrix products."""
        return self.peak_tflops * 1e12 * self.matmul_share

    @property
    def attention_flops(self) -> float:
        """FLOP/s of attention, forward and backward, causal half counted."""
        return self.peak_tflops * 1e12 * self.attention_share

    @property
    def memory_bytes_s(self) -> float:
        """Bytes a second of fused element-wise kernels, read plus written."""
        return self.memory_gb_s * 1e9 * self.memory_share


# H200, datasheet 989 dense bf16 TFLOP/s and 4800 GB/s. Measured there (torch 2.11, CUDA 13.0): 8192³ bf16 product 788 TFLOP/s
# on random data = 0.797 of the peak; device copy 4300 GB/s = 0.896.
MATMUL_SHARE = 0.70
ATTENTION_SHARE = 0.50
MEMORY_SHARE = 0.85
HOST_BLOCK_S = 0.0060
HOST_STEP_S = 0.030
OVERLAP_COST = 0.5
FP8_GAIN = {"H100": 1.4, "H200": 1.4, "B200": 1.4, "B300": 1.4, "L4": 1.3, "L40S": 1.3, "RTX": 1.3}

# NCCL within a node, share of NVLink's one-direction rate (half of the datasheet's figure). A100: 230.8 of 300 GB/s, eight
# GPUs, 1 GiB all-reduce (https://github.com/NVIDIA/nccl/issues/527).
NVLINK_SHARE = 0.77
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
            f"{instance.name}: the catalogue has no peak rate of {instance.gpu_model}, so no time can be predicted"
        )
    return make_chip(instance.gpu_model, instance.bf16_tflops, instance.memory_bandwidth_gb_s)


def make_chip(name: str, peak_tflops: float, memory_gb_s: float) -> Chip:
    """A chip with the measured H200 shares applied to its datasheet rates."""
    return Chip(
        name=name,
        peak_tflops=peak_tflops,
        memory_gb_s=memory_gb_s,
        measured=name.startswith("H200"),
        matmul_share=MATMUL_SHARE,
        attention_share=ATTENTION_SHARE,
        memory_share=MEMORY_SHARE,
        fp8_gain=FP8_GAIN.get(name.split()[0], 1.0),
        host_block_s=HOST_BLOCK_S,
        host_step_s=HOST_STEP_S,
    )


def cluster_of(instance: InstanceType, nodes: int, transport: Transport = "efa") -> Cluster:
    """``nodes`` nodes of a catalogue type.

    EFA has the whole line rate; TCP has one network card's, since the nodes have one ENA interface (others are efa-only).
    """
    from .run import Cluster

    gbps = instance.network_gbps if transport == "efa" else instance.network_gbps / instance.network_cards
    share = EFA_SHARE if transport == "efa" else TCP_SHARE
    model = instance.gpu_model.split()[0]
    intra = instance.nvlink_gb_s / 2 * NVLINK_SHARE if instance.nvlink_gb_s else PCIE_GB_S.get(model, PCIE_DEFAULT_GB_S)
    return Cluster(
        name=f"{nodes} × {instance.name}",
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
