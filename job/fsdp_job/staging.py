"""A copy of the state in the host's memory, so that training goes on while the copy is written."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from fsdp_job.optim import local_of


class Staging:
    """Buffers of the state's size, kept between checkpoints; page-locked beside a GPU, where that makes copies fast.

    Locking pages takes a second for every few GiB, so it is done ahead, in a thread, while the first steps run.
    """

    def __init__(self, device: torch.device) -> None:
        self._pinned = device.type == "cuda"
        self._buffers: dict[str, torch.Tensor] = {}
        self._thread: threading.Thread | None = None

    def prepare(self, tensors: dict[str, Any]) -> None:
        """Begin to make the buffers for these tensors; ``copy`` waits until they are there."""
        shapes = {name: (local_of(value).shape, local_of(value).dtype) for name, value in tensors.items()}
        self._thread = threading.Thread(target=self._allocate, args=(shapes,), name="staging", daemon=True)
        self._thread.start()

    def _allocate(self, shapes: dict[str, Any]) -> None:
        for name, (shape, dtype) in shapes.items():
            self._buffers[name] = torch.empty(shape, dtype=dtype, pin_memory=self._pinned)

    def copy(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """The tensors' values as of now, in the buffers; returns when they are there (a DTensor keeps its placement)."""
        if self._thread is None:
            self.prepare(tensors)
        if self._thread is not None:
            self._thread.join()
        staged: dict[str, Any] = {}
        for name, value in tensors.items():
            local = local_of(value)
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != local.shape:
                buffer = self._buffers[name] = torch.empty(local.shape, dtype=local.dtype, pin_memory=self._pinned)
            buffer.copy_(local, non_blocking=True)
            # from_local would move the copy back to the mesh's device.
            staged[name] = DTensor(buffer, value._spec, requires_grad=False) if isinstance(value, DTensor) else buffer
        if self._pinned:
            torch.cuda.current_stream().synchronize()
        return staged
