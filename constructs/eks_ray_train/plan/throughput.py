"""Seconds of one optimizer step: work of the chip, traffic, what of it overlaps, and the host's own time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .hardware import HOST_BLOCK_S, HOST_GATHER_S, HOST_STEP_S, OPERAND_SHARE, OVERLAP_COST, PRODUCT_START_S
from .memory import CHUNK_LOGITS
from .run import Cluster, Run, ceil_div
from .traffic import Collective, Traffic, step_traffic

NARROW = 1024
"""Columns up to which the job joins a product with others of the same input."""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of one optimizer step. ``matmul`` to ``optimizer`` is the GPU's own work, ``network_exposed`` the part of
    ``network`` (all collectives' time) that the step waits for, ``host`` what the GPU waits for Python and launches."""

    matmul: float
    attention: float
    elementwise: float
    optimizer: float
    copies: float
    network: float
    network_exposed: float
    host: float

    @property
    def compute(self) -> float:
        return self.matmul + self.attention + self.elementwise + self.optimizer + self.copies

    @property
    def total(self) -> float:
        return self.compute + self.network_exposed + self.host

    @property
    def network_share(self) -> float:
        """Part of the step that is waiting for the network."""
        return self.network_exposed / self.total


def block_products(run: Run) -> Iterator[tuple[int, int]]:
    """(inner, outer) sizes of one block's matrix products of a token: queries, keys and values (one product where they are
    narrow: job/fsdp_job/fuse.py), output, MLP."""
    s = run.shape
    if s.kv_width <= NARROW and not run.in_fp8(s.hidden, s.query_width):
        yield s.hidden, s.query_width + 2 * s.kv_width
    else:
        yield s.hidden, s.query_width
        yield s.hidden, s.kv_width
        yield s.hidden, s.kv_width
    yield s.query_width, s.hidden
    for _ in range(s.mlp_matrices - 1):
        yield s.hidden, s.active_intermediate
    yield s.active_intermediate, s.hidden


def product_seconds(run: Run, cluster: Cluster, inner: int, outer: int, *, fp8: bool) -> float:
    """One product of a micro-batch: 2·tokens·inner·outer FLOPs at the chip's rate, plus half of its operands' way to memory
    and its start: loads and stores hide behind arithmetic only where the inner dimension is long (fit: hardware.py)."""
    chip, tokens, width = cluster.chip, run.micro_tokens, run.bytes.compute
    flops = chip.matmul_flops * ((chip.fp8_gain or 1.0) if fp8 else 1.0) / (8.0 if run.precision == "fp32" else 1.0)
    moved = width * (tokens * inner + inner * outer + tokens * outer)
    return 2.0 * tokens * inner * outer / flops + OPERAND_SHARE * moved / chip.memory_bytes_s + PRODUCT_START_S


def collective_seconds(collective: Collective, cluster: Cluster, messages: int) -> float:
    """Time of one kind of collective of a step: the slower of the links within a node and between nodes, and latency.

    ``messages``: calls a step (one a block and one for the root). Between nodes all groups share the node's rate.
    """
    if collective.ranks == 1:
        return 0.0
    within = collective.gpu_bytes / (cluster.intra_gb_s * 1e9) if collective.ranks > collective.nodes else 0.0
    across = collective.node_bytes / (cluster.inter_gb_s * 1e9)
    hops = collective.ranks - 1
    latency = cluster.inter_latency_s if collective.nodes > 1 else cluster.intra_latency_s
    return max(within, across) + messages * collective.times * latency * (1 + 0.1 * hops)


def _seconds(collectives: tuple[Collective, ...], cluster: Cluster, messages: int) -> float:
    """Time of a pass's collectives: those within nodes one after the other, those between nodes likewise, the two beside
    each other (FSDP2 runs the all-reduce between nodes on a stream of its own)."""
    within = sum(collective_seconds(c, cluster, messages) for c in collectives if c.nodes == 1)
    across = sum(collective_seconds(c, cluster, messages) for c in collectives if c.nodes > 1)
    return max(within, across)


