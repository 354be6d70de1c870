"""The answer for one run on one cluster, comparisons between clusters, and what to change when the network is the limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .cost import Cost, run_cost
from .memory import Memory, peak_memory
from .run import Cluster, Run
from .throughput import StepTime, step_time
from .traffic import Traffic, step_traffic

NETWORK_LIMIT = 0.25
"""Waiting for traffic, or for the host, above this share of a step makes it the limit that is warned of."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What ``plan`` says of one run on one cluster; times in seconds, memory in GiB, traffic in bytes."""

    run: Run
    cluster: Cluster
    sharding: str
    memory: Memory
    traffic: Traffic
    time: StepTime
    cost: Cost

    @property
    def supported(self) -> bool:
        """Whether the chip can compute in the precision asked for (fp8 from compute capability 8.9 on)."""
        return self.run.precision != "fp8" or self.cluster.chip.fp8_gain is not None

    @property
    def fits(self) -> bool:
        """The run can be done there: its precision exists and its memory suffices."""
        return self.supported and self.memory.needed_gib <= self.cluster.gpu_memory_gib

    @property
    def tokens_per_step(self) -> int:
        return self.run.tokens_per_step(self.cluster.gpus)

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second of the whole cluster."""
        return self.tokens_per_step / self.time.total

    @property
    def tflops_per_gpu(self) -> float:
        """Model TFLOP/s of one GPU (recomputation not counted)."""
        flops = self.run.shape.flops_per_token(self.run.seq_len)
        return self.tokens_per_s / self.cluster.gpus * flops / 1e12

    @property
    def mfu(self) -> float:
        """Share of the chip's dense bf16 peak."""
        return self.tflops_per_gpu / self.cluster.chip.peak_tflops

    @property
    def network_is_limit(self) -> bool:
        """Traffic between GPUs (between nodes, or over PCIe within one) holds the step up."""
        return self.time.network_share > NETWORK_LIMIT

    @property
    def host_is_limit(self) -> bool:
        """The GPU waits for Python and kernel launches: the micro-batch is too small."""
        return self.time.host / self.time.total > NETWORK_LIMIT


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One change and what it would give: ``gain`` is tokens a second over those without the change."""

    change: str
    gain: float
    prediction: Prediction


def predict(run: Run, cluster: Cluster, *, tokens: float | None = None, steps: int | None = None) -> Prediction:
    """Memory, traffic, time and money of ``run`` on ``cluster``, for ``tokens`` in all or ``steps`` (default: one step)."""
    traffic = step_traffic(run, cluster)
    time = step_time(run, cluster, traffic)
    per_step = run.tokens_per_step(cluster.gpus)
    total = tokens if tokens is not None else float((steps or 1) * per_step)
    seconds = total / per_step * time.total
    return Prediction(
        run=run,
        cluster=cluster,
        sharding=cluster.resolve(run),
        memory=peak_memory(run, cluster),
        traffic=traffic,
        time=time,
        cost=run_cost(gpu_usd_per_hour=cluster.usd_per_hour, nodes=cluster.nodes, seconds=seconds, tokens=total),
    )


def advise(prediction: Prediction, others: Iterable[Cluster] = ()) -> list[Advice]:
    """Changes that help a network-bound run, best first; empty where the network is not the limit.

    Tried: hybrid sharding, accumulation, a larger batch, longer sequences, EFA instead of TCP, another cluster among
    ``others``. Only what fits memory and gains at least 5 % is named; accumulation and batch change the global batch.
    """
    if not prediction.network_is_limit:
        return []
    run, cluster = prediction.run, prediction.cluster
    tries: list[tuple[str, Run, Cluster]] = []
    if prediction.sharding == "full" and cluster.nodes > 1 and cluster.gpus_per_node > 1:
        tries.append(("--sharding hybrid", replace(run, sharding="hybrid"), cluster))
    tries += [(f"--accumulate {n}", replace(run, accumulate=n), cluster) for n in (4, 16) if n > run.accumulate]
    tries += [
        (f"--batch-size {run.batch_size * n}", replace(run, batch_size=run.batch_size * n), cluster) for n in (4, 16)
    ]
    limit = run.shape.max_seq_len or 1 << 30
    for n in (4, 16):
        if run.seq_len * n <= limit:
            tries.append((f"--seq-len {run.seq_len * n}", replace(run, seq_len=run.seq_len * n), cluster))
    tries += [
        (f"--instance-type {other.argument or other.name}", run, other)
        for other in others
        if other.name != cluster.name
    ]
    found = []
    for change, new_run, new_cluster in tries:
        new = predict(new_run, new_cluster)
        gain = new.tokens_per_s / prediction.tokens_per_s
        if new.fits and gain >= 1.05:
            found.append(Advice(change=change, gain=gain, prediction=new))
    return sorted(found, key=lambda advice: -advice.gain)


def compare(
    run: Run, clusters: Iterable[Cluster], *, tokens: float | None = None, steps: int | None = None
) -> list[Prediction]:
    """One prediction a cluster, in the order given."""
    return [predict(run, cluster, tokens=tokens, steps=steps) for cluster in clusters]


def fastest(predictions: Iterable[Prediction]) -> Prediction | None:
    """Most tokens a second among those that fit."""
    return max((p for p in predictions if p.fits), key=lambda p: p.tokens_per_s, default=None)


def cheapest(predictions: Iterable[Prediction]) -> Prediction | None:
    """Least USD a token among those that fit and have a price."""
    priced = (p for p in predictions if p.fits and p.cost.usd_per_million_tokens is not None)
    return min(priced, key=lambda p: p.cost.usd_per_million_tokens or 0.0, default=None)
