"""A whole optimizer step recorded as one CUDA graph and replayed: what small batches need, where the host is slower than
the device (28 blocks of Python, hooks and about two thousand launches take over a tenth of a second; the GPU needs a third).

Recorded are the collectives, forward, backward, clipping and the update. Inputs, the token count and the learning rate lie in
tensors that stay in place. FSDP's buffers live in the graph's own memory between replays, and its copies must be those of ``copies.py``.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from fsdp_job.errors import JobError

MOST_FLOPS = 2e12
"""FLOPs of one block and micro-batch up to which a step is recorded: a GPU's 5 ms, as long as the host needs for a block."""

MOST_MEMORY = 0.5
"""Part of the GPU's memory that plain steps may take for a step to be recorded: the graph keeps its memory for itself."""

WARM_UP = 3
"""Steps run plainly first: compiled code, NCCL's connections and the allocator are settled then."""

Inputs = list[dict[str, torch.Tensor]]
Compute = Callable[[Inputs, torch.Tensor], torch.Tensor]


def host_bound(*, parameters: int, blocks: int, tokens: int) -> bool:
    """Whether a micro-batch of ``tokens`` is so small that the host would take longer than the device."""
    return 6.0 * parameters * tokens / max(1, blocks) <= MOST_FLOPS


class StepGraph:
    """Records ``compute(inputs, count)`` at the fourth step of one set of shapes and replays it from then on.

    Steps of other shapes run plainly (more documents than usual, say: their starts come in a tensor as long as many).
    """

    def __init__(self, root: torch.nn.Module) -> None:
        # NCCL would have all ranks register the buffers of recorded collectives together; ranks may differ in which of their
        # steps they replay.
        os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
        self._root = root
        self._graph: Any = None
        self._plain_steps = 0
        self._never = False
        self._inputs: Inputs = []
        self._count = torch.zeros(())
        self._values = torch.zeros(())

    def run(self, compute: Compute, inputs: Inputs, count: torch.Tensor) -> torch.Tensor:
        """The step's values, as ``compute`` gives them; of a replay they are in place until the next one."""
        if self._never or (self._graph and not self._fits(inputs)):
            return compute(inputs, count)
        if self._graph is None:
            if self._plain_steps < WARM_UP:
                self._plain_steps += 1
                last = self._plain_steps == WARM_UP
                return self._watched(compute, inputs, count) if last else compute(inputs, count)
            self._record(compute, inputs, count)
        for kept, batch in zip(self._inputs, inputs, strict=True):
            for name, value in batch.items():
                kept[name].copy_(value)
        self._count.copy_(count)
        self._graph.replay()
        return self._values

    def _watched(self, compute: Compute, inputs: Inputs, count: torch.Tensor) -> torch.Tensor:
        """A plain step that tells whether the next can be recorded: it must not wait for the device, nor need much memory."""
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                values = compute(inputs, count)
            finally:
                torch.cuda.set_sync_debug_mode(before)
        waits = [str(w.message) for w in seen if "synchronizing CUDA operation" in str(w.message)]
        device = values.device
        share = torch.cuda.max_memory_allocated(device) / torch.cuda.get_device_properties(device).total_memory
        self._never = bool(waits) or share > MOST_MEMORY
        return values

    def _fits(self, inputs: Inputs) -> bool:
        shapes = [{name: value.shape for name, value in batch.items()} for batch in inputs]
        return shapes == [{name: value.shape for name, value in batch.items()} for batch in self._inputs]

    def _record(self, compute: Compute, inputs: Inputs, count: torch.Tensor) -> None:
        self._inputs = [{name: value.clone() for name, value in batch.items()} for batch in inputs]
        self._count = count.clone()
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()  # the graph has memory of its own
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        assert stream != torch.cuda.default_stream(), "a graph can be recorded on a stream of its own only"
        # Other threads (NCCL's watchdog, the checkpoint's) may call CUDA meanwhile.
        try:
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._values = compute(self._inputs, self._count)
                for other in _recorded(self._root):
                    stream.wait_stream(other)
        except RuntimeError as error:
            raise JobError(
                f"this model's step cannot be recorded as a CUDA graph: {error}; use --no-compile"
            ) from error


def _recorded(root: torch.nn.Module) -> list[torch.cuda.Stream]:
    """FSDP's own streams that hold recorded work, which has to come back to the stream that is recorded."""
    if not isinstance(root, FSDPModule):
        return []
    context = root._get_fsdp_state()._comm_ctx
    names = ("all_gather_copy_in_stream", "all_gather_stream", "reduce_scatter_stream", "all_reduce_stream")
    found = []
    for name in names:
        if hasattr(context, name):
            with torch.cuda.stream(getattr(context, name)):
                if torch.cuda.is_current_stream_capturing():
                    found.append(getattr(context, name))
    return found
