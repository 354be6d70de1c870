"""Tokens per second of packing text and of reading packed sequences, in one process.

Reading is what a rank does at each step, without the model: the read-ahead thread makes batches, the consumer only
takes them. Rates per core divide by the CPU time of all threads, so that a busy machine tells the same. The baseline
is the same tokens taken from a numpy memory map of the shards in file order: no shuffling, document boundaries,
labels or positions. Run: python bench/data_pack.py
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "job"))

import numpy as np

from fsdp_job.data import DataSpec, Position, PreparedData, open_batches, prepare
from fsdp_job.data_cache import localize

RESULT = Path(__file__).resolve().parent / "results" / "data_pack.json"


def write_corpus(folder: Path, mebibytes: int) -> Path:
    """Words of a fixed vocabulary with Zipf's frequencies, as jsonl documents of about 2 kB; the same on every
    machine."""
    source = random.Random(1)
    words = ["".join(source.choices("etaoinshrdlu", k=source.randint(2, 9))) for _ in range(5000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    path = folder / "corpus.jsonl"
    with path.open("w") as file:
        while file.tell() < mebibytes << 20:
            file.write(json.dumps({"text": " ".join(source.choices(words, weights, k=350))}) + "\n")
    return path


def spec(corpus: Path, folder: Path, seq_len: int, tokenizer: str = "bytes") -> DataSpec:
    return DataSpec(
        dataset=str(corpus), tokenizer=tokenizer, seq_len=seq_len, seed=1, vocab_size=None, eval_sequences=64,
        cache_dir=str(folder), storage_path=str(folder),
    )  # fmt: skip


def train_tokenizer(corpus: Path, folder: Path) -> str:
    """A byte-pair vocabulary of 8000 learned from the corpus, so that no download is needed."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=8000, special_tokens=["</s>"], show_progress=False)
    with corpus.open() as lines:
        inner.train_from_iterator(
            (json.loads(line)["text"] for line, _ in zip(lines, range(2000), strict=False)), trainer
        )
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>").save_pretrained(folder)
    return str(folder)


def measure_pack(corpus: Path, seq_len: int, tokenizer: str, repeats: int) -> dict[str, Any]:
    wall_rates, core_rates = [], []
    for _ in range(repeats):
        folder = Path(tempfile.mkdtemp(dir=corpus.parent))
        started, cpu = time.perf_counter(), time.process_time()
        prepared = prepare(spec(corpus, folder, seq_len, tokenizer), use_ray=False)
        wall_rates.append(prepared.tokens / (time.perf_counter() - started))
        core_rates.append(prepared.tokens / (time.process_time() - cpu))
    core = statistics.median(core_rates)
    return {
        "tokens": prepared.tokens,
        "tokens_per_s": round(statistics.median(wall_rates)),
        "tokens_per_s_per_core": round(core),
        "text_mb_per_s_per_core": round(corpus.stat().st_size / prepared.tokens * core / 1e6, 1),
    }


def measure_read(prepared: PreparedData, micro_batch: int, seconds: float) -> dict[str, Any]:
    with open_batches(
        prepared, split="train", rank=0, world_size=1, micro_batch=micro_batch, accumulate=1, position=Position()
    ) as batches:
        next(batches)
        steps, started, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - started < seconds:
            next(batches)
            steps += 1
        wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    tokens = steps * micro_batch * prepared.seq_len
    return {
        "seq_len": prepared.seq_len,
        "micro_batch": micro_batch,
        "tokens_per_s": round(tokens / wall),
        "int64_mb_per_s_per_core": round(tokens * 8 / cpu / 1e6, 1),
        "ms_per_step": round(wall / steps * 1e3, 3),
    }


def measure_baseline(prepared: PreparedData, micro_batch: int, seconds: float) -> int:
    """Tokens per second of slicing the shards' memory map in order and widening to int64."""
    folder, index = localize(prepared)
    maps = [np.load(folder / shard.name, mmap_mode="r")["tokens"] for shard in index.shards]
    tokens, started = 0, time.perf_counter()
    while True:
        for shard in maps:
            for first in range(0, len(shard) - micro_batch, micro_batch):
                tokens += shard[first : first + micro_batch, :-1].astype(np.int64).size
                if time.perf_counter() - started > seconds:
                    return round(tokens / (time.perf_counter() - started))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=16, help="size of the text (default 16)")
    parser.add_argument("--seconds", type=float, default=3.0, help="time of each reading measurement (default 3)")
    parser.add_argument(
        "--repeats", type=int, default=3, help="runs of each packing measurement, median taken (default 3)"
    )
    parser.add_argument("--out", type=Path, default=RESULT, help="result file (default bench/results/data_pack.json)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = write_corpus(folder, arguments.mebibytes)
        packing, reading = {}, []
        for tokenizer in ("bytes", "bpe-8000"):
            chosen = tokenizer if tokenizer == "bytes" else train_tokenizer(corpus, folder / "tokenizer")
            packing[tokenizer] = measure_pack(corpus, 1024, chosen, arguments.repeats)
            print(f"pack {tokenizer}: {packing[tokenizer]}")
        for seq_len, micro_batch in ((128, 8), (128, 64), (1024, 8), (4096, 4)):
            prepared = prepare(spec(corpus, folder / f"read{seq_len}", seq_len), use_ray=False)
            row = measure_read(prepared, micro_batch, arguments.seconds)
            row["baseline_tokens_per_s"] = measure_baseline(prepared, micro_batch, arguments.seconds)
            reading.append(row)
            print(f"read: {row}")
    result = {
        "command": " ".join(["python bench/data_pack.py", *sys.argv[1:]]),
        "machine": {
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "load_1min": os.getloadavg()[0],
        },
        "text_mib": arguments.mebibytes,
        "packing_one_process": packing,
        "reading_one_rank": reading,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    main()
