"""Tokens of documents to shards of fixed-size records.

All documents, each closed by EOS, form one stream of N tokens. Sequence i is stream[i*S : i*S + S + 1]: S inputs
and, one further, S labels; so each token is an input once and, but for the first of each document, a label once. The
last sequence is padded with EOS whose labels are ignored; no token is lost. A shard is a numpy file (`np.load(…,
mmap_mode="r")`) with one record a sequence: `tokens` (S + 1) and `starts`, the packed bits of "a document begins
here" (padding tokens count as documents of their own). One read of known size at a known place yields a sequence,
whichever machine asks.
"""

from __future__ import annotations

import io
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from fsdp_job.data_formats import Piece, documents
from fsdp_job.data_store import StorageError, first_line, join, open_input, open_output, write_bytes
from fsdp_job.tokenizer import load_tokenizer, token_dtype

PACK_VERSION = 1
_BATCH_BYTES = 4 << 20
_BATCH_DOCUMENTS = 1024


@dataclass(frozen=True, kw_only=True)
class Part:
    """One unit's tokens on storage: `<uri>.tokens` (raw ids) and `<uri>.lengths` (uint64, one a document)."""

    uri: str
    tokens: int
    documents: int


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One finished file. `header` bytes precede the first record; `crc32` is of the whole file."""

    name: str
    bytes: int
    header: int
    sequences: int
    crc32: int


def record_dtype(seq_len: int, tokens: str) -> np.dtype:
    """One sequence on disk: seq_len + 1 tokens (the last is the last label) and a bit for each: a document begins
    here."""
    return np.dtype([("tokens", tokens, (seq_len + 1,)), ("starts", "u1", ((seq_len + 8) // 8,))])


def sequence_count(tokens: int, seq_len: int) -> int:
    """Sequences of a stream: its last token is a label only, so it needs no place as an input."""
    return max(0, -(-(tokens - 1) // seq_len))


def tokenize_unit(pieces: list[Piece], tokenizer_name: str, staging: str) -> Part:
    """Tokenizes the pieces' documents in order, streaming, into a part of a unique name under `staging`."""
    tokenizer = load_tokenizer(tokenizer_name)
    dtype = token_dtype(tokenizer)
    uri = join(staging, uuid.uuid4().hex)
    lengths = []
    with open_output(f"{uri}.tokens") as out:
        for batch in _batches(chain.from_iterable(documents(piece) for piece in pieces)):
            ids, counts = tokenizer.encode(batch)
            out.write(ids.astype(dtype, copy=False).tobytes())
            lengths.append(counts)
    counts = np.concatenate(lengths) if lengths else np.zeros(0, dtype=np.int64)
    write_bytes(f"{uri}.lengths", counts.astype("<u8").tobytes())
    return Part(uri=uri, tokens=int(counts.sum()), documents=len(counts))


def _batches(items: Iterator[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for item in items:
        batch.append(item)
        size += len(item)
        if size >= _BATCH_BYTES or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """Sequences [first, first + sequences) and the parts that hold them, of which `before` tokens of the stream
    precede."""

    first: int
    sequences: int
    before: int
    parts: list[Part]


def plan_shards(parts: list[Part], *, seq_len: int, each: int) -> list[ShardPlan]:
    """Divides the stream that `parts` form in their order into shards of `each` sequences."""
    ends = np.cumsum([part.tokens for part in parts])
    total = sequence_count(int(ends[-1]) if len(ends) else 0, seq_len)
    plans = []
    for first in range(0, total, each):
        sequences = min(each, total - first)
        low = int(np.searchsorted(ends, first * seq_len, side="right"))
        high = int(np.searchsorted(ends, (first + sequences) * seq_len + 1, side="left")) + 1
        before = int(ends[low - 1]) if low else 0
        plans.append(ShardPlan(first=first, sequences=sequences, before=before, parts=parts[low:high]))
    return plans


def build_shard(plan: ShardPlan, *, seq_len: int, dtype: str, eos_id: int, folder: str) -> Shard:
    """Writes one shard. The file's name is unique to this call; an index that names it makes it count."""
    first, sequences = plan.first, plan.sequences
    low, wanted = first * seq_len - plan.before, sequences * seq_len + 1
    tokens, starts = _read_stream(plan.parts, low, low + wanted, dtype)
    missing = wanted - len(tokens)
    tokens = np.concatenate([tokens, np.full(missing, eos_id, dtype=dtype)])
    starts = np.concatenate([starts, np.ones(missing, dtype=bool)])
    records = np.empty(sequences, dtype=record_dtype(seq_len, dtype))
    windows = np.lib.stride_tricks.sliding_window_view
    records["tokens"] = windows(tokens, seq_len + 1)[::seq_len]
    records["starts"] = np.packbits(windows(starts, seq_len + 1)[::seq_len], axis=1)
    buffer = io.BytesIO()
    np.save(buffer, records)
    data = buffer.getbuffer()
    name = f"sequences-{first:010d}-{uuid.uuid4().hex[:8]}.npy"
    write_bytes(join(folder, name), data)
    header = len(data) - records.nbytes
    return Shard(name=name, bytes=len(data), header=header, sequences=sequences, crc32=zlib.crc32(data))


def _read_stream(parts: list[Part], low: int, high: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [low, high) of the stream, or up to its end, and whether a document begins at each."""
    pieces, marks, offset = [], [], 0
    width = np.dtype(dtype).itemsize
    for part in parts:
        begin, end = max(low - offset, 0), min(high - offset, part.tokens)
        if begin < end:
            tokens = np.frombuffer(_read_range(f"{part.uri}.tokens", begin * width, (end - begin) * width), dtype=dtype)
            lengths = np.frombuffer(_read_range(f"{part.uri}.lengths", 0, part.documents * 8), dtype="<u8").astype(
                np.int64
            )
            opening = np.cumsum(lengths) - lengths
            mark = np.zeros(end - begin, dtype=bool)
            mark[opening[np.searchsorted(opening, begin) : np.searchsorted(opening, end)] - begin] = True
            pieces.append(tokens)
            marks.append(mark)
        offset += part.tokens
    return np.concatenate(pieces), np.concatenate(marks)


def _read_range(uri: str, begin: int, length: int) -> bytes:
    try:
        with open_input(uri) as file:
            file.seek(begin)
            data = file.read(length)
    except OSError as error:
        raise StorageError(f"{uri} cannot be read: {first_line(error)}") from error
    if len(data) != length:
        raise StorageError(f"{uri} is shorter than expected: {len(data)} of {length} bytes at {begin}")
    return data
