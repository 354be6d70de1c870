"""A run's end beside the deployment's spending limit: asked about before the run and while it waits, told while it runs."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from eks_ray_train.errors import EksRayTrainError, UsageError

if TYPE_CHECKING:
    from eks_ray_train.settings import Settings

    from .run_record import RunRecord

OUTPUT = "SpendingLimitAt"
# The job's own defaults (job/fsdp_job/config.py; the library never imports the job, a test compares them).
JOB_DEFAULTS = {"model_id": "Qwen/Qwen2.5-1.5B", "steps": "5", "seq_len": "128", "batch_size": "1", "accumulate": "1"}
# What a limit that is armed anew should have beyond the run itself: starting, and the drain before the nodes go.
SPARE = timedelta(minutes=30)
OBSERVED_STEPS = 20  # the newest ones, by their median
LEAST_STEPS = 3
OBSERVE_EVERY_S = 10.0
_LONGEST_S = 10 * 365 * 86_400.0  # what a date can still be moved by, whatever --steps says


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """How long a run takes: ``steps`` of ``step_s`` seconds, as ``plan`` predicts for ``model``."""

    steps: int
    step_s: float
    model: str

    @property
    def length(self) -> timedelta:
        return _span(self.steps * self.step_s)

    def __str__(self) -> str:
        return f"{self.steps:,} steps x {self.step_s:.3g} s as planned for {self.model}"


def estimate(job_args: Sequence[str], settings: Settings, *, tcp: bool) -> Estimate:
    """The plan's prediction for the job's flags on the declared nodes.

    Raises UsageError where it has none: a model or chip whose figures are not shipped, flags that the job would refuse too.
    """
    from eks_ray_train.instances import get_instance_type
    from eks_ray_train.plan import Run, cluster_of, find_model, predict

    from .runs import flag_value, nodes_used

    def flag(name: str) -> str | None:
        return flag_value(job_args, f"--{name}") or JOB_DEFAULTS.get(name)

    def number(name: str) -> int:
        text = str(flag(name))
        if not text.isdigit():
            raise UsageError(f"--{name} {text} is no whole number")
        return int(text)

    def choice(name: str, default: str, allowed: Sequence[str]) -> str:
        text = flag(name) or default
        if text not in allowed:
            raise UsageError(f"--{name} must be one of {', '.join(allowed)}, got {text}")
        return text

    instance = get_instance_type(settings.gpu_instance_type, accept_unverified_layout=True)
    shape = find_model(str(flag("model_config") or flag("model_id")))
    run = Run(
        shape=shape, seq_len=number("seq_len"), batch_size=number("batch_size"), accumulate=number("accumulate"),
        sharding=choice("sharding", "auto", ("full", "hybrid", "auto")),  # type: ignore[arg-type]
        checkpointing=choice("activation_checkpointing", "none", ("none", "selective", "full")),  # type: ignore[arg-type]
        precision=choice("precision", "bf16", ("bf16", "fp32", "fp8")),  # type: ignore[arg-type]
    )  # fmt: skip
    nodes = nodes_used(job_args, settings.gpu_node_count, instance.gpus)
    predicted = predict(run, cluster_of(instance, nodes, "tcp" if tcp else "efa"))
    return Estimate(steps=number("steps"), step_s=predicted.time.total, model=shape.name)


def read_limit(settings: Settings) -> datetime | None:
    """When the GPU nodes go to zero, by the training stack's output; None where it has no limit or there is no such stack.

    Raises EksRayTrainError where CloudFormation does not say.
    """
    from eks_ray_train.capacity.model import parse_time

    from .aws_session import aws_errors
    from .eks_access import client_config, make_session
    from .stack_state import TRAINING, read_stack

    session, region = make_session(settings.region)
    with aws_errors("cloudformation:DescribeStacks"):
        stack = read_stack(session.client("cloudformation", region_name=region, config=client_config()), TRAINING)
    text = stack.outputs.get(OUTPUT, "") if stack else ""
    try:
        return parse_time(text)
    except ValueError:
        raise EksRayTrainError(f"{TRAINING}'s output {OUTPUT} is no time: {text!r}") from None


class LimitCheck:
    """Asks once, where the run would end after the nodes are taken away; knows nothing where it is not asked to ``begin``.

    ``ask``: (question) -> returns where the user agrees, raises UsageError else. Called at every look of the wait: what fits
    at first may not fit after half an hour of waiting.
    """

    def __init__(
        self,
        job_args: Sequence[str],
        *,
        ask: Callable[[str], None],
        tcp: bool = False,
        tell: TextIO | None = None,
        cdk_json: Path = Path("cdk.json"),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._job_args, self._tcp, self._cdk_json = job_args, tcp, cdk_json
        self._ask, self._tell, self._now = ask, tell or sys.stderr, now
        self._limit: datetime | None = None
        self._estimate: Estimate | None = None
        self._nodes = 0
        self._begun = self._agreed = self._told = False
        self._observed_at = 0.0

    def __call__(self) -> bool:
        """True where somebody was asked (and agreed). Raises UsageError (exit code 2) where not."""
        if not self._begun:
            self._begin()
        if self._limit is None or self._agreed:
            return False
        question = self._question(self._limit)
        if question is None:
            return False
        self._ask(question)
        self._agreed = True
        return True

    def observe(self, record: RunRecord) -> str | None:
        """What to tell, once, where the steps so far put the end after the limit."""
        if self._limit is None or self._told or time.monotonic() - self._observed_at < OBSERVE_EVERY_S:
            return None
        step_s, total = observed_step_s(record), record.total_steps
        if step_s is None or total is None:
            return None
        self._observed_at = time.monotonic()
        left = _span((total - record.last["step"]) * step_s)
        if self._now() + left <= self._drain(self._limit):
            return None
        self._told = True
        return (
            f"at {step_s:.3g} s a step, as the last steps took, this run ends about {_utc(self._now() + left)}, but {self._ends(self._limit)}. "
            + self._remedy(left)
        )

    # ---- inside ----------------------------------------------------------------------------------------------------
    def _begin(self) -> None:
        from eks_ray_train.settings import load_settings

        self._begun = True
        settings = load_settings(self._cdk_json)
        self._nodes = settings.gpu_node_count
        try:
            self._limit = read_limit(settings)
        except EksRayTrainError as error:
            print(
                f"the spending limit is not known, so the run is not compared with it: {error}",
                file=self._tell,
                flush=True,
            )
        if self._limit is None:
            return
        try:
            self._estimate = estimate(self._job_args, settings, tcp=self._tcp)
            end = f"the run ends about {_utc(self._now() + self._estimate.length)} ({self._estimate})"
        except UsageError as error:
            end = f"how long the run takes is not known ({str(error).partition(';')[0]})"
        print(f"spending limit: {self._ends(self._limit)}; {end}", file=self._tell, flush=True)

    def _question(self, limit: datetime) -> str | None:
        now = self._now()
        length = self._estimate.length if self._estimate else timedelta(0)
        if now >= limit:
            return f"the spending limit stopped the GPU nodes at {_utc(limit)}. {self._remedy(length)}"
        if now + length <= self._drain(limit):
            return None
        about = f" ({self._estimate})" if self._estimate else ""
        return f"this run would end about {_utc(now + length)}{about}, but {self._ends(limit)}. {self._remedy(length)}"

    def _remedy(self, length: timedelta) -> str:
        hours = max(1, math.ceil((length + SPARE) / timedelta(hours=1)))
        return (
            f"`eks-ray-train scale {self._nodes} --hours {hours}` counts the limit anew; a run with --checkpoint-every and a --run-name "
            "goes on later from its last checkpoint."
        )

    @staticmethod
    def _drain(limit: datetime) -> datetime:
        from eks_ray_train.capacity.limit import DRAIN_BEFORE

        return limit - DRAIN_BEFORE

    def _ends(self, limit: datetime) -> str:
        return f"the GPU nodes are drained at {_utc(self._drain(limit))} and gone at {_utc(limit)}"


def observed_step_s(record: RunRecord) -> float | None:
    """Median seconds of the newest steps after the warm-up; None before there are some."""
    from .run_figures import number, warm

    warm_up = number(record.config.get("warmup_steps")) or 0
    times = [
        value
        for step in warm(record)[-OBSERVED_STEPS:]
        if step["step"] > warm_up and (value := number(step.get("step_s"))) is not None
    ]
    return statistics.median(times) if len(times) >= LEAST_STEPS else None


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, _LONGEST_S))


def _utc(when: datetime) -> str:
    return when.strftime("%Y-%m-%d %H:%M UTC")
