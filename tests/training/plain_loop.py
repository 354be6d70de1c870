"""Training as a plain loop: one process, no FSDP, whole batches, whole logits, torch's own cross entropy, clipping and AdamW."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from tests.training.job_ranks import settings_for


@dataclass
class Plain:
    """By step (from 1): the loss, the gradient's norm before clipping, and the held-out loss where it was evaluated."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    held_out: dict[int, float] = field(default_factory=dict)


def train_plainly(flags: dict[str, Any], *, steps: int, global_batch: int, name: str = "plain") -> Plain:
    """The run of these flags, which the job must equal at any number of ranks and any cut of the batch."""
    from fsdp_job import weights
    from fsdp_job.config import JobConfig
    from fsdp_job.data import Position, PreparedData, open_batches
    from fsdp_job.model import CausalLMLoss, build

    settings = settings_for(flags, world=1, name=name)
    cfg, prepared = JobConfig(**settings["config"]), PreparedData.from_json(settings["prepared"])
    built = build(cfg)
    weights.materialize(CausalLMLoss(built.model), built, torch.device("cpu"))
    weights.initialize(built, torch.device("cpu"), seed=cfg.seed)
    model: Any = built.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.learning_rate)
    out = Plain()
    with open_batches(
        prepared, split="train", rank=0, world_size=1, micro_batch=global_batch, accumulate=1, position=Position(0, 0)
    ) as batches:  # fmt: skip
        for step in range(1, steps + 1):
            loss = _loss(model, next(batches)[0])
            loss.backward()
            out.norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.max_grad_norm)))
            optimizer.step()
            optimizer.zero_grad()
            out.losses.append(loss.item())
            if cfg.eval_every and (step % cfg.eval_every == 0 or step == steps):
                out.held_out[step] = held_out_loss(model, prepared)
    return out


def _loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logits = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten())


@torch.no_grad()
def held_out_loss(model: Any, prepared: Any) -> float:
    """Mean over all counted tokens of all held-out sequences, in one batch."""
    from fsdp_job.data import Position, open_batches

    with open_batches(
        prepared, split="eval", rank=0, world_size=1, micro_batch=prepared.n_eval, accumulate=1, position=Position(0, 0)
    ) as batches:  # fmt: skip
        model.eval()
        loss = _loss(model, next(batches)[0]).item()
        model.train()
    return loss
