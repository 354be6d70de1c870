"""What Ray Train runs on each worker: the algorithm, with its failures told apart and its evidence always reported."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from fsdp_job.config import JobConfig
from fsdp_job.data import PreparedData
from fsdp_job.errors import JobError
from fsdp_job.events import Sink
from fsdp_job.ranks import Ranks, broadcast_from_first, from_ray
from fsdp_job.storage import RunFolder
from fsdp_job.train_func import Job, train
from fsdp_job.transport import Evidence
from fsdp_job.watch import SLOW_PHASES, Watch

NOISE = re.compile(
    r"Connection (closed|reset)|Broken pipe|NCCL|ncclSystemError|gloo|Timed out waiting|connectFullMesh|Socket|recvBytes"
    r"|store->get|SIGABRT",
    re.IGNORECASE,
)
"""What ranks say when another one has gone: never the cause where some other failure was recorded."""


def ray_worker(settings: dict[str, Any]) -> dict[str, Any] | None:
    """Entry of one Ray Train worker; ``settings`` holds plain values and the sink's handle. Rank 0's return counts."""
    import ray.train

    from fsdp_job.sink import ActorSink

    sink, ranks = ActorSink(settings["sink"]), from_ray()
    kind = "GPU" if ranks.device.type == "cuda" else "CPU"
    outcome = run_attempt(
        settings, ranks, sink, preempted=lambda: ray.train.get_preemption_info() is not None,
        free_slots=(lambda: int(ray.available_resources().get(kind, 0))) if settings.get("may_grow") else None,
    )  # fmt: skip
    return outcome if outcome["rank"] == 0 else None


def run_attempt(
    settings: dict[str, Any],
    ranks: Ranks,
    sink: Sink,
    *,
    preempted: Callable[[], bool] = lambda: False,
    free_slots: Callable[[], int] | None = None,
) -> dict[str, Any]:
    """One attempt on one rank. The ``transport`` event and the failure's record go out before anything else ends.

    A stop that all ranks reach alike and that another attempt could not avoid (loss not finite, flags that do not fit) is
    returned, so that Ray neither restarts nor prints a traceback; anything else is raised.
    """
    cfg = JobConfig(**settings["config"])
    evidence = Evidence(
        rank=ranks.rank, node=ranks.node, local_rank=ranks.local_rank, world_size=ranks.world_size
    )  # fmt: skip
    watch = Watch(
        sink, evidence, rank=ranks.rank, node=ranks.node, world_size=ranks.world_size,
        limit_s=cfg.collective_timeout_seconds,
    )  # fmt: skip
    # Reading a large model's weights or bringing the data to the node takes its time and is no hang.
    watch.beat(0, "setup", allow=SLOW_PHASES)
    try:
        hopeless = _hopeless(sink, ranks)
        if hopeless is not None:
            return {"rank": ranks.rank, **hopeless}
        run = RunFolder(settings["storage_path"], settings["run_name"])
        job = Job(
            cfg=cfg, architecture=settings.get("architecture"), prepared=PreparedData.from_json(settings["prepared"]), run=run, submission=settings["submission"],
            starting_world=settings["starting_world"], ranks=ranks, sink=sink, watch=watch, preempted=preempted,
            free_slots=free_slots,
            save_checkpoints=_storage_is_shared(run, ranks, asked=settings["storage_asked"]),
        )  # fmt: skip
        return {"rank": ranks.rank, **train(job)}
    except BaseException as error:
        sink.failure(_record(error, ranks))
        if isinstance(error, JobError) and error.alike:
            return {"rank": ranks.rank, "status": "failed", "error": str(error)}
        raise
    finally:
        watch.stop()
        sink.emit("transport", **evidence.fields(), final=True)
        sink.flush(20)
        evidence.clean()


def _record(error: BaseException, ranks: Ranks) -> dict[str, Any]:
    text = str(error).strip() or type(error).__name__
    return {
        "rank": ranks.rank, "node": ranks.node, "time": time.time(), "type": type(error).__name__, "message": text[:2000],
        "retryable": getattr(error, "retryable", True), "exit_code": getattr(error, "exit_code", None),
        "noise": not isinstance(error, JobError) and bool(NOISE.search(text)),
    }  # fmt: skip


def _hopeless(sink: Sink, ranks: Ranks) -> dict[str, Any] | None:
    """The outcome to return at once where an earlier attempt met an error that every attempt would meet."""
    earlier = None
    if ranks.is_first:
        failures = sink.begin_attempt()["failures"]
        earlier = next((f for f in failures if not f["retryable"]), None)
    earlier = broadcast_from_first(earlier)
    return None if earlier is None else {"status": "failed", "error": earlier["message"]}  # type: ignore[index]


def _storage_is_shared(run: RunFolder, ranks: Ranks, *, asked: bool) -> bool:
    """True where every rank sees what rank 0 writes. If not: an error where the user chose the path, else no checkpoints."""
    name = f".probe-{uuid.uuid4().hex}"
    box: Any = None
    if ranks.is_first:
        try:
            run.root.make()
            run.root.join(name).write_json({"pid": os.getpid()})
            box = name
        except OSError as error:
            box = error
    box = broadcast_from_first(box)
    if isinstance(box, OSError):
        raise JobError(f"cannot write to the storage path {run.root.uri}: {box}")
    sees: list[Any] = [None] * ranks.world_size
    dist.all_gather_object(sees, (ranks.node, run.root.join(str(box)).exists()))
    if ranks.is_first:
        probe = run.root.join(str(box))
        probe.fs.delete_file(probe.path)
    blind = sorted({node for node, seen in sees if not seen})
    if blind and asked:
        raise JobError(
            f"--storage-path {run.root.uri} is not shared: nodes {', '.join(blind)} do not see what node {ranks.node} wrote; "
            "give s3://bucket/prefix or a folder that all nodes mount"
        )
    if blind and ranks.is_first:
        print(
            f"no checkpoints: {run.root.uri} is not shared by all nodes; give --storage-path s3://… or a shared folder"
        )
    return not blind
