"""How fast: FLOPs by formula, the chip's peak by its name, and TensorBoard files."""

from __future__ import annotations

import contextlib
import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fsdp_job.storage import Location

PEAK_BF16_TFLOPS: dict[str, float] = {
    # Dense bf16 (T4: fp16) tensor-core peaks of NVIDIA's data sheets, without sparsity. The longest name that matches wins.
    "B300": 2250.0,
    "B200": 2250.0,
    "H200": 989.4,
    "H100 PCIe": 756.0,
    "H100": 989.4,
    "A100": 312.0,
    "L40S": 362.0,
    "L4": 121.0,
    "A10G": 70.0,
    "A10": 125.0,
    "T4": 65.0,
    "RTX PRO 6000": 503.8,
}

BOARD_BACKLOG = 10_000
"""Steps that may wait for TensorBoard's files (some MB); a store slower than that is not waited for."""
BOARD_CLOSE_S = 30.0
"""How long the end of a run waits for the last of them."""


def peak_tflops(device_name: str) -> float | None:
    """Dense bf16 peak in TFLOP/s of the chip that torch calls ``device_name``; None for one not in the table."""
    words = device_name.upper()
    found = [name for name in PEAK_BF16_TFLOPS if name.upper() in words]
    return PEAK_BF16_TFLOPS[max(found, key=len)] if found else None


def flops_per_token(*, parameters: int, layers: int, attention_width: int, seq_len: int) -> float:
    """FLOPs to train on one token: 6·N + 6·L·d·T.

    6·N: each parameter in a matrix product is used in one multiply-add forward and two backward. 6·L·d·T: the attention
    products Q·K and P·V, 12·L·d·T for whole attention (PaLM, appendix B), half of it under a causal mask. ``parameters``
    leaves out an input embedding that is no head; ``attention_width`` d is heads × head size. Recomputation not counted.
    """
    return 6.0 * parameters + 6.0 * layers * attention_width * seq_len


def attention_shape(config: Any) -> tuple[int, int]:
    """(layers, heads × head size) of a transformers configuration."""
    heads = int(config.num_attention_heads)
    size = getattr(config, "head_dim", None) or int(config.hidden_size) // heads
    return int(config.num_hidden_layers), heads * int(size)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Throughput from measured step times: tokens per second of the job and of one rank, and share of the peak."""

    tokens_per_step: int
    world_size: int
    flops_per_token: float
    peak_tflops: float | None

    def fields(self, seconds: float) -> dict[str, float | None]:
        """The step event's throughput fields for one step (or the mean of many) of ``seconds``."""
        total = self.tokens_per_step / seconds if seconds > 0 else 0.0
        each = total / self.world_size
        mfu = each * self.flops_per_token / (self.peak_tflops * 1e12) if self.peak_tflops else None
        return {"tokens_per_s": round(total, 1), "tokens_per_s_per_gpu": round(each, 1), "mfu": mfu and round(mfu, 4)}


