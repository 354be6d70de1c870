"""AdamW with fp32 state in the parameters' own sharding, and the learning rate of a step."""

from __future__ import annotations

import math

import torch
from torch import nn

from fsdp_job.config import JobConfig


def make_optimizer(parameters: list[nn.Parameter], cfg: JobConfig, device: torch.device) -> torch.optim.AdamW:
    """AdamW (betas 0.9, 0.999; decay 0.01, torch's defaults and the sample's), fused on CUDA.

    Its moments are made at once, not at the first step: memory is known from the start, and a checkpoint has a place to go.
    """
    fused = device.type == "cuda"
    optimizer = torch.optim.AdamW(parameters, lr=cfg.learning_rate, fused=fused, foreach=not fused)
    for parameter in parameters:
        step = torch.zeros((), dtype=torch.float32, device=device if fused else "cpu")
        optimizer.state[parameter] = {
            "step": step, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter),
        }  # fmt: skip
    return optimizer


def learning_rate(cfg: JobConfig, step: int) -> float:
    """Learning rate of optimizer step ``step`` (from 1): linear warm-up, then constant or a cosine down to a tenth."""
    if step <= cfg.warmup_lr_steps:
        return cfg.learning_rate * step / cfg.warmup_lr_steps
    if cfg.schedule == "constant":
        return cfg.learning_rate
    span = max(1, cfg.steps - cfg.warmup_lr_steps)
    done = min(1.0, (step - cfg.warmup_lr_steps) / span)
    return cfg.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))
