"""The loop: steps until the end, with events, checkpoints, evaluation, and the checks that stop it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsdp_job.checkpoint import Checkpointer, SaveResult
from fsdp_job.config import BatchPlan, JobConfig
from fsdp_job.data import Position, PreparedData, open_batches
from fsdp_job.errors import CheckpointError, NonFiniteLossError
from fsdp_job.events import Sink
from fsdp_job.metrics import Board, Speed, peak_memory_gib
from fsdp_job.optim import learning_rate
from fsdp_job.profiling import Profile
from fsdp_job.ranks import Ranks, broadcast_from_first
from fsdp_job.room import Room
from fsdp_job.state import Progress
from fsdp_job.step import Moment, Numbers, Stepper
from fsdp_job.watch import SLOW_PHASES, Watch

PREEMPTION_POLL_S = 10.0
"""How often the ranks ask Ray whether a node is going away (a barrier of 2–8 ms each time)."""


FIRST_POLL = 5
"""The step of an attempt after which it is known how many steps that time is."""

CHECKPOINTED_FILE = "EKS_RAY_TRAIN_CHECKPOINTED_FILE"
"""Environment variable of the pods: the file that the node's stop hook waits for before it lets the node go."""


def tell_hook() -> None:
    """After a notice: the checkpoint is complete, the node may go."""
    path = os.environ.get(CHECKPOINTED_FILE)
    if path and Path(path).parent.is_dir():
        Path(path).touch()