def step_time(run: Run, cluster: Cluster, traffic: Traffic | None = None) -> StepTime:
    """Seconds of one optimizer step of the job with its fast options (compiled blocks, chunked loss, fused AdamW).

    Matrix products: forward once, backward twice. Attention: 2·q·S FLOPs forward and 2.5 times that backward (causal
    half). Element-wise elements a token and block, fused by the compiler: forward 20·h + 2·(q+kv) + 3·I, backward 30·h +
    2·(q+kv) + 5·I (the MLP's by count, the norms', residuals' and rotations' by the profile). Loss: one kernel
    that reads a chunk's logits and writes them, 3.4 passes as measured. Optimizer: 36 bytes a parameter of the shard (norm 4,
    AdamW 32, which clips as it reads). FSDP's own copies:
    gather into and out of its buffers, gradients cast for the reduction.
    Overlap: in each of the forward and the backward pass the longer of work and traffic counts, plus ``OVERLAP_COST`` of
    the shorter, which NCCL's kernels take from the chip and which the first and last blocks cannot hide.
    """
    s, size, chip = run.shape, run.bytes, cluster.chip
    traffic = traffic or step_traffic(run, cluster)
    tokens, micro = float(run.micro_tokens), run.accumulate
    shards = cluster.shards(run)
    products = list(block_products(run))
    product = sum(product_seconds(run, cluster, k, n, fp8=run.in_fp8(k, n)) for k, n in products)
    flops = 2.0 * tokens * run.seq_len * s.query_width
    attention = flops / chip.attention_flops(s.head_dim, run.seq_len, backward=False)
    attention_back = 2.5 * flops / chip.attention_flops(s.head_dim, run.seq_len, backward=True)
    rope = 2.0 * (s.query_width + s.kv_width)
    inner = float(s.active_intermediate)
    forward_bytes = tokens * size.compute * (20.0 * s.hidden + rope + s.mlp_matrices * inner)
    backward_bytes = tokens * size.compute * (30.0 * s.hidden + rope + (2 * s.mlp_matrices - 1) * inner)
    # Casts: each fp8 product's two operands and its gradient are read in bf16 and written in fp8, and transposed copies made.
    casts = 5.0 * tokens * sum(k + n for k, n in products if run.in_fp8(k, n))
    forward_bytes, backward_bytes = forward_bytes + casts / 3, backward_bytes + casts * 2 / 3
    again = {"none": 0.0, "selective": 0.0, "full": 1.0}[run.checkpointing]
    again_bytes = {"none": 0.0, "selective": 0.7, "full": 1.0}[run.checkpointing]
    chunks = ceil_div(int(tokens) * s.vocab, CHUNK_LOGITS)
    head = 3 * product_seconds(run, cluster, s.hidden, s.vocab, fp8=False)
    head_bytes = 3.4 * tokens * s.vocab * size.compute + (8.0 * chunks + 14.0) * s.vocab * s.hidden
    matmul_forward = s.layers * product + head
    matmul_backward = s.layers * product * (2 + again)
    attention_forward, attention_backward = s.layers * attention, s.layers * (attention_back + again * attention)
    element_forward = (s.layers * forward_bytes + head_bytes) / chip.memory_bytes_s
    element_backward = s.layers * (backward_bytes + again_bytes * forward_bytes) / chip.memory_bytes_s
    gather = s.parameters * ((size.weight + size.compute) / shards + 2.0 * size.compute) / chip.copy_bytes_s
    gather_again = 0.0 if cluster.keeps_gathered(run) else gather
    reduce = s.parameters * (size.compute + size.reduce + 2.0 * size.reduce / shards) / chip.copy_bytes_s
    optimizer = (
        s.parameters / shards * (size.weight * 2 + size.optimizer * 2 + size.gradient * 3) / chip.optimizer_bytes_s
    )
    messages = s.layers + 1
    net_forward = _seconds(traffic.forward, cluster, messages)
    net_backward = _seconds(traffic.backward, cluster, messages)
    work_forward = micro * (matmul_forward + attention_forward + element_forward + gather)
    work_backward = micro * (matmul_backward + attention_backward + element_backward + gather_again + reduce)
    step_forward = max(work_forward, net_forward) + OVERLAP_COST * min(work_forward, net_forward)
    step_backward = max(work_backward, net_backward) + OVERLAP_COST * min(work_backward, net_backward)
    exposed = step_forward - work_forward + step_backward - work_backward
    busy = step_forward + step_backward + optimizer
    host = micro * s.layers * (HOST_BLOCK_S + (0.0 if cluster.keeps_gathered(run) else HOST_GATHER_S)) + HOST_STEP_S
    return StepTime(
        matmul=micro * (matmul_forward + matmul_backward),
        attention=micro * (attention_forward + attention_backward),
        elementwise=micro * (element_forward + element_backward),
        copies=micro * (gather + gather_again + reduce),
        optimizer=optimizer,
        network=net_forward + net_backward,
        network_exposed=exposed,
        host=0.0 if run.recorded else max(0.0, host - busy),
    )
