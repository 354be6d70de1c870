"""Bytes that one optimizer step moves between GPUs and between nodes, by collective."""

from __future__ import annotations

from dataclasses import dataclass

from .run import Backend, Cluster, Run


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One kind of collective of a step: ``size`` bytes of the whole tensor(s), ``ranks`` in a group that span ``nodes``
    nodes, ``groups`` of them at a time on a node's edge, ``times`` a step."""

    kind: str
    size: float
    ranks: int
    nodes: int
    groups: int = 1
    times: float = 1.0
    backend: Backend = "nccl"

    @property
    def gpu_bytes(self) -> float:
        """Bytes that one GPU sends in a step.

        Ring all-gather and reduce-scatter: size·(n−1)/n; ring all-reduce: twice that. Gloo's reduce-scatter moves what an
        all-reduce moves. Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md; gloo: counted on an
        interface between two nodes of four ranks with torch 2.13 (1.754 parameter sizes against 0.875 for a ring).
        """
        if self.ranks == 1:
            return 0.0
        factor = (self.ranks - 1) / self.ranks
        if self.kind == "all-reduce" or (self.kind == "reduce-scatter" and self.backend == "gloo"):
            factor *= 2
        return self.size * factor * self.times

    @property
    def node_bytes(self) -> float:
        """Bytes that one node sends to other nodes in a step.

        A ring through all ranks leaves each node once, so a node sends what one GPU sends, for each group that crosses.
        """
        return self.gpu_bytes * self.groups if self.nodes > 1 else 0.0


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """All collectives of one optimizer step, forward and backward apart (overlap differs)."""

    forward: tuple[Collective, ...]
    backward: tuple[Collective, ...]

    @property
    def gpu_bytes(self) -> float:
        """Bytes that one GPU sends a step."""
        return sum(c.gpu_bytes for c in (*self.forward, *self.backward))

    @property
    def node_bytes(self) -> float:
        """Bytes that one node sends to other nodes a step."""
        return sum(c.node_bytes for c in (*self.forward, *self.backward))

    def by_kind(self) -> dict[str, float]:
        """Bytes between nodes a step and node, by collective."""
        out: dict[str, float] = {}
        for c in (*self.forward, *self.backward):
            out[c.kind] = out.get(c.kind, 0.0) + c.node_bytes
        return out


def step_traffic(run: Run, cluster: Cluster) -> Traffic:
    """The collectives of one optimizer step of FSDP2 as the job sets it up.

    Each micro-batch gathers every block's weights before its forward and again before its backward pass (once where the
    job keeps them, ``cluster.keeps_gathered``), and the root's (embeddings, head) once: it is not resharded in between. Gradients are reduce-scattered each micro-batch
    within a node; across nodes only at the last one (full: set_requires_gradient_sync; hybrid: one all-reduce of each shard
    between nodes). Source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """
    shape, size = run.shape, run.bytes
    blocks, root = shape.layers * shape.block_parameters, shape.root_parameters
    hybrid = cluster.resolve(run) == "hybrid"
    ranks = cluster.gpus_per_node if hybrid else cluster.gpus
    span = 1 if hybrid else cluster.nodes
    micro = float(run.accumulate)
    reduces = micro if span == 1 else 1.0

    def collective(kind: str, bytes_: float, times: float) -> Collective:
        return Collective(kind=kind, size=bytes_, ranks=ranks, nodes=span, times=times, backend=run.backend)

    forward = (collective("all-gather", (blocks + root) * size.compute, micro),)
    again = 0.0 if cluster.keeps_gathered(run) else micro
    backward: tuple[Collective, ...] = (
        collective("all-gather", blocks * size.compute, again),
        collective("reduce-scatter", shape.parameters * size.reduce, reduces),
    )
    if hybrid and cluster.nodes > 1:
        shard = shape.parameters * size.reduce / cluster.gpus_per_node
        across = Collective(
            kind="all-reduce", size=shard, ranks=cluster.nodes, nodes=cluster.nodes, groups=cluster.gpus_per_node,
            backend=run.backend,
        )  # fmt: skip
        backward = (*backward, across)
    return Traffic(forward=forward, backward=backward)