@dataclass(kw_only=True)
class Loop:
    """One attempt's training from ``progress`` on. All ranks run the same steps, saves and evaluations."""

    cfg: JobConfig
    plan: BatchPlan
    prepared: PreparedData
    ranks: Ranks
    stepper: Stepper
    progress: Progress
    checkpointer: Checkpointer | None
    save_state: Callable[[], dict[str, Any]]
    facts: dict[str, Any]
    sink: Sink
    watch: Watch
    speed: Speed
    board: Board | None
    profile: Profile
    preempted: Callable[[], bool]
    room: Room | None = None
    """Where fewer ranks run than were asked for and checkpoints are written; on every rank, though only rank 0 asks."""
    saved_step: int | None = None
    """The step of which this run's own line has a checkpoint already (not where it began from another's)."""
    grown_to: int | None = None
    """Set where the attempt ended, with its checkpoint complete, for more ranks to go on."""

    def __post_init__(self) -> None:
        self._waiting: tuple[int, Position, float, Numbers] | None = None
        self._last = Moment(self.ranks.device)
        self._timed: list[float] = []
        self._saved_step = self.saved_step
        self._noticed = False
        self._poll_every = FIRST_POLL
        self._last_seconds = PREEMPTION_POLL_S

    def run(self) -> None:
        """Train to ``cfg.steps``, or to a checkpoint after which more ranks can go on; it is complete when this returns."""
        cfg = self.cfg
        batches = open_batches(
            self.prepared, split="train", rank=self.ranks.rank, world_size=self.ranks.world_size,
            micro_batch=self.plan.micro_batch, accumulate=self.plan.accumulate, position=self.progress.position,
            prefetch=4, pin_memory=self.ranks.device.type == "cuda",
        )  # fmt: skip
        begun = self.progress.step
        if self.checkpointer is not None and self.cfg.checkpoint_every:
            self.checkpointer.prepare(self.save_state())
        self._last = Moment(self.ranks.device)
        try:
            for step in range(begun + 1, cfg.steps + 1):
                self.watch.beat(step, "data")
                micro_batches = next(batches)
                self.watch.beat(step, "step", allow=3.0 if step - begun <= 2 else 1.0)
                self.profile.before(step - begun)
                numbers = self.stepper.train(micro_batches, learning_rate(cfg, step))
                self._settle()
                self._waiting = (step, batches.position, batches.data_wait_s, numbers)
                self._between_steps(step, step - begun)
                if self.grown_to is not None:
                    return
        finally:
            batches.close()
        self._settle()
        self._finish()

    def _between_steps(self, step: int, done_here: int) -> None:
        cfg = self.cfg
        last = step == cfg.steps
        evaluate = bool(cfg.eval_every) and (step % cfg.eval_every == 0 or last)
        save = bool(cfg.checkpoint_every) and step % cfg.checkpoint_every == 0 and not last
        if done_here == FIRST_POLL:
            wished = max(1, min(1000, round(PREEMPTION_POLL_S / max(self._last_seconds, 1e-4))))
            self._poll_every = int(broadcast_from_first(wished))  # type: ignore[call-overload]
        notice = done_here % self._poll_every == 0 and not self._noticed and self.preempted()
        if evaluate or save or notice:
            self._settle(self._evaluate(step) if evaluate else None)
        if save or notice:
            self._save()
        if self.room is not None and not self._noticed and not notice:
            self._take_room(step, look=done_here % self._poll_every == 0, saved=save)
        if notice:
            self._noticed = True
            self._wait_for_save(step)
            tell_hook()

    def _settle(self, eval_loss: float | None = None) -> None:
        """Read the numbers of the step before (they have arrived while this one was queued), check and report them."""
        if self._waiting is None:
            return
        step, position, data_wait_s, numbers = self._waiting
        self._waiting = None
        loss, norm, count = numbers.read()
        seconds, self._last = numbers.end.seconds_since(self._last), numbers.end
        self._last_seconds = seconds
        if not (math.isfinite(loss) and math.isfinite(norm)):
            if self.checkpointer:
                self.checkpointer.wait()  # the one in flight may be the last good one
            good = self.checkpointer.last_good if self.checkpointer else None
            what = f"loss {loss}" if not math.isfinite(loss) else f"gradient norm {norm}"
            raise NonFiniteLossError(
                f"step {step}: {what} is not finite; the last good checkpoint is {good or 'none of this attempt'}; "
                "lower --learning-rate, or look at the data of this step"
            )
        self.progress.step, self.progress.position, self.progress.loss = step, position, loss
        self.progress.tokens += self.plan.global_batch * self.cfg.seq_len
        if step - self.facts["resumed_step"] > min(
            self.cfg.warmup_steps, self.cfg.steps - self.facts["resumed_step"] - 1
        ):
            self._timed.append(seconds)
        if self.ranks.is_first:
            self._report(step, loss, norm, count, seconds, data_wait_s, eval_loss)

    def _report(
        self,
        step: int,
        loss: float,
        norm: float,
        count: int,
        seconds: float,
        data_wait_s: float,
        eval_loss: float | None,
    ) -> None:
        fields: dict[str, Any] = {
            "step": step, "steps": self.cfg.steps, "loss": loss, "grad_norm": norm, "lr": learning_rate(self.cfg, step),
            "step_s": round(seconds, 6), **self.speed.fields(seconds), "counted_tokens": count,
            "tokens": self.progress.tokens, "peak_memory_gib": round(peak_memory_gib(self.ranks.device), 3),
            "data_wait_s": round(data_wait_s, 6), "epoch": self.progress.position.epoch,
        }  # fmt: skip
        if eval_loss is not None:
            fields["eval_loss"] = eval_loss
        self.sink.emit("step", **fields)
        if self.board is not None:
            self.board.add(step, fields)

    def _evaluate(self, step: int) -> float:
        self.watch.beat(step, "evaluation", allow=SLOW_PHASES)
        with open_batches(
            self.prepared, split="eval", rank=self.ranks.rank, world_size=self.ranks.world_size,
            micro_batch=self.plan.micro_batch, accumulate=1, position=Position(0, 0), prefetch=2,
            pin_memory=self.ranks.device.type == "cuda",
        ) as batches:  # fmt: skip
            return self.stepper.evaluate(batches)

    def _save(self) -> None:
        if self.checkpointer is None or self._saved_step == self.progress.step:
            return
        self.watch.beat(self.progress.step, "checkpoint", allow=SLOW_PHASES)
        self.checkpointer.save(self.progress.step, self.save_state(), {**self.facts, **self.progress.to_json()})
        self._saved_step = self.saved_step
        if self.board is not None:
            self.board.sync()

    def _wait_for_save(self, step: int) -> SaveResult | None:
        """What became of the save in flight; None where there is none."""
        if self.checkpointer is None:
            return None
        self.watch.beat(step, "checkpoint", allow=SLOW_PHASES)
        return self.checkpointer.wait()

    def _take_room(self, step: int, *, look: bool, saved: bool) -> None:
        assert self.room is not None
        if look and self.ranks.is_first:
            self.room.look()
        if not saved:
            return
        size = broadcast_from_first(self.room.size() if self.ranks.is_first else None)
        if size is None:
            return
        result = self._wait_for_save(step)
        if broadcast_from_first(result is None or result.committed):
            self.grown_to = int(size)  # type: ignore[call-overload]

    def _finish(self) -> None:
        """The final checkpoint, waited for; a run whose end cannot be saved has failed."""
        self._save()
        result = self._wait_for_save(self.progress.step)
        if result is not None and not result.committed:
            raise CheckpointError(f"the last checkpoint could not be saved to {result.path}: {result.error}")
        self.profile.finish()

    @property
    def mean_step_s(self) -> float | None:
        """Mean seconds of the steps after the warm-up."""
        return sum(self._timed) / len(self._timed) if self._timed else None
