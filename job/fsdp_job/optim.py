"""AdamW on each rank's own shards, fp32 state, and the learning rate of a step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from fsdp_job.config import JobConfig


def local_of(tensor: Any) -> torch.Tensor:
    """This rank's shard of a DTensor (the same memory), or the tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class ShardedAdamW:
    """AdamW (betas 0.9, 0.999; decay 0.01, torch's defaults and the sample's), fused on CUDA.

    AdamW works element by element, so it runs on the plain local shards: through DTensor each call would first work out
    the sharding of several lists as long as the model has parameters, tens of milliseconds a step on the CPU. Moments are
    made at once, not at the first step: memory is known from the start, and a checkpoint has a place to go.
    """

    def __init__(self, parameters: list[nn.Parameter], cfg: JobConfig, device: torch.device) -> None:
        self.parameters = parameters
        self._local = [nn.Parameter(local_of(p.detach())) for p in parameters]
        fused = device.type == "cuda"
        # On CUDA the rate is a tensor, so that a recorded step (step_graph.py) reads the current one.
        self._rate = torch.zeros((), dtype=torch.float32, device=device) if fused else None
        rate: Any = cfg.learning_rate if self._rate is None else self._rate
        self._inner = torch.optim.AdamW(self._local, lr=rate, fused=fused, foreach=not fused, capturable=fused)
        for local in self._local:
            self._inner.state[local] = {
                "step": torch.zeros((), dtype=torch.float32, device=device if fused else "cpu"),
                "exp_avg": torch.zeros_like(local),
                "exp_avg_sq": torch.zeros_like(local),
            }

    @torch.no_grad()  # also spares each ``to_local`` its autograd function, together about 10 ms of host time a step
    def gradients(self) -> list[torch.Tensor]:
        """Local shards of the gradients that there are."""
        return [local_of(p.grad) for p in self.parameters if p.grad is not None]

    def set_rate(self, learning_rate: float) -> None:
        """The learning rate of the next ``step``."""
        if self._rate is not None:
            self._rate.fill_(learning_rate)
            return
        for group in self._inner.param_groups:
            group["lr"] = learning_rate

    @torch.no_grad()
    def step(self, shrink: torch.Tensor) -> None:
        """Update in place from the parameters' gradients times ``shrink`` (a device scalar: clipping); they are freed.

        The fused kernel scales the gradients while it reads them (its ``grad_scale`` divides), which spares a pass of
        read and write over all of them.
        """
        for local, parameter in zip(self._local, self.parameters, strict=True):
            local.grad = None if parameter.grad is None else local_of(parameter.grad)
        if self._rate is not None:
            self._inner.grad_scale = shrink.reciprocal()  # type: ignore[attr-defined]
        else:
            torch._foreach_mul_([local.grad for local in self._local if local.grad is not None], shrink)
        self._inner.step()
        for local, parameter in zip(self._local, self.parameters, strict=True):
            local.grad = parameter.grad = None

    def moments(self, number: int) -> dict[str, Any]:
        """``exp_avg`` and ``exp_avg_sq`` of parameter ``number``, sharded like it (the same memory)."""
        parameter = self.parameters[number].data
        state = self._inner.state[self._local[number]]
        return {name: _like(parameter, state[name]) for name in ("exp_avg", "exp_avg_sq")}

    @property
    def step_count(self) -> torch.Tensor:
        """Updates made so far, as the fp32 scalar that AdamW keeps."""
        return self._inner.state[self._local[0]]["step"]

    def set_step_count(self, value: torch.Tensor) -> None:
        """Give every parameter the step count that was loaded."""
        for state in self._inner.state.values():
            state["step"].copy_(value)


def _like(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    if not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape,
        stride=parameter.stride(),
    )  # fmt: skip


def learning_rate(cfg: JobConfig, step: int) -> float:
    """Learning rate of optimizer step ``step`` (from 1): linear warm-up, then constant or a cosine down to a tenth."""
    if step <= cfg.warmup_lr_steps:
        return cfg.learning_rate * step / cfg.warmup_lr_steps
    if cfg.schedule == "constant":
        return cfg.learning_rate
    span = max(1, cfg.steps - cfg.warmup_lr_steps)
    done = min(1.0, (step - cfg.warmup_lr_steps) / span)
    return cfg.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))
