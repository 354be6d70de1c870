"""Runs the job's own attempt on several processes of this machine, without Ray: quick, and the ranks are the same code.

The processes come from a fork server that has torch and transformers imported already, so a run starts in a fraction of
a second. ``nodes`` numbers the ranks as if they lay on that many machines.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TINY = {
    "model_type": "qwen2",
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
PRELOAD = [
    "torch", "transformers.models.auto.modeling_auto", "transformers.models.qwen2.modeling_qwen2", "tensorboardX",
    "torch.distributed.checkpoint", "fsdp_job.worker",
]  # fmt: skip
TIMEOUT_S = 300


@dataclass(frozen=True)
class Run:
    """What one run gave: each rank's outcome (or the exception's text) and rank 0's events."""

    outcomes: list[dict[str, Any]]
    events: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    @property
    def losses(self) -> list[float]:
        return [event["loss"] for event in self.of("step")]


def write_inputs(folder: Path, *, lines: int = 400) -> dict[str, Any]:
    """A model configuration and a text file below ``folder``; returns the flags that use them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiny.json").write_text(json.dumps(TINY))
    text = "".join(f"{number} times {number % 7} is {number * (number % 7)}\n" for number in range(lines))
    (folder / "text.txt").write_text(text)
    return {
        "model_config": str(folder / "tiny.json"), "dataset": str(folder / "text.txt"), "tokenizer": "bytes",
        "seq_len": 32, "batch_size": 2, "learning_rate": 1e-2, "steps": 6, "storage_path": str(folder / "store"),
    }  # fmt: skip


def settings_for(flags: dict[str, Any], *, world: int, name: str, submission: str = "s1") -> dict[str, Any]:
    """What the driver hands to each worker, with the data prepared in this process."""
    from fsdp_job.config import JobConfig
    from fsdp_job.driver import _prepare_data

    cfg = JobConfig(**flags, run_name=name)
    os.environ.setdefault("EKS_RAY_TRAIN_CACHE_DIR", str(Path(flags["storage_path"]).parent / "cache"))
    prepared = _prepare_data(cfg, flags["storage_path"])
    return {
        "config": cfg.to_dict(), "prepared": prepared.to_json(), "submission": submission, "run_name": name,
        "storage_path": flags["storage_path"], "storage_asked": True, "starting_world": world,
    }  # fmt: skip


def run_job(
    flags: dict[str, Any], *, world: int, name: str, nodes: int = 1, submission: str = "s1", starting_world: int | None = None,
    before: Callable[[int], None] | None = None,
) -> Run:  # fmt: skip
    """Train with these flags on ``world`` processes; ``before(rank)`` runs in each first (a picklable function)."""
    settings = settings_for(flags, world=starting_world or world, name=name, submission=submission)
    answers = call_on_ranks(_attempt, world=world, nodes=nodes, args=(settings, before))
    events: list[dict[str, Any]] = next((answer["events"] for answer in answers if answer["events"]), [])
    return Run([answer["outcome"] for answer in answers], events)


def _attempt(settings: dict[str, Any], before: Callable[[int], None] | None) -> dict[str, Any]:
    from fsdp_job.events import LocalSink
    from fsdp_job.ranks import from_environment
    from fsdp_job.worker import run_attempt

    ranks = from_environment()
    sink = LocalSink(quiet=True)
    if before is not None:
        before(ranks.rank)
    try:
        outcome = run_attempt(settings, ranks, sink)
    except Exception as error:
        outcome = {"rank": ranks.rank, "status": "raised", "error": f"{type(error).__name__}: {error}"}
    return {"outcome": {**outcome, "failures": sink.held.failures}, "events": sink.history if ranks.is_first else []}


def call_on_ranks(function: Callable[..., Any], *, world: int, nodes: int = 1, args: tuple[Any, ...] = ()) -> list[Any]:
    """``function(*args)`` in ``world`` processes of one gloo group; their results by rank. Fails with a rank's traceback."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    parent, workers = [], []
    store = Path(_scratch()) / f"store-{os.getpid()}-{next(_numbers)}"
    for rank in range(world):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_child, args=(theirs, rank, world, nodes, str(store), pickle.dumps((function, args)))
        )  # fmt: skip
        process.start()
        theirs.close()
        parent.append(ours)
        workers.append(process)
    try:
        answers = []
        for rank, pipe in enumerate(parent):
            if not pipe.poll(TIMEOUT_S):
                raise AssertionError(f"rank {rank} gave no answer within {TIMEOUT_S} s")
            kind, value = pipe.recv()
            if kind == "error":
                raise AssertionError(f"rank {rank}:\n{value}")
            answers.append(pickle.loads(value))
        return answers
    finally:
        for process in workers:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
        store.unlink(missing_ok=True)


def _child(pipe: Any, rank: int, world: int, nodes: int, store: str, payload: bytes) -> None:
    import torch
    import torch.distributed as dist

    per_node = world // nodes
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank % per_node),
        "LOCAL_WORLD_SIZE": str(per_node), "GROUP_RANK": str(rank // per_node), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
        function, args = pickle.loads(payload)
        pipe.send(("ok", pickle.dumps(function(*args))))  # as bytes: tensors would travel as shared files
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
    finally:
        pipe.close()
        os._exit(0)


def _scratch() -> str:
    import tempfile

    return tempfile.gettempdir()


_numbers = iter(range(1_000_000))
