"""``train.py`` with one fault: ``python faulty_train.py FAULT RANK STEP MARK FLAGS…``; for tests of what the job makes of it.

FAULT: ``raise`` (an exception), ``kill`` (the process dies by SIGKILL), ``hang`` (it stops taking part), ``slow`` (every step
of every rank takes STEP milliseconds more). MARK is a file that is created when the fault strikes; where it exists already the
fault has struck and does not again.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

FAULT, RANK, STEP, MARK = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
JOB = str(Path(__file__).resolve().parents[2] / "job")
sys.path.insert(0, JOB)

import fsdp_job.worker  # noqa: E402
from fsdp_job.driver import main  # noqa: E402


def faulty_worker(settings: dict[str, Any]) -> Any:
    """Runs in the worker: puts the fault into the step, then trains as ever."""
    sys.path.insert(0, JOB)  # Ray gives workers the driver's script folder, which is not the job's here
    from fsdp_job.step import Stepper
    from fsdp_job.worker import ray_worker as real_worker

    real, done = Stepper.train, [0]
    fault, rank, step, mark = settings.pop("fault")

    def train(self: Any, *args: Any) -> Any:
        done[0] += 1
        if fault == "kill":
            time.sleep(0.1)  # so that checkpoints before the step are committed when it comes
        if fault == "slow":
            time.sleep(step / 1000)
        elif self.ranks.rank == rank and done[0] == step and not Path(mark).exists():
            Path(mark).touch()
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "hang":
                time.sleep(10_000)
            raise RuntimeError("rank one tripped over a stone")
        return real(self, *args)

    Stepper.train = train  # type: ignore[method-assign]
    return real_worker(settings)


def with_fault(real: Any) -> Any:
    """The driver's trainer, told of the fault."""

    def trainer(cfg: Any, settings: dict[str, Any], **more: Any) -> Any:
        return real(cfg, {**settings, "fault": (FAULT, RANK, STEP, MARK)}, **more)

    return trainer


if __name__ == "__main__":
    import fsdp_job.driver as driver

    fsdp_job.worker.ray_worker = faulty_worker
    driver._trainer = with_fault(driver._trainer)
    sys.exit(main(sys.argv[5:]))
