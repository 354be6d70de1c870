"""Catalogue of EC2 GPU instance types with EFA: rows are facts, everything else is derived.

(Over 300 lines because the table itself is part of it.)

Sources: EC2 instance-type data, aws-ofi-nccl v1.21.1 platform table (GPUDirect RDMA), NVIDIA datasheets (dense bf16
peak, memory bandwidth), AWS price list of 2026-07-20 (us-east-1, on demand). Checked 2026-11-29. ``None`` = unknown.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from .errors import SettingsError

AmiFamily = Literal["al2023", "bottlerocket"]

# EKS's own maximum of pods a node over all types (g5/p4d class): using it for every type makes the memory that the
# kubelet reserves an upper bound, so that no worker pod ever asks for more than its node allocates.
_MAX_PODS_BOUND = 737
# Memory that the hypervisor and kernel keep, as Karpenter computes it (vmMemoryOverheadPercent).
_VM_MEMORY_OVERHEAD = 0.075
# What the node's DaemonSets (CNI, kube-proxy, pod identity, node monitoring, two device plugins, CloudWatch) may take.
_DAEMON_CPU_MILLIS = 1_500
_DAEMON_MEMORY_MIB = 3_072


@dataclass(frozen=True, kw_only=True)
class NetworkInterface:
    """One entry of a launch template's NetworkInterfaces; ``interface_type`` is ``interface`` (ENA) or ``efa-only``."""

    network_card_index: int
    device_index: int
    interface_type: Literal["interface", "efa-only"]


@dataclass(frozen=True, kw_only=True)
class PodSize:
    """Requests (= limits) of one Ray pod: whole CPUs, GiB, GPUs and EFA interfaces."""

    cpu: int
    memory_gib: int
    gpus: int = 0
    efa_interfaces: int = 0


def allocatable_cpu_millis(vcpus: int) -> int:
    """CPU that the kubelet offers to pods, in millicores: 6 % of the first core, 1 % of the second, 0.5 % of the next
    two, 0.25 % of the rest are reserved (EKS AMI, nodeadm)."""
    reserved = 60 + (10 if vcpus >= 2 else 0) + 5 * max(0, min(vcpus, 4) - 2) + 2.5 * max(0, vcpus - 4)
    return int(vcpus * 1000 - reserved)


def allocatable_memory_mib(memory_gib: float, max_pods: int = _MAX_PODS_BOUND) -> int:
    """Memory that the kubelet offers to pods, in MiB, never more than the node really has: less 7.5 % for hypervisor
    and kernel, 255 MiB + 11 MiB a pod reserved, 100 MiB eviction threshold (EKS AMI, nodeadm)."""
    return int(memory_gib * 1024 * (1 - _VM_MEMORY_OVERHEAD)) - 255 - 11 * max_pods - 100


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """Facts of one type. Units: MiB a GPU, GiB a node, Gbit/s a node, USD an hour (us-east-1, on demand), dense bf16
    TFLOP/s a GPU, GB/s a GPU (memory and NVLink; 0 = PCIe only), GB of local NVMe a node (0 = none or unknown)."""

    name: str
    gpu_model: str
    gpus: int
    gpu_memory_mib: int
    vcpus: int
    memory_gib: int
    network_cards: int
    efa_interfaces: int
    network_gbps: float
    gpudirect_rdma: bool
    capacity_block: bool
    usd_per_hour: float | None
    bf16_tflops: float | None
    memory_bandwidth_gb_s: float | None
    nvlink_gb_s: float
    local_nvme_gb: int
    layout_verified: bool

    @property
    def family(self) -> str:
        """``g6`` of ``g6.12xlarge``."""
        return self.name.partition(".")[0]

    @property
    def quota_code(self) -> str:
        """Service Quotas code of the running on-demand vCPU quota (service ``ec2``)."""
        return "L-417A185B" if self.name.startswith("p") else "L-DB2E81BA"

    @property
    def network_interfaces(self) -> tuple[NetworkInterface, ...]:
        """The launch template's layout: ENA on card 0 device 0, ``efa-only`` everywhere else, as many EFA interfaces as
        the type's maximum. Where there is one EFA less than cards, card 0 is ENA only.
        Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html"""
        first_card_has_efa = self.efa_interfaces == self.network_cards
        layout = [NetworkInterface(network_card_index=0, device_index=0, interface_type="interface")]
        if first_card_has_efa:
            layout.append(NetworkInterface(network_card_index=0, device_index=1, interface_type="efa-only"))
        layout += [
            NetworkInterface(network_card_index=card, device_index=0, interface_type="efa-only")
            for card in range(1, self.network_cards)
        ]
        return tuple(layout)

    @property
    def allocatable_cpu_millis(self) -> int:
        return allocatable_cpu_millis(self.vcpus)

    @property
    def allocatable_memory_mib(self) -> int:
        return allocatable_memory_mib(self.memory_gib)

    @property
    def worker_pod(self) -> PodSize:
        """One Ray worker pod a node: all GPUs and EFA interfaces, and the CPU and memory that DaemonSets leave."""
        return PodSize(
            cpu=(self.allocatable_cpu_millis - _DAEMON_CPU_MILLIS) // 1000,
            memory_gib=(self.allocatable_memory_mib - _DAEMON_MEMORY_MIB) // 1024,
            gpus=self.gpus,
            efa_interfaces=self.efa_interfaces,
        )

    def ami_type(self, family: AmiFamily = "al2023") -> str:
        """EKS managed node group AMI type with NVIDIA driver and EFA kernel module."""
        return {"al2023": "AL2023_x86_64_NVIDIA", "bottlerocket": "BOTTLEROCKET_x86_64_NVIDIA"}[family]


