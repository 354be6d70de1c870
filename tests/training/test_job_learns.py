"""Real learning: on real text a small byte model comes below what unigram and bigram statistics of the bytes can reach."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.job_ranks import run_job, settings_for

MODEL = {
    "model_type": "qwen2", "vocab_size": 260, "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128, "tie_word_embeddings": True,
}  # fmt: skip
SEQ_LEN, STEPS, TEXT_BYTES, HELD_OUT = 64, 240, 3_000_000, 64


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Python's own standard library as text, one document a file."""
    folder = tmp_path_factory.mktemp("learns")
    size = 0
    with (folder / "text.jsonl").open("w") as out:
        for path in sorted(Path(os.__file__).parent.glob("*.py")):
            text = path.read_text(encoding="utf-8", errors="ignore")
            if size + len(text) <= TEXT_BYTES:
                size += len(text)
                out.write(json.dumps({"text": text}) + "\n")
    assert size > TEXT_BYTES / 2
    (folder / "model.json").write_text(json.dumps(MODEL))
    return {
        "model_config": str(folder / "model.json"), "dataset": str(folder / "text.jsonl"), "tokenizer": "bytes",
        "seq_len": SEQ_LEN, "batch_size": 16, "steps": STEPS, "learning_rate": 5e-3, "warmup_lr_steps": 20, "schedule": "cosine",
        "eval_every": STEPS, "eval_sequences": HELD_OUT, "storage_path": str(folder / "store"),
    }  # fmt: skip


def pairs(flags: dict[str, Any], split: str) -> tuple[np.ndarray, np.ndarray]:
    """(byte, the byte after it) wherever the loss counts, of all sequences of the split."""
    from fsdp_job.data import Position, PreparedData, open_batches

    prepared = PreparedData.from_json(settings_for(flags, world=1, name="statistics")["prepared"])
    steps = prepared.n_train // 16 if split == "train" else HELD_OUT // 16
    given, wanted = [], []
    with open_batches(
        prepared, split=split, rank=0, world_size=1, micro_batch=16, accumulate=1, position=Position(0, 0)
    ) as batches:  # fmt: skip
        for _ in range(steps):
            (batch,) = next(batches)
            counted = batch["labels"] != -100
            given.append(batch["input_ids"][counted].numpy())
            wanted.append(batch["labels"][counted].numpy())
    return np.concatenate(given), np.concatenate(wanted)


def best_smoothed(counts: np.ndarray, given: np.ndarray, wanted: np.ndarray) -> float:
    """Mean negative log-likelihood (nats) under the counts' rows, with the additive smoothing that suits the held-out best."""
    losses = []
    for extra in (1e-3, 1e-2, 0.1, 0.5, 1.0):
        chances = (counts + extra) / (counts + extra).sum(axis=1, keepdims=True)
        losses.append(float(-np.log(chances[given, wanted]).mean()))
    return min(losses)


def test_the_held_out_loss_falls_below_unigram_and_bigram_statistics_of_the_bytes(flags: dict[str, Any]) -> None:
    bigrams = np.zeros((260, 260))
    np.add.at(bigrams, pairs(flags, "train"), 1)
    given, wanted = pairs(flags, "eval")
    unigram = best_smoothed(bigrams.sum(axis=0, keepdims=True), np.zeros_like(given), wanted)
    bigram = best_smoothed(bigrams, given, wanted)
    run = run_job(flags, world=1, name="learns")
    held_out = run.of("step")[-1]["eval_loss"]
    print(f"held-out loss {held_out:.3f}, unigram {unigram:.3f}, bigram {bigram:.3f} nats a byte")
    assert bigram < unigram
    assert held_out < bigram - 0.05
