"""One optimizer step and one evaluation: no waiting for the device inside."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from fsdp_job.attention import boundaries
from fsdp_job.loss import IGNORED
from fsdp_job.model import CausalLMLoss
from fsdp_job.optim import ShardedAdamW
from fsdp_job.ranks import Ranks
from fsdp_job.sharding import clipping, gradient_norm, set_accumulation
from fsdp_job.step_graph import StepGraph

MicroBatch = dict[str, torch.Tensor]


class Moment:
    """A point in the device's queue of work (on the CPU: in time); differences are what the steps really took."""

    def __init__(self, device: torch.device) -> None:
        self._event: Any = None
        self._time = time.perf_counter()
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record()

    def wait(self) -> None:
        """Until the device has come to this point."""
        if self._event is not None:
            self._event.synchronize()

    def seconds_since(self, earlier: Moment) -> float:
        """Seconds between two moments that the device has passed."""
        if self._event is not None and earlier._event is not None:
            return earlier._event.elapsed_time(self._event) / 1000
        return self._time - earlier._time


class Numbers:
    """A step's loss, gradient norm and token count on their way from the device; ``read`` waits for them."""

    def __init__(self, values: torch.Tensor) -> None:
        self.end = Moment(values.device)
        self._host = values
        if values.device.type == "cuda":
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self.end = Moment(values.device)

    def read(self) -> tuple[float, float, int]:
        """(mean loss per counted token, gradient norm before clipping, counted tokens), the same on all ranks."""
        self.end.wait()
        loss, norm, count = self._host.tolist()
        return loss, norm, int(count)


@dataclass
class Stepper:
    """What a step needs of the model, its mesh and its optimizer."""

    root: CausalLMLoss
    optimizer: ShardedAdamW
    mesh: DeviceMesh
    sharding: str
    ranks: Ranks
    max_grad_norm: float
    graph: StepGraph | None = None
    packed: bool = False

    def train(self, micro_batches: list[MicroBatch], learning_rate: float) -> Numbers:
        """Forward, backward, clip and update on this rank's micro-batches of one global batch.

        The loss is the mean over the counted tokens of the **global** batch, so that neither the number of ranks nor the
        cut into micro-batches changes it: their number is summed over the ranks on the device, and FSDP's average over
        ranks is undone by the factor ``world_size``.
        """
        device = self.ranks.device
        counted = sum(int((batch["labels"] != IGNORED).sum()) for batch in micro_batches)
        count = torch.tensor(counted, dtype=torch.int64)
        count = count.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else count
        inputs = [self._inputs(batch) for batch in micro_batches]
        self.optimizer.set_rate(learning_rate)
        if self.graph is not None:
            return Numbers(self.graph.run(self._compute, inputs, count))
        return Numbers(self._compute(inputs, count))

    def _compute(self, inputs: list[MicroBatch], count: torch.Tensor) -> torch.Tensor:
        """All of the step that the device does: (mean loss, gradient norm, counted tokens) in fp64."""
        world, across = self.ranks.world_size, self.ranks.num_nodes > 1
        dist.all_reduce(count)
        self.root.loss_scale = world / count.clamp(min=1).float()
        total = torch.zeros((), dtype=torch.float32, device=self.ranks.device)
        for number, batch in enumerate(inputs):
            last = number == len(inputs) - 1
            set_accumulation(self.root, last=last, sharding=self.sharding, across_nodes=across)
            scaled, plain = self.root(**batch)
            scaled.backward()
            total += plain.detach()
        dist.all_reduce(total)
        norm = gradient_norm(self.optimizer.gradients(), self.mesh)
        self.optimizer.step(clipping(norm, self.max_grad_norm))
        mean = total / count.clamp(min=1)
        return torch.stack([mean.double(), norm.double(), count.double()])

    def _inputs(self, batch: MicroBatch) -> MicroBatch:
        """A micro-batch (CPU, pinned) on the device, with the boundaries of its documents where the model takes them."""
        device = self.ranks.device
        # A recorded step needs the same tensors each time: of packed data the boundaries, also where a batch has none inside.
        always = self.graph is not None and self.packed
        documents = boundaries(batch["position_ids"], always=always) if self.root.packs else None
        if documents is not None:
            documents = documents.pin_memory() if device.type == "cuda" else documents
            batch = {**batch, "documents": documents}
        return {name: value.to(device, non_blocking=True) for name, value in batch.items()}

    @torch.no_grad()
    def evaluate(self, steps: Iterable[list[MicroBatch]]) -> float:
        """Mean loss per counted token over all steps of an evaluation (all ranks take equally many)."""
        device = self.ranks.device
        sums = torch.zeros(2, dtype=torch.float64, device=device)
        self.root.eval()
        self.root.loss_scale = None
        for step in steps:
            for batch in step:
                on_device = self._inputs(batch)
                _, plain = self.root(**on_device)
                sums[0] += plain.double()
                sums[1] += (on_device["labels"] != IGNORED).sum()
        self.root.train()
        # Outside a backward pass whatever is not resharded after its forward stays gathered; the next update and the next
        # checkpoint must not meet it.
        for module in self.root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        dist.all_reduce(sums)
        loss, count = sums.tolist()
        return loss / max(count, 1.0)