def _row(
    name: str,
    gpu: str,
    gpus: int,
    gpu_mib: int,
    vcpus: int,
    gib: int,
    cards: int,
    efa: int,
    gbps: float,
    gdr: bool,
    block: bool,
    usd: float | None,
    tflops: float | None,
    bandwidth: float | None,
    nvlink: float,
    nvme: int,
    verified: bool,
) -> InstanceType:
    return InstanceType(
        name=name,
        gpu_model=gpu,
        gpus=gpus,
        gpu_memory_mib=gpu_mib,
        vcpus=vcpus,
        memory_gib=gib,
        network_cards=cards,
        efa_interfaces=efa,
        network_gbps=gbps,
        gpudirect_rdma=gdr,
        capacity_block=block,
        usd_per_hour=usd,
        bf16_tflops=tflops,
        memory_bandwidth_gb_s=bandwidth,
        nvlink_gb_s=nvlink,
        local_nvme_gb=nvme,
        layout_verified=verified,
    )


# name, GPU, GPUs, MiB/GPU, vCPU, GiB, cards, EFA, Gbit/s, GPUDirect RDMA, Capacity Block, $/h, TFLOP/s, GB/s, NVLink, NVMe GB, layout verified
_ROWS = (
    _row("g5.8xlarge", "A10G", 1, 22888, 32, 128, 1, 1, 25, False, False, 2.448, 70, 600, 0, 900, True),
    _row("g5.12xlarge", "A10G", 4, 22888, 48, 192, 1, 1, 40, False, False, 5.672, 70, 600, 0, 3800, True),
    _row("g5.16xlarge", "A10G", 1, 22888, 64, 256, 1, 1, 25, False, False, 4.096, 70, 600, 0, 1900, True),
    _row("g5.24xlarge", "A10G", 4, 22888, 96, 384, 1, 1, 50, False, False, 8.144, 70, 600, 0, 3800, True),
    _row("g5.48xlarge", "A10G", 8, 22888, 192, 768, 1, 1, 100, False, False, 16.288, 70, 600, 0, 7600, True),
    _row("g6.8xlarge", "L4", 1, 22888, 32, 128, 1, 1, 25, False, False, 2.0144, 121, 300, 0, 900, True),
    _row("g6.12xlarge", "L4", 4, 22888, 48, 192, 1, 1, 40, False, False, 4.6016, 121, 300, 0, 3760, True),
    _row("g6.16xlarge", "L4", 1, 22888, 64, 256, 1, 1, 25, False, False, 3.3968, 121, 300, 0, 1880, True),
    _row("g6.24xlarge", "L4", 4, 22888, 96, 384, 1, 1, 50, False, False, 6.6752, 121, 300, 0, 3760, True),
    _row("g6.48xlarge", "L4", 8, 22888, 192, 768, 1, 1, 100, False, False, 13.3504, 121, 300, 0, 7520, True),
    _row("gr6.8xlarge", "L4", 1, 22888, 32, 256, 1, 1, 25, False, False, 2.4464, 121, 300, 0, 900, True),
    _row("g6e.8xlarge", "L40S", 1, 45776, 32, 256, 1, 1, 25, False, False, 4.52856, 362, 864, 0, 900, True),
    _row("g6e.12xlarge", "L40S", 4, 45776, 48, 384, 1, 1, 100, False, False, 10.4926, 362, 864, 0, 3800, True),
    _row("g6e.16xlarge", "L40S", 1, 45776, 64, 512, 1, 1, 35, False, False, 7.57719, 362, 864, 0, 1900, True),
    _row("g6e.24xlarge", "L40S", 4, 45776, 96, 768, 2, 2, 200, False, False, 15.0656, 362, 864, 0, 3800, True),
    _row("g6e.48xlarge", "L40S", 8, 45776, 192, 1536, 4, 4, 400, False, False, 30.1312, 362, 864, 0, 7600, True),
    _row("g7.8xlarge", "RTX PRO 4500 Blackwell", 1, 32768, 32, 128, 1, 1, 80, False, False, 4.08624, None, None, 0, 0, False),
    _row("g7.12xlarge", "RTX PRO 4500 Blackwell", 2, 32768, 48, 192, 1, 1, 175, False, False, 7.12832, None, None, 0, 0, False),
    _row("g7.24xlarge", "RTX PRO 4500 Blackwell", 4, 32768, 96, 384, 1, 1, 350, False, False, 14.2566, None, None, 0, 0, False),
    _row("g7.48xlarge", "RTX PRO 4500 Blackwell", 8, 32768, 192, 768, 2, 2, 700, False, False, 28.5133, None, None, 0, 0, False),
    _row("g7e.8xlarge", "RTX PRO 6000 Blackwell", 1, 98304, 32, 256, 1, 1, 100, False, False, 5.26824, 500, 1597, 0, 1900, True),
    _row("g7e.12xlarge", "RTX PRO 6000 Blackwell", 2, 98304, 48, 512, 1, 1, 400, True, False, 8.28608, 500, 1597, 0, 3800, True),
    _row("g7e.24xlarge", "RTX PRO 6000 Blackwell", 4, 98304, 96, 1024, 2, 2, 800, True, False, 16.5722, 500, 1597, 0, 7600, True),
    _row("g7e.48xlarge", "RTX PRO 6000 Blackwell", 8, 98304, 192, 2048, 4, 4, 1600, True, False, 33.1443, 500, 1597, 0, 15200, True),
    _row("p4d.24xlarge", "A100 SXM4 40GB", 8, 40960, 96, 1152, 4, 4, 400, True, True, 21.9576, 312, 1555, 600, 8000, True),
    _row("p4de.24xlarge", "A100 SXM4 80GB", 8, 81920, 96, 1152, 4, 4, 400, True, True, 27.4471, 312, 2039, 600, 8000, True),
    _row("p5.4xlarge", "H100 SXM5 80GB", 1, 81920, 16, 256, 1, 1, 100, False, True, 6.88, 989, 3350, 0, 3800, True),
    _row("p5.48xlarge", "H100 SXM5 80GB", 8, 81920, 192, 2048, 32, 32, 3200, True, True, 55.04, 989, 3350, 900, 30400, True),
    _row("p5e.48xlarge", "H200 SXM 141GB", 8, 144384, 192, 2048, 32, 32, 3200, True, True, None, 989, 4800, 900, 30400, True),
    _row("p5en.48xlarge", "H200 SXM 141GB", 8, 144384, 192, 2048, 16, 16, 3200, True, True, 63.296, 989, 4800, 900, 30400, True),
    _row("p6-b200.48xlarge", "B200", 8, 183359, 192, 2048, 8, 8, 3200, True, True, 113.933, 2250, 8000, 1800, 30400, True),
    _row("p6-b300.48xlarge", "B300", 8, 275040, 192, 4096, 17, 16, 6400, True, True, 142.416, 2250, 8000, 1800, 30400, False),
)

