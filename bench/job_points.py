"""The job's own training at many points in one Ray Train worker: what ``plan_check.py`` measures."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from train_speed_ways import Point, fresh_memory, measured


def job_worker(settings: dict[str, Any]) -> list[Point]:
    """Our job's own ``train`` (job/fsdp_job/train_func.py), point after point in one process: for many points in little time.

    ``train_speed.py`` runs ``job/train.py`` itself; this is for ``plan_check.py``, which needs dozens of points. A point's
    ``nodes`` = 2 makes each rank say that it is a node of its own, so that hybrid sharding replicates across them.
    """
    import torch

    sys.path.insert(0, settings["job_dir"])
    from ray.train.torch import get_device

    from fsdp_job.config import JobConfig
    from fsdp_job.ranks import Ranks

    rows = []
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    for point in settings["points"]:
        per_node = world // point.get("nodes", 1)
        ranks = Ranks(
            rank=rank, world_size=world, local_rank=rank % per_node, local_world_size=per_node, node_rank=rank // per_node,
            node=f"node-{rank // per_node}", device=get_device(),
        )  # fmt: skip
        with fresh_memory():
            cfg = JobConfig(
                model_config=point["model_config"], steps=settings["warmup"] + settings["steps"], seq_len=point["seq"],
                batch_size=point["batch"], accumulate=point.get("accumulate", 1), sharding=point.get("sharding", "full"),
                activation_checkpointing=point.get("checkpointing", "none"), warmup_steps=settings["warmup"], dataset="random",
                tokenizer="bytes", compile=True, precision=point.get("precision", "bf16"),
            )  # fmt: skip
            began = time.perf_counter()
            try:
                times, loss, kind = _train_once(cfg, ranks, settings)
            except torch.OutOfMemoryError as error:
                rows.append({**point, "way": "job", "error": str(error).splitlines()[0][:200]})
                _keep_row(rows[-1], settings)
                continue
            row = measured({**point, "way": "job", "took_s": 0.0, "chosen": kind}, times, loss)
            rows.append({**row, "took_s": time.perf_counter() - began})
            _keep_row(rows[-1], settings)
        torch._dynamo.reset()
    return rows


def _keep_row(row: Point, settings: dict[str, Any]) -> None:
    """Append a row to the file that the settings name, on rank 0: a run that is cut short still leaves what it measured."""
    import torch

    if settings.get("rows_file") and torch.distributed.get_rank() == 0:
        with Path(settings["rows_file"]).open("a") as stream:
            stream.write(json.dumps(row) + "\n")


def _train_once(cfg: Any, ranks: Any, settings: dict[str, Any]) -> tuple[list[float], float, str]:
    """(step times after the warm-up, last loss, sharding) of one call of the job's ``train``; every rank keeps its own."""
    from fsdp_job.data import DataSpec, prepare
    from fsdp_job.events import LocalSink
    from fsdp_job.model import load_config
    from fsdp_job.storage import RunFolder
    from fsdp_job.train_func import Job, train
    from fsdp_job.transport import Evidence
    from fsdp_job.watch import Watch

    folder = settings["scratch"]
    prepared = prepare(
        DataSpec(
            dataset="random", tokenizer="bytes", seq_len=cfg.seq_len, seed=0, vocab_size=load_config(cfg).vocab_size,
            eval_sequences=0, cache_dir=folder, storage_path=folder,
        )
    )  # fmt: skip
    sink = LocalSink(quiet=True)
    evidence = Evidence(rank=ranks.rank, node=ranks.node, local_rank=ranks.local_rank, world_size=ranks.world_size)
    watch = Watch(sink, evidence, rank=ranks.rank, node=ranks.node, world_size=ranks.world_size, limit_s=600)
    try:
        train(
            Job(
                cfg=cfg, prepared=prepared, run=RunFolder(folder, "bench"), submission="bench", starting_world=ranks.world_size,
                save_checkpoints=False, ranks=ranks, sink=sink, watch=watch,
            )
        )  # fmt: skip
    finally:
        watch.stop()
    steps = [event for event in sink.history if event["event"] == "step"]
    kinds = [event["sharding"] for event in sink.history if event["event"] == "config"]
    if not ranks.is_first:
        return [0.0], float("nan"), ""
    return [event["step_s"] for event in steps[cfg.warmup_steps :]], steps[-1]["loss"], kinds[0]
