"""How fast: FLOPs by formula, the chip's peak by its name, and TensorBoard files."""

from __future__ import annotations

import shutil
import tempfile
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
    """TensorBoard files of rank 0; written to a local folder and copied where the storage is remote."""

    def __init__(self, target: Location) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            from torch.utils.tensorboard import SummaryWriter

        self._target = target
        self._scratch = None if target.is_local else Path(tempfile.mkdtemp(prefix="tensorboard-"))
        folder = self._scratch or Path(target.path)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._writer = SummaryWriter(str(folder), flush_secs=30)

    def add(self, step: int, fields: dict[str, Any]) -> None:
        for name, value in fields.items():
            if isinstance(value, int | float) and name != "step":
                self._writer.add_scalar(f"train/{name}", value, step)

    def sync(self) -> None:
        """Flush, and copy to remote storage."""
        self._writer.flush()
        if self._scratch is not None:
            upload_folder(self._folder, self._target)

    def close(self) -> None:
        self.sync()
        self._writer.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def upload_folder(source: Path, target: Location) -> None:
    """Copy every file below ``source`` to ``target``, which may be remote."""
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        place = target.join(*path.relative_to(source).parts)
        if target.is_local:
            Path(place.path).parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as reader, place.fs.open_output_stream(place.path, compression=None) as writer:
            shutil.copyfileobj(reader, writer, length=16 * 2**20)