CATALOGUE: dict[str, InstanceType] = {row.name: row for row in _ROWS}

# Sizes below the first one with EFA, so that the error can say what the type lacks (EC2 instance-type data).
_SMALL_SIZES = ("xlarge", "2xlarge", "4xlarge")
_UNSUPPORTED_FAMILIES = {
    "g4dn": ("its T4 GPUs have no bf16 tensor cores, and the job computes in bf16", "g5.8xlarge"),
    "g5g": ("it is an arm64 host and the Ray Train image is x86_64 only", "g5.8xlarge"),
    "p2": ("its K80 GPUs are not supported by CUDA 13", "g6.12xlarge"),
    "p3": ("its V100 GPUs (sm_70) are not supported by CUDA 13, which starts at sm_75", "p4d.24xlarge"),
    "p3dn": ("its V100 GPUs (sm_70) are not supported by CUDA 13, which starts at sm_75", "p4d.24xlarge"),
    "p6e-gb200": ("it is an arm64 host and the Ray Train image is x86_64 only", "p6-b200.48xlarge"),
    "p6e-gb300": ("it is an arm64 host and the Ray Train image is x86_64 only", "p6-b200.48xlarge"),
}


def get_instance_type(
    name: str, *, accept_unverified_layout: bool = False, asked_by: str = "gpu_instance_type"
) -> InstanceType:
    """The catalogue's row of ``name``. ``asked_by``: the setting, property or flag that named it, for the message.

    Raises SettingsError that says why a type cannot be used (no EFA, arm64, V100, unknown, layout that no source
    confirms) and names the nearest one that works.
    """
    row = CATALOGUE.get(name)
    if row is not None:
        if not row.layout_verified and not accept_unverified_layout:
            raise SettingsError(
                f"{asked_by} {name}: no source confirms its network interface layout "
                f"({row.network_cards} cards, {row.efa_interfaces} EFA assumed); check it with `aws ec2 describe-instance-types "
                f"--instance-types {name}` and set accept_unverified_layout to true to use it"
            )
        return row
    family, dot, size = name.partition(".")
    if family in _UNSUPPORTED_FAMILIES and dot:
        reason, nearest = _UNSUPPORTED_FAMILIES[family]
        raise SettingsError(f"{asked_by} {name} cannot be used: {reason}; use {nearest}, the nearest type that works")
    with_efa = [row.name for row in _ROWS if row.family == family]
    # A suggestion must work as it is (no type that accept_unverified_layout alone permits) and be near.
    verified = [row.name for row in _ROWS if row.layout_verified]
    if with_efa and family.startswith("g") and size in _SMALL_SIZES:
        raise SettingsError(
            f"{asked_by} {name} has no EFA; the types of the family {family} with EFA are {', '.join(with_efa)}: "
            f"use {next((n for n in with_efa if n in verified), verified[0])}"
        )
    close = difflib.get_close_matches(name, [n for n in with_efa if n in verified] or verified, n=1)
    hint = f"; the nearest known name is {close[0]}" if close else ""
    raise SettingsError(
        f"{asked_by} must be an EC2 GPU instance type with EFA, got {name!r}{hint}; use one of {', '.join(verified)}"
    )


