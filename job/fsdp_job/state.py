"""All state of a run that must survive it: what goes into a checkpoint's tensors and what into its marker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fsdp_job.data import Position
from fsdp_job.optim import ShardedAdamW
from fsdp_job.ranks import Ranks


@dataclass
class Progress:
    """Where a run stands: ``step`` optimizer steps done, ``position`` the next sequence, ``loss`` of the last step."""

    step: int = 0
    position: Position = field(default_factory=lambda: Position(0, 0))
    tokens: int = 0
    loss: float | None = None

    def to_json(self) -> dict[str, Any]:
        place = {"epoch": self.position.epoch, "index": self.position.index}
        return {"step": self.step, "position": place, "tokens": self.tokens, "loss": self.loss}

    @staticmethod
    def from_json(value: dict[str, Any]) -> Progress:
        place = Position(int(value["position"]["epoch"]), int(value["position"]["index"]))
        return Progress(step=int(value["step"]), position=place, tokens=int(value["tokens"]), loss=value["loss"])


def tensors_of(model: nn.Module, optimizer: ShardedAdamW, ranks: Ranks) -> dict[str, Any]:
    """Parameters, persistent buffers, AdamW's moments and this rank's random state, by name; loading fills them in place.

    Named by the model's own parameter names, so that any sharding and world size reads them. Tied parameters appear once.
    """
    out: dict[str, Any] = {}
    for number, (name, parameter) in enumerate(model.named_parameters()):
        out[f"model.{name}"] = parameter.data
        out |= {f"optim.{kind}.{name}": moment for kind, moment in optimizer.moments(number).items()}
    out["optim.step"] = optimizer.step_count
    persistent = model.state_dict().keys()
    out |= {f"model.{name}": buffer for name, buffer in model.named_buffers() if name in persistent}
    place = f"{ranks.world_size}.{ranks.rank}"
    out[f"rng.cpu.{place}"] = torch.get_rng_state()
    if ranks.device.type == "cuda":
        out[f"rng.cuda.{place}"] = torch.cuda.get_rng_state(ranks.device)
    return out


def apply_loaded(tensors: dict[str, Any], optimizer: ShardedAdamW, ranks: Ranks) -> None:
    """After loading in place: give every parameter the step count, and the random generators their state."""
    optimizer.set_step_count(tensors["optim.step"])
    place = f"{ranks.world_size}.{ranks.rank}"
    torch.set_rng_state(tensors[f"rng.cpu.{place}"])
    if ranks.device.type == "cuda":
        torch.cuda.set_rng_state(tensors[f"rng.cuda.{place}"], ranks.device)


def seed_everything(seed: int, ranks: Ranks) -> None:
    """Random state of a fresh start: dropout differs by rank, all else is derived from the seed without this state."""
    torch.manual_seed(seed * 1_000_003 + ranks.rank)
