"""What a run is: every flag as a typed field, checked at once, with the derived numbers as methods."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from fsdp_job.errors import JobUsageError

MOST = 2**31 - 1
"""Of any whole number: what is above is a typing mistake, and does not fit the 32 bits that some libraries keep it in."""
DEFAULT_MODEL = "Qwen/Qwen2.5-1.5B"


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """One run's settings, as typed by the user; ``resolved`` fills what depends on the cluster.

    Sizes: ``batch_size`` is in sequences per rank and micro-batch at the starting world size, ``seq_len`` in tokens.
    """

    model_id: str | None = None
    model_config: str | None = None
    steps: int = 5
    seq_len: int = 128
    batch_size: int = 1
    learning_rate: float = 2e-5
    num_workers: int | None = None
    warmup_steps: int = 3
    dataset: str = "random"
    tokenizer: str | None = None
    sharding: str = "auto"
    activation_checkpointing: str = "none"
    compile: bool | None = None
    precision: str | None = None
    accumulate: int = 1
    max_grad_norm: float = 1.0
    warmup_lr_steps: int = 0
    schedule: str = "constant"
    seed: int = 0
    checkpoint_every: int = 0
    keep: int = 3
    storage_path: str | None = None
    run_name: str | None = None
    resume: str = "auto"
    max_failures: int | None = None
    min_workers: int | None = None
    eval_every: int = 0
    eval_sequences: int = 0
    profile: int = 0
    export: str | None = None
    wait_seconds: float = 1800.0
    collective_timeout_seconds: float = 600.0

    def __post_init__(self) -> None:
        problems = [*self._number_problems(), *self._choice_problems()]
        if problems:
            raise JobUsageError("\n".join(problems))

    def _number_problems(self) -> list[str]:
        out: list[str] = []
        at_least_one = ("steps", "seq_len", "batch_size", "accumulate", "keep")
        at_least_zero = (
            "warmup_steps", "warmup_lr_steps", "checkpoint_every", "eval_every", "eval_sequences", "profile", "seed",
        )  # fmt: skip
        for low, names in ((1, at_least_one), (0, at_least_zero)):
            out += [self._low(name, low) for name in names if getattr(self, name) < low]
        for name, low in (("num_workers", 1), ("min_workers", 1), ("max_failures", 0)):
            value = getattr(self, name)
            if value is not None and value < low:
                out.append(self._low(name, low))
        for name in (*at_least_one, *at_least_zero, "num_workers", "min_workers", "max_failures"):
            value = getattr(self, name)
            if value is not None and value > MOST:
                out.append(f"{flag(name)} must be at most {MOST}, got {str(value)[:20]}…; leave it out to get {_default(name)}")
        for name in ("learning_rate", "max_grad_norm", "wait_seconds", "collective_timeout_seconds"):
            value = getattr(self, name)
            if not math.isfinite(value) or value <= 0:
                out.append(f"{flag(name)} must be a positive number, got {value}; leave it out to get {_default(name)}")
        if self.min_workers and self.num_workers and self.min_workers > self.num_workers:
            out.append(
                f"--min-workers must be at most --num-workers ({self.num_workers}), got {self.min_workers}; lower it or leave it out"
            )
        return out

    def _low(self, name: str, low: int) -> str:
        return f"{flag(name)} must be at least {low}, got {getattr(self, name)}; leave it out to get {_default(name)}"

    def _choice_problems(self) -> list[str]:
        out = []
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in allowed:
                out.append(f"{flag(name)} must be one of {', '.join(allowed)}, got {value!r}; leave it out to get {_default(name)}")
        if self.model_id and self.model_config:
            out.append("--model-id and --model-config exclude each other: give weights or an architecture, not both")
        for name in ("run_name",):
            value = getattr(self, name)
            if value is not None and (not value or "/" in value or value in (".", "..")):
                out.append(f"{flag(name)} must be a plain folder name, got {value!r}; leave / and .. out of it")
        return out

    # ---- derived numbers -------------------------------------------------------------------------------------------
    @property
    def effective_max_failures(self) -> int:
        """Restarts allowed: as asked; else 3 where checkpoints make a restart worthwhile, 0 where none is written."""
        if self.max_failures is not None:
            return self.max_failures
        return 3 if self.checkpoint_every else 0

    @property
    def effective_model_id(self) -> str | None:
        """The hub id or folder of the weights; None where ``--model-config`` trains from scratch."""
        return None if self.model_config else (self.model_id or DEFAULT_MODEL)

    def sequences_per_step(self, starting_world: int) -> int:
        """Sequences of one optimizer step of the whole job (the global batch)."""
        return self.batch_size * self.accumulate * starting_world

    def tokens_per_step(self, starting_world: int) -> int:
        """Tokens of one optimizer step of the whole job."""
        return self.sequences_per_step(starting_world) * self.seq_len

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the ``config`` event and the checkpoint."""
        return dataclasses.asdict(self)


CHOICES: dict[str, tuple[str, ...]] = {
    "sharding": ("full", "hybrid", "auto"),
    "activation_checkpointing": ("none", "selective", "full"),
    "precision": ("bf16", "fp32", "fp8"),
    "schedule": ("constant", "cosine"),
    "export": ("hf",),
}


def _default(field: str) -> str:
    """What a run gets without the flag, for messages."""
    value = getattr(JobConfig, field)
    return "what fits the cluster" if value is None else f"the default ({value})"


def flag(field: str) -> str:
    """The flag of a field: ``batch_size`` -> ``--batch-size``."""
    return "--" + field.replace("_", "-")


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """How the constant global batch is cut at one world size: ``micro_batch`` sequences × ``accumulate`` × world."""

    world_size: int
    micro_batch: int
    accumulate: int

    @property
    def global_batch(self) -> int:
        """Sequences of one optimizer step."""
        return self.world_size * self.micro_batch * self.accumulate


def plan_batch(*, global_batch: int, batch_size: int, world_size: int) -> BatchPlan:
    """Cut ``global_batch`` sequences for ``world_size`` ranks, micro-batches of ``batch_size`` where possible.

    Where ``batch_size`` does not divide a rank's share, the largest divisor below it is taken, so that memory never grows.
    Raises JobUsageError, naming the world sizes that work, where the ranks cannot have equal shares.
    """
    if global_batch % world_size:
        fits = [n for n in range(1, global_batch + 1) if global_batch % n == 0]
        near = sorted(fits, key=lambda n: (abs(n - world_size), n))[:6]
        raise JobUsageError(
            f"a global batch of {global_batch} sequences cannot be cut into equal shares for {world_size} ranks; "
            f"world sizes that divide it: {', '.join(map(str, sorted(near)))}; change --num-workers, --batch-size or --accumulate"
        )
    share = global_batch // world_size
    micro = next(m for m in range(min(batch_size, share), 0, -1) if share % m == 0)
    return BatchPlan(world_size=world_size, micro_batch=micro, accumulate=share // micro)
