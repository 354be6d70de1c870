"""Tokenize and pack a data set once, before the workers start: on the worker nodes' spare CPUs through Ray Data
where Ray runs, in this process otherwise. The packed result is the same either way and for any number of tasks."""

from __future__ import annotations

import hashlib
import json
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fsdp_job.data_formats import NotVisibleError, Piece, Source
from fsdp_job.data_order import Split
from fsdp_job.data_pack import (
    PACK_VERSION,
    Part,
    Shard,
    build_shard,
    plan_shards,
    record_dtype,
    sequence_count,
    tokenize_unit,
)
from fsdp_job.data_ray import run_with_ray
from fsdp_job.data_sources import find_sources, group_units
from fsdp_job.data_spec import INDEX_NAME, RANDOM, DataSpec, Index, PreparedData
from fsdp_job.data_store import (
    absolute,
    filesystem,
    join,
    read_bytes,
    remove,
    remove_files,
    remove_older,
    sizes,
    write_bytes,
)
from fsdp_job.errors import JobUsageError
from fsdp_job.tokenizer import check_vocabulary, load_tokenizer, token_dtype

__all__ = ["DataSpec", "PreparedData", "prepare"]

logger = logging.getLogger(__name__)

RANDOM_SEQUENCES = 1 << 20
"""Sequences in one epoch of `random`, the synthetic tokens: more than a transport test ever reads."""
UNIT_BYTES = 32 << 20
SHARD_BYTES = 64 << 20
STALE_HOURS = 24.0


def prepare(
    spec: DataSpec, *, unit_bytes: int = UNIT_BYTES, shard_bytes: int = SHARD_BYTES, use_ray: bool | None = None
) -> PreparedData:
    """Packs the data set unless storage holds the result already. Call it in the driver, before the workers start.

    `unit_bytes` of input make one task, `shard_bytes` one file; neither changes a sequence. `use_ray` None: where
    Ray is initialised and has a CPU. Raises JobUsageError for what the user can mend, JobError for storage that
    fails.
    """
    if spec.dataset == RANDOM:
        return _prepare_random(spec)
    tokenizer = load_tokenizer(spec.tokenizer)
    check_vocabulary(tokenizer, spec.vocab_size)
    sources = find_sources(spec.dataset, own=_own_places(spec))
    content = _content_key(sources, tokenizer.fingerprint, spec.seq_len)
    storage = absolute(spec.storage_path)
    filesystem(storage)  # refuses another kind of place before any work
    folder = join(storage, "packed", content)
    index = _existing(folder)
    if index is None:
        index = _pack(spec, sources, join(storage, "packed", "staging"), folder, unit_bytes, shard_bytes, use_ray)
    total = sum(shard.sequences for shard in index.shards)
    split = Split(total=total, n_eval=spec.eval_sequences, seed=spec.seed)
    return PreparedData(
        dataset=spec.dataset,
        tokenizer=spec.tokenizer,
        seq_len=spec.seq_len,
        seed=spec.seed,
        vocab_size=spec.vocab_size or tokenizer.n_tokens,
        n_train=split.n_train,
        n_eval=split.n_eval,
        tokens=index.tokens,
        documents=index.documents,
        fingerprint=_hash(content, spec.seed, spec.eval_sequences),
        folder=folder,
        cache_dir=absolute(spec.cache_dir),
    )


def _prepare_random(spec: DataSpec) -> PreparedData:
    split = Split(total=RANDOM_SEQUENCES + spec.eval_sequences, n_eval=spec.eval_sequences, seed=spec.seed)
    vocab_size = spec.vocab_size or load_tokenizer("bytes").n_tokens
    return PreparedData(
        dataset=RANDOM,
        tokenizer=spec.tokenizer,
        seq_len=spec.seq_len,
        seed=spec.seed,
        vocab_size=vocab_size,
        n_train=split.n_train,
        n_eval=split.n_eval,
        tokens=split.total * spec.seq_len,
        documents=split.total,
        fingerprint=_hash(RANDOM, spec.seq_len, spec.seed, vocab_size, spec.eval_sequences),
        folder="",
        cache_dir=spec.cache_dir,
    )


def _hash(*values: Any) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=12).hexdigest()


def _own_places(spec: DataSpec) -> list[str]:
    """Where the job itself writes: never read as text, even where it lies inside the data set's folder."""
    data = absolute(spec.dataset).split("*")[0].rstrip("/")
    places = [absolute(place) for place in (spec.storage_path, spec.cache_dir)]
    return [place if place.startswith(f"{data}/") else join(place, "packed") for place in places]


