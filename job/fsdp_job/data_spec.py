"""What to train on, what preparing made of it, and the index of the packed shards: plain values."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from fsdp_job.data_pack import Shard
from fsdp_job.errors import JobError, JobUsageError

INDEX_NAME = "index.json"
RANDOM = "random"


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """What to train on. `seq_len` in tokens; `vocab_size` of the model (None: unknown, not checked);
    `eval_sequences` held out; `cache_dir` a folder local to each node; `storage_path` what every node reaches (s3://
    or a shared folder)."""

    dataset: str
    tokenizer: str
    seq_len: int
    seed: int
    vocab_size: int | None
    eval_sequences: int
    cache_dir: str
    storage_path: str

    def __post_init__(self) -> None:
        wrong = []
        if not self.dataset:
            wrong.append("--dataset must not be empty; give a path, s3://, hf:// or random")
        if self.seq_len < 1:
            wrong.append(f"--seq_len must be at least 1, got {self.seq_len}")
        if self.eval_sequences < 0:
            wrong.append(f"--eval-sequences must be at least 0, got {self.eval_sequences}")
        if self.vocab_size is not None and self.vocab_size < 1:
            wrong.append(f"the model's vocab_size must be at least 1, got {self.vocab_size}")
        if wrong:
            raise JobUsageError("; ".join(wrong))


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """A packed data set and how to go through it. Plain values only: it travels to the workers as JSON.

    `tokens` counts the stream with its EOS; `fingerprint` identifies sequences and order (resume compares it);
    `folder` holds the shards, empty for `random`.
    """

    dataset: str
    tokenizer: str
    seq_len: int
    seed: int
    vocab_size: int
    n_train: int
    n_eval: int
    tokens: int
    documents: int
    fingerprint: str
    folder: str
    cache_dir: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> PreparedData:
        return cls(**json.loads(text))

    @property
    def n_total(self) -> int:
        return self.n_train + self.n_eval

    def check_global_batch(self, global_batch: int) -> None:
        """Raises JobUsageError where the training split has fewer sequences than one optimizer step takes."""
        if global_batch > self.n_train:
            raise JobUsageError(
                f"one global batch takes {global_batch} sequences (batch size x ranks x accumulation), but "
                f"{self.dataset} "
                f"gives only {self.n_train} of {self.seq_len} tokens to train on; give more text, or lower "
                "--batch_size, "
                "--accumulate, --seq_len or --eval-sequences"
            )


@dataclass(frozen=True, kw_only=True)
class Index:
    """What the folder's index.json says; written last, so that a folder with one is whole."""

    version: int
    seq_len: int
    dtype: str
    tokens: int
    documents: int
    n_tokens: int
    sources: int
    shards: list[Shard]

    @classmethod
    def parse(cls, text: bytes, where: str) -> Index:
        try:
            raw = json.loads(text)
            return cls(**{**raw, "shards": [Shard(**shard) for shard in raw["shards"]]})
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise JobError(
                f"{where} is damaged ({error}); remove its folder, it is packed again at the next start"
            ) from error
