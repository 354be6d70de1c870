"""Which precision a run computes in; weights, gradients' sums and the optimizer stay fp32 in all of them."""

from __future__ import annotations

import importlib.util

import torch
from torch import nn

from fsdp_job.errors import JobUsageError

FP8_ELEMENTS = 2**23
"""Least elements of a weight whose products are computed in fp8."""


def choose_precision(asked: str | None, device: torch.device) -> str:
    """``bf16``, ``fp32`` or ``fp8``; by default bf16 on CUDA and fp32 on the CPU. Raises JobUsageError where fp8 cannot be."""
    if asked is None:
        return "bf16" if device.type == "cuda" else "fp32"
    if asked == "fp8":
        problem = fp8_problem(device)
        if problem is not None:
            raise JobUsageError(problem)
    return asked


def use_float8(blocks: list[nn.Module]) -> int:
    """Let the blocks' matrix products compute in fp8 (torchao, one scale a tensor, chosen each step); returns how many.

    Weights stay what they are under the same names. Head and embedding stay bf16, and so do products whose weight has under
    ``FP8_ELEMENTS`` elements: casting their operands costs more than they gain (H200, Qwen2.5-1.5B: a step with all products in
    fp8 takes 3 % longer than one with the MLP's alone). Sizes that are no multiples of 16 cannot be in fp8. Source: https://github.com/pytorch/ao/tree/main/torchao/float8
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    changed = 0

    def wanted(module: nn.Module, _name: str) -> bool:
        nonlocal changed
        if not isinstance(module, nn.Linear):
            return False
        sizes = module.in_features, module.out_features
        fits = sizes[0] * sizes[1] >= FP8_ELEMENTS and all(size % 16 == 0 for size in sizes)
        changed += fits
        return fits

    for block in blocks:
        convert_to_float8_training(block, config=Float8LinearConfig.from_recipe_name("tensorwise"), module_filter_fn=wanted)
    return changed


def fp8_problem(device: torch.device) -> str | None:
    """Why fp8 cannot be used here, with the remedy; None where it can."""
    if device.type != "cuda":
        return "--precision fp8 needs an NVIDIA GPU of compute capability 8.9 or more, got a CPU; use --precision bf16 or fp32"
    capability = torch.cuda.get_device_capability(device)
    name = torch.cuda.get_device_name(device)
    if capability < (8, 9):
        have = ".".join(map(str, capability))
        return f"--precision fp8 needs compute capability 8.9 or more, {name} has {have}; use --precision bf16"
    if importlib.util.find_spec("torchao") is None:
        return (
            "--precision fp8 needs the package torchao on every node, which is not installed; add it with "
            """--runtime-env-json '{"pip": ["torchao"]}', or use --precision bf16"""
        )
    return None