def _content_key(sources: list[Source], tokenizer: str, seq_len: int) -> str:
    files = [(source.name, source.size, source.stamp) for source in sources]
    return _hash(PACK_VERSION, tokenizer, seq_len, files)


def _existing(folder: str) -> Index | None:
    """The folder's index where all its shards are whole; None where it must be packed (again)."""
    where = join(folder, INDEX_NAME)
    text = read_bytes(where)
    if text is None:
        return None
    index = Index.parse(text, where)
    found = sizes(folder)
    for shard in index.shards:
        if found.get(shard.name) != shard.bytes:
            state = f"{found[shard.name]} of {shard.bytes} bytes" if shard.name in found else "missing"
            logger.warning("packed data is damaged: %s is %s; packing again", join(folder, shard.name), state)
            return None
    return index


def _pack(
    spec: DataSpec,
    sources: list[Source],
    staging_root: str,
    folder: str,
    unit_bytes: int,
    shard_bytes: int,
    use_ray: bool | None,
) -> Index:
    started = time.monotonic()
    tokenizer = load_tokenizer(spec.tokenizer)
    staging = join(staging_root, uuid.uuid4().hex)
    units = group_units(sources, unit_bytes)
    try:
        parts = _tokenize(spec, units, staging, use_ray)
        tokens = sum(part.tokens for part in parts)
        if sequence_count(tokens, spec.seq_len) < 1:
            raise JobUsageError(
                f"--dataset {spec.dataset} holds {len(sources)} files but no text; give files that are not empty"
            )
        dtype = token_dtype(tokenizer)
        each = max(1, shard_bytes // record_dtype(spec.seq_len, dtype).itemsize)
        plans = plan_shards(parts, seq_len=spec.seq_len, each=each)
        common = {"seq_len": spec.seq_len, "dtype": dtype, "eos_id": tokenizer.eos_id, "folder": folder}
        arguments = [{"plan": plan, **common} for plan in plans]
        shards: list[Shard] = _run_all(build_shard, arguments, use_ray)
    finally:
        remove(staging)
    index = Index(
        version=PACK_VERSION,
        seq_len=spec.seq_len,
        dtype=dtype,
        tokens=tokens,
        documents=sum(part.documents for part in parts),
        n_tokens=tokenizer.n_tokens,
        sources=len(sources),
        shards=shards,
    )
    if find_sources(spec.dataset, own=_own_places(spec)) != sources:
        remove_files(folder, [shard.name for shard in shards])
        raise JobUsageError(f"--dataset {spec.dataset} changed while it was packed; start again when it is complete")
    return _publish(index, folder, staging_root, time.monotonic() - started)


def _publish(index: Index, folder: str, staging_root: str, seconds: float) -> Index:
    """Writes the index last. Where another preparer was first its result stands, and this one's shards are left
    unnamed."""
    found = sizes(folder)
    lost = [shard.name for shard in index.shards if found.get(shard.name) != shard.bytes]
    if lost:
        raise JobUsageError(
            f"{join(folder, lost[0])} was written on another node and is not seen here: storage_path "
            "must be s3:// or a folder "
            "that all nodes share"
        )
    other = _existing(folder)
    if other is not None:
        remove_files(folder, [shard.name for shard in index.shards])
        return other
    write_bytes(join(folder, INDEX_NAME), json.dumps(asdict(index)).encode())
    logger.info("packed %d tokens of %d documents in %.1f s into %s", index.tokens, index.documents, seconds, folder)
    remove_older(staging_root, STALE_HOURS)
    return index


def _tokenize(spec: DataSpec, units: list[list[Piece]], staging: str, use_ray: bool | None) -> list[Part]:
    arguments = [{"pieces": unit, "tokenizer_name": spec.tokenizer, "staging": staging} for unit in units]
    try:
        return _run_all(tokenize_unit, arguments, use_ray)
    except NotVisibleError as error:
        # The driver has the files, other nodes don't: slower, but right.
        logger.warning("%s; tokenizing on the driver's node instead", error)
        return _run_all(tokenize_unit, arguments, False)


def _run_all(function: Callable[..., Any], arguments: list[dict[str, Any]], use_ray: bool | None) -> list[Any]:
    if use_ray is None:
        import sys

        ray = sys.modules.get("ray")
        use_ray = bool(ray and ray.is_initialized() and ray.cluster_resources().get("CPU", 0) >= 1)
    return run_with_ray(function, arguments) if use_ray else [function(**each) for each in arguments]