def peak_memory_gib(device: torch.device) -> float:
    """Most memory that this process held so far: of the GPU by torch's allocator, else of the process itself (Linux)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 2**30


class Board:
    """TensorBoard files of rank 0; written to a local folder and copied where the storage is remote.

    A picture of the training, never a reason to end it: writing and copying happen in a thread of the board's own, so that
    a full disk or a store that does not answer neither raises into the loop nor holds it up. The first trouble is told on
    stderr and switches the board off.
    """

    def __init__(self, target: Location) -> None:
        self._target = target
        self._scratch: Path | None = None
        self._off = False
        self._events: Any = None
        self._telling = threading.Lock()
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue(BOARD_BACKLOG)
        try:
            self._open()
        except Exception as error:
            self._switch_off(error)
        self._thread = threading.Thread(target=self._work, name="tensorboard", daemon=True)
        self._thread.start()

    def add(self, step: int, fields: dict[str, Any]) -> None:
        """Note one step's numbers; written soon after."""
        self._ask(lambda: self._write(step, fields))

    def sync(self) -> None:
        """Ask for a flush, and for a copy to remote storage."""
        self._ask(self._flush)

    def close(self) -> None:
        """Write and copy what is left; waits at most ``BOARD_CLOSE_S``."""
        self._ask(self._end)
        try:
            self._tasks.put_nowait(None)
            self._thread.join(BOARD_CLOSE_S)
        except queue.Full:
            return  # told already: the thread hangs
        if self._thread.is_alive():
            self._switch_off(TimeoutError(f"still not written after {BOARD_CLOSE_S:g} s"))
        elif self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _ask(self, task: Callable[[], None]) -> None:
        if self._off:
            return
        try:
            self._tasks.put_nowait(task)
        except queue.Full:
            self._switch_off(TimeoutError(f"{BOARD_BACKLOG} steps wait to be written"))

    def _work(self) -> None:
        for task in iter(self._tasks.get, None):
            if not self._off:
                try:
                    task()
                except Exception as error:
                    self._switch_off(error)
                    self._let_go()

    def _let_go(self) -> None:
        """Close what still can be; else tensorboardX would wait for its thread at the end of the process."""
        with contextlib.suppress(Exception):
            self._check_alive()
            self._events._closed = False
            self._writer.close()
        if self._events is not None:
            self._events._closed = True

    def _switch_off(self, error: Exception) -> None:
        with self._telling:
            told, self._off = self._off, True
        if self._events is not None:
            self._events._closed = True  # see _let_go
        if not told:
            print(
                f"tensorboard: cannot write to {self._target.uri}: {type(error).__name__}: {error}; training goes on without "
                "TensorBoard, the step events hold the same numbers", file=sys.stderr, flush=True,
            )  # fmt: skip

    def _open(self) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            from torch.utils.tensorboard import SummaryWriter

        if not self._target.is_local:
            self._scratch = Path(tempfile.mkdtemp(prefix="tensorboard-"))
        self._folder = self._scratch or Path(self._target.path)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._writer = SummaryWriter(str(self._folder), max_queue=0, flush_secs=30)  # no limit, so no `put` that waits
        self._events = getattr(getattr(self._writer, "file_writer", None), "event_writer", None)
        self._inner: threading.Thread | None = getattr(self._events, "_worker", None)
        self._pending: Any = getattr(self._events, "_event_queue", None)
        if self._pending is not None and hasattr(self._pending, "cancel_join_thread"):
            self._pending.cancel_join_thread()  # else the process could not end while nobody reads that queue

    def _check_alive(self) -> None:
        """tensorboardX writes in a thread that the first error ends, and what is added then piles up."""
        if self._inner is not None and not self._inner.is_alive():
            raise RuntimeError("its writer's thread ended by an error (above)")
        if self._pending is not None and self._pending.qsize() > 10 * BOARD_BACKLOG:
            raise TimeoutError(f"{10 * BOARD_BACKLOG} numbers wait to be written")

    def _write(self, step: int, fields: dict[str, Any]) -> None:
        for name, value in fields.items():
            if isinstance(value, int | float) and name != "step":
                self._check_alive()
                self._writer.add_scalar(f"train/{name}", value, step)

    def _flush(self) -> None:
        self._check_alive()
        self._writer.flush()
        self._copy()

    def _end(self) -> None:
        self._check_alive()
        self._writer.close()  # waits for the writer's thread; only then the files hold all that was added
        self._copy()

    def _copy(self) -> None:
        if self._scratch is not None:
            upload_folder(self._folder, self._target)


def upload_folder(source: Path, target: Location) -> None:
    """Copy every file below ``source`` to ``target``, which may be remote."""
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        place = target.join(*path.relative_to(source).parts)
        if target.is_local:
            Path(place.path).parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as reader, place.fs.open_output_stream(place.path, compression=None) as writer:
            shutil.copyfileobj(reader, writer, length=16 * 2**20)
