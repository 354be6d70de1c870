"""Which precision a run computes in; weights, gradients' sums and the optimizer stay fp32 in all of them."""

from __future__ import annotations

import torch

from fsdp_job.errors import JobUsageError


def choose_precision(asked: str | None, device: torch.device) -> str:
    """``bf16`` or ``fp32``; by default bf16 on CUDA and fp32 on the CPU. Raises JobUsageError where the chip lacks it."""
    if asked is None:
        return "bf16" if device.type == "cuda" else "fp32"
    if asked == "fp8":
        raise JobUsageError(fp8_problem(device))
    return asked


def fp8_problem(device: torch.device) -> str:
    """Why fp8 cannot be used here, with the remedy."""
    if device.type != "cuda":
        return "--precision fp8 needs an NVIDIA GPU of compute capability 8.9 or more, got a CPU; use --precision bf16 or fp32"
    capability = torch.cuda.get_device_capability(device)
    name = torch.cuda.get_device_name(device)
    if capability < (8, 9):
        have = ".".join(map(str, capability))
        return f"--precision fp8 needs compute capability 8.9 or more, {name} has {have}; use --precision bf16"
    return f"--precision fp8 needs torchao on every node, which was not found beside {name}; use --precision bf16"
