"""Text to token ids: `bytes` (no download), or a Hugging Face tokenizer by name or folder."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from fsdp_job.errors import JobUsageError

BYTES_EOS = 256
"""The `bytes` vocabulary: ids 0 to 255 are the bytes of UTF-8 text, 256 ends (and so begins) a document; 257 in all."""


class Tokenizer(Protocol):
    """What packing needs. `n_tokens` is the smallest vocabulary that holds every id it can produce."""

    name: str
    n_tokens: int
    eos_id: int
    fingerprint: str

    def encode(self, documents: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of all documents, each closed by EOS, end to end (int64 or narrower), and each one's length.

        `documents` are UTF-8; an empty one yields nothing and has no length.
        """

    def decode(self, ids: list[int]) -> str:
        """Text of one document's ids; its EOS and BOS are left out."""


class ByteTokenizer:
    """Each byte of UTF-8 is a token; vocabulary as said at `BYTES_EOS`."""

    name = "bytes"
    n_tokens = 257
    eos_id = BYTES_EOS
    fingerprint = "bytes-1"

    def encode(self, documents: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        documents = [document for document in documents if document]
        lengths = np.array([len(document) + 1 for document in documents], dtype=np.int64)
        # EOS stands for one placeholder byte between documents; it is set after widening, since no byte can hold 256.
        flat = np.frombuffer(b"".join(part for document in documents for part in (document, b"\0")), dtype=np.uint8)
        ids = flat.astype(np.uint16)
        if lengths.size:
            ids[np.cumsum(lengths) - 1] = BYTES_EOS
        return ids, lengths

    def decode(self, ids: list[int]) -> str:
        return bytes(number for number in ids if number < BYTES_EOS).decode("utf-8", "replace")


class HuggingFaceTokenizer:
    """A tokenizer of transformers. Begins each document with BOS where the tokenizer does so by default (Llama,
    Gemma)."""

    def __init__(self, name: str, tokenizer: Any) -> None:
        self.name = name
        self._tokenizer = tokenizer
        tokenizer.model_max_length = int(1e30)  # documents are cut into sequences later: no length warning
        if tokenizer.eos_token_id is None:
            raise JobUsageError(
                f"tokenizer {name} has no end-of-text token (eos_token), which separates documents; "
                "choose a causal language model's tokenizer or --tokenizer bytes"
            )
        self.eos_id = int(tokenizer.eos_token_id)
        self.n_tokens = max(len(tokenizer), self.eos_id + 1)
        sample = tokenizer("a")["input_ids"]
        self._bos = [sample[0]] if tokenizer.bos_token_id is not None and sample[:1] == [tokenizer.bos_token_id] else []
        self.fingerprint = f"hf-1-{_digest(tokenizer)}-{self.eos_id}-{self._bos}"

    def encode(self, documents: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        texts = [document.decode("utf-8", "replace") for document in documents if document]
        if not texts:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        encoded = self._tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        whole = [[*self._bos, *ids, self.eos_id] for ids in encoded["input_ids"]]
        lengths = np.array([len(ids) for ids in whole], dtype=np.int64)
        return np.fromiter(
            (number for ids in whole for number in ids), dtype=np.int64, count=int(lengths.sum())
        ), lengths

    def decode(self, ids: list[int]) -> str:
        ids = ids[:-1] if ids and ids[-1] == self.eos_id else ids
        return self._tokenizer.decode(ids[len(self._bos) :], skip_special_tokens=False)


def _digest(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@lru_cache(maxsize=4)
def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer called `bytes`, or transformers' AutoTokenizer of a hub name or local folder.

    Raises JobUsageError where it is unknown, unreachable or of no use for packing.
    """
    if name == "bytes":
        return ByteTokenizer()
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise JobUsageError(
            f"--tokenizer {name} needs the package transformers, which is not installed ({error}); "
            "install it or use --tokenizer bytes"
        ) from error
    try:
        loaded = AutoTokenizer.from_pretrained(name, token=os.environ.get("HF_TOKEN") or None)
    except Exception as error:  # the hub client, the file readers and the converters each raise their own kinds
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise JobUsageError(
            f"tokenizer {name} cannot be loaded: {reason} Allowed: bytes, a Hugging Face name, or a folder with "
            "tokenizer files; without access to the hub use --tokenizer bytes or a local folder"
        ) from error
    return HuggingFaceTokenizer(name, loaded)


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int | None) -> None:
    """Refuses a tokenizer whose ids do not fit the model's embedding (`vocab_size` rows; None: no model to compare)."""
    if vocab_size is not None and tokenizer.n_tokens > vocab_size:
        raise JobUsageError(
            f"tokenizer {tokenizer.name} produces ids up to {tokenizer.n_tokens - 1}, but the model's vocab_size is "
            f"{vocab_size}; set vocab_size to at least {tokenizer.n_tokens} in --model-config or use "
            "the model's own tokenizer"
        )


def token_dtype(tokenizer: Tokenizer) -> str:
    """The narrowest numpy type of the shards that holds every id."""
    return "<u2" if tokenizer.n_tokens <= 1 << 16 else "<u4"