# CPU families for system nodes: GiB a vCPU by family letter; x86_64 only, since the Ray head runs the x86_64 image.
_GIB_PER_VCPU = {"c": 2, "m": 4, "r": 8}
_SIZE_VCPUS = {"large": 2, "xlarge": 4}


@dataclass(frozen=True, kw_only=True)
class SystemInstanceType:
    """A CPU type of the c, m or r families (x86_64) for the system nodes."""

    name: str
    vcpus: int
    memory_gib: int

    @property
    def allocatable_cpu_millis(self) -> int:
        return allocatable_cpu_millis(self.vcpus)

    @property
    def allocatable_memory_mib(self) -> int:
        # EKS caps pods at 110 on types up to 30 vCPU and 250 above when max pods is computed for prefix delegation;
        # ENI-based limits of these families stay below 240 (https://github.com/awslabs/amazon-eks-ami eni-max-pods).
        return allocatable_memory_mib(self.memory_gib, max_pods=60 if self.vcpus <= 8 else 240)


def get_system_instance_type(name: str) -> SystemInstanceType:
    """Facts of a system node's type, derived from the regular naming of the c, m and r families.

    Raises SettingsError for other families, Graviton (arm64) and sizes that do not exist.
    """
    family, _, size = name.partition(".")
    letter, generation, suffix = family[:1], family[1:2], family[2:]
    if letter not in _GIB_PER_VCPU or not generation.isdigit() or int(generation) < 5:
        raise SettingsError(
            f"system_instance_type must be of the c, m or r families from generation 5, got {name!r}; for example m7i.xlarge"
        )
    if "g" in suffix:
        raise SettingsError(
            f"system_instance_type {name} is an arm64 host and the Ray head runs the x86_64 image; for example m7i.xlarge"
        )
    vcpus = _SIZE_VCPUS.get(size)
    if vcpus is None and size.endswith("xlarge") and size[: -len("xlarge")].isdigit():
        vcpus = 4 * int(size[: -len("xlarge")])
    if not vcpus or vcpus > 192:
        raise SettingsError(f"system_instance_type {name}: unknown size {size!r}; for example m7i.xlarge or m7i.2xlarge")
    return SystemInstanceType(name=name, vcpus=vcpus, memory_gib=vcpus * _GIB_PER_VCPU[letter])
