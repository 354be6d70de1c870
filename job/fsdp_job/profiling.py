"""``--profile N``: a PyTorch trace of N steps of rank 0 after the warm-up, in the run's ``profile`` folder."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from fsdp_job.metrics import upload_folder
from fsdp_job.storage import Location


class Profile:
    """Starts and ends the profiler around the asked steps; does nothing where none are asked or on other ranks."""

    def __init__(self, *, steps: int, first: int, target: Location | None, cuda: bool) -> None:
        self._steps, self._first, self._target, self._cuda = steps, first, target, cuda
        self._profiler: Any = None
        self.path: str | None = None

    def before(self, step: int) -> None:
        """Called before step ``step`` (from 1) of this attempt."""
        if not self._steps or self._target is None:
            return
        if step == self._first:
            kinds = [torch.profiler.ProfilerActivity.CPU]
            if self._cuda:
                kinds.append(torch.profiler.ProfilerActivity.CUDA)
            self._profiler = torch.profiler.profile(activities=kinds)
            self._profiler.start()
        elif step == self._first + self._steps:
            self.finish()

    def finish(self) -> None:
        """Write the trace, if one is being taken."""
        if self._profiler is None or self._target is None:
            return
        self._profiler.stop()
        with tempfile.TemporaryDirectory() as scratch:
            self._profiler.export_chrome_trace(str(Path(scratch) / "rank-0.json.gz"))
            upload_folder(Path(scratch), self._target)
        self.path = self._target.join("rank-0.json.gz").uri
        self._profiler = None
