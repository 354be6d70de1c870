"""The algorithm: config -> model -> shard -> optimizer -> resume -> loop, one verb a module."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from fsdp_job import copies, optim, restore, sharding, state, weights
from fsdp_job import model as models
from fsdp_job.checkpoint import Checkpointer, SaveResult
from fsdp_job.config import JobConfig, plan_batch
from fsdp_job.data import Position, PreparedData
from fsdp_job.data_spec import RANDOM
from fsdp_job.errors import JobUsageError, NonFiniteLossError
from fsdp_job.events import Sink
from fsdp_job.export import export_hf
from fsdp_job.loop import Loop
from fsdp_job.metrics import Board, Speed, attention_shape, flops_per_token, peak_memory_gib, peak_tflops
from fsdp_job.precision import choose_precision, use_float8
from fsdp_job.profiling import Profile
from fsdp_job.ranks import Ranks, broadcast_from_first
from fsdp_job.room import Room
from fsdp_job.state import Progress
from fsdp_job.step import Stepper
from fsdp_job.step_graph import StepGraph, host_bound
from fsdp_job.storage import RunFolder, Saved
from fsdp_job.watch import SLOW_PHASES, Watch


@dataclass(frozen=True, kw_only=True)
class Job:
    """One attempt: what the driver decided (all but ``ranks``, ``sink`` and ``watch``) and this process's place."""

    cfg: JobConfig
    prepared: PreparedData
    run: RunFolder
    submission: str
    starting_world: int
    save_checkpoints: bool
    architecture: dict[str, Any] | None = None
    ranks: Ranks
    sink: Sink
    watch: Watch
    preempted: Callable[[], bool] = lambda: False
    free_slots: Callable[[], int] | None = None
    """How many more ranks the cluster could place now; None where the run is not to grow."""


def train(job: Job) -> dict[str, Any]:
    """Train one attempt to its end; returns rank 0's summary (steps, final loss, mean step time, last checkpoint).

    Its ``status`` is ``grow`` where the attempt ended after a checkpoint so that more ranks can go on.
    """
    cfg, ranks = job.cfg, job.ranks
    precision = choose_precision(cfg.precision, ranks.device)
    compiled = cfg.compile if cfg.compile is not None else ranks.device.type == "cuda"
    if ranks.device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
        torch.cuda.set_stream(torch.cuda.Stream())  # the default stream cannot be recorded (step_graph.py)

    built = models.build(cfg, ranks.device.type, job.architecture)
    total, in_products = models.count_parameters(built.model)
    root = models.CausalLMLoss(built.model, compiled=compiled)

    kind = sharding.choose_sharding(
        cfg.sharding, parameters=total, ranks=ranks, node_memory_bytes=_node_memory(ranks)
    )  # fmt: skip
    mesh = sharding.make_mesh(kind, ranks)
    if ranks.device.type == "cuda":
        copies.install()
    if precision == "fp8":
        use_float8(built.blocks)
    keep = sharding.keeps_gathered(
        block_parameters=sum(p.numel() for block in built.blocks for p in block.parameters()),
        compute_bytes=4 if precision == "fp32" else 2, gpu_memory_bytes=_gpu_memory(ranks),
    )  # fmt: skip
    sharding.apply(
        root, built.blocks, mesh, checkpointing=cfg.activation_checkpointing, compiled=compiled, bf16=precision != "fp32",
        keep_gathered=keep,
    )  # fmt: skip
    weights.materialize(root, built, ranks.device)

    parameters = list(built.model.parameters())
    optimizer = optim.ShardedAdamW(parameters, cfg, ranks.device)

    state.seed_everything(cfg.seed, ranks)
    resumed = _resume(job, lambda: state.tensors_of(built.model, optimizer, ranks), optimizer)
    if resumed.saved is None:
        if built.source:
            weights.load_pretrained(built, ranks, mesh)
        else:
            weights.initialize(built, ranks.device, cfg.seed)

    plan = plan_batch(global_batch=resumed.global_batch, batch_size=cfg.batch_size, world_size=ranks.world_size)
    small = host_bound(parameters=in_products, blocks=len(built.blocks), tokens=plan.micro_batch * cfg.seq_len)
    graph = StepGraph(root) if ranks.device.type == "cuda" and compiled and small else None
    layers, width = attention_shape(built.model.config)
    speed = Speed(
        tokens_per_step=plan.global_batch * cfg.seq_len, world_size=ranks.world_size,
        flops_per_token=flops_per_token(
            parameters=in_products, layers=layers, attention_width=width, seq_len=cfg.seq_len
        ),
        peak_tflops=peak_tflops(torch.cuda.get_device_name(ranks.device)) if ranks.device.type == "cuda" else None,
    )  # fmt: skip
    if ranks.is_first:
        _announce(job, resumed, kind, precision, compiled, total, plan, speed)

    facts = {
        "lineage": resumed.lineage, "submission": job.submission, "config": cfg.to_dict(), "sharding": kind,
        "global_batch": plan.global_batch, "world_size": ranks.world_size, "fingerprint": job.prepared.fingerprint,
        "resumed_step": resumed.progress.step,
    }  # fmt: skip
    loop = Loop(
        cfg=cfg, plan=plan, prepared=job.prepared, ranks=ranks,
        stepper=Stepper(root, optimizer, mesh, kind, ranks, cfg.max_grad_norm, graph, cfg.dataset != RANDOM),
        progress=resumed.progress, checkpointer=_checkpointer(job, resumed),
        save_state=lambda: state.tensors_of(built.model, optimizer, ranks), facts=facts, sink=job.sink, watch=job.watch,
        speed=speed, board=Board(job.run.root.join("tensorboard")) if ranks.is_first and job.save_checkpoints else None,
        profile=Profile(
            steps=cfg.profile, first=cfg.warmup_steps + 1, cuda=ranks.device.type == "cuda",
            target=job.run.root.join("profile") if ranks.is_first else None,
        ),
        preempted=job.preempted, room=_room(job, plan.global_batch), saved_step=resumed.saved_step,
    )  # fmt: skip
    try:
        loop.run()
        exported = None
        if loop.grown_to is None and cfg.export == "hf":
            job.watch.beat(loop.progress.step, "export", allow=SLOW_PHASES)
            exported = export_hf(built, cfg, ranks, job.run.root.join("export"), bf16=precision != "fp32")
    finally:
        if loop.board is not None:
            loop.board.close()
    return _summary(loop, exported)


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """Where an attempt starts: ``saved`` None is a fresh start; ``lineage`` the attempt in which this descent began."""

    saved: Saved | None
    progress: Progress
    attempt: int
    lineage: int
    global_batch: int
    saved_step: int | None
    """The step of ``saved`` where it is of this very line: then the line needs none of its own at that step."""


def _resume(job: Job, tensors: Callable[[], dict[str, Any]], optimizer: optim.ShardedAdamW) -> Resumed:
    """Agree on the attempt's number and on the newest usable checkpoint, and load it."""
    cfg, ranks, run = job.cfg, job.ranks, job.run
    found: list[Saved] = []
    facts: Any = None
    if ranks.is_first:
        found = restore.candidates(run, cfg.resume, job.submission)
        facts = {"attempt": run.next_attempt(), "lineage": run.current_lineage()}
    facts = broadcast_from_first(facts)
    attempt: int = facts["attempt"]
    began = time.perf_counter()
    filled = tensors()
    by_path = cfg.resume not in ("auto", "never")
    saved, messages = restore.load_newest(found, filled, exact=by_path)
    progress, lineage, of_this_line = Progress(), attempt, False
    global_batch = cfg.sequences_per_step(job.starting_world)
    if saved is not None:
        state.apply_loaded(filled, optimizer, ranks)
        progress = Progress.from_json(saved.marker)
        own_run = saved.location.path.startswith(run.root.path + "/")
        # A rewind by path begins a line of its own, which `auto` then follows; a restart of it in the same submission goes on.
        goes_on = not by_path or (own_run and saved.marker.get("submission") == job.submission)
        lineage = facts["lineage"] if goes_on and facts["lineage"] is not None else attempt
        of_this_line = own_run and saved.lineage == lineage
        global_batch = _global_batch(cfg, saved.marker, global_batch)
        if saved.marker["fingerprint"] != job.prepared.fingerprint:
            if own_run:
                raise JobUsageError(
                    f"the data differ from those of {saved.location.uri} (dataset, tokenizer, sequence length or seed "
                    "changed), so its position means nothing; give the same data, another --run-name, or --resume never"
                )
            progress = replace(progress, position=Position(0, 0))
    if ranks.is_first and job.save_checkpoints:
        run.record_attempt(
            attempt,
            {
                "lineage": lineage, "submission": job.submission, "world_size": ranks.world_size, "time": time.time(),
                "resumed_from": saved.location.uri if saved else None,
            },
        )  # fmt: skip
    if ranks.is_first and (saved is not None or attempt > 1):
        job.sink.emit(
            "restart", attempt=attempt, step=progress.step, world_size=ranks.world_size, passed_over=messages,
            resumed_from=saved.location.uri if saved else None, seconds=round(time.perf_counter() - began, 3),
        )  # fmt: skip
    return Resumed(
        saved=saved, progress=progress, attempt=attempt, lineage=lineage, global_batch=global_batch,
        saved_step=progress.step if of_this_line else None,
    )  # fmt: skip


def _global_batch(cfg: JobConfig, marker: dict[str, Any], from_flags: int) -> int:
    """The checkpoint's global batch, unless the flags that make it up were changed since."""
    before = marker["config"]
    same = (before["batch_size"], before["accumulate"]) == (cfg.batch_size, cfg.accumulate)
    return int(marker["global_batch"]) if same else from_flags


def _checkpointer(job: Job, resumed: Resumed) -> Checkpointer | None:
    if not job.save_checkpoints:
        return None

    def report(result: SaveResult) -> None:
        if job.ranks.is_first:
            job.sink.emit(
                "checkpoint", step=result.step, path=result.path, seconds=round(result.seconds, 4), error=result.error,
                blocking_seconds=round(result.blocking_seconds, 4), bytes=result.bytes, committed=result.committed,
            )  # fmt: skip

    checkpointer = Checkpointer(
        job.run, attempt=resumed.attempt, keep=job.cfg.keep, device=job.ranks.device,
        timeout_s=SLOW_PHASES * job.cfg.collective_timeout_seconds, on_result=report,
    )  # fmt: skip
    checkpointer.last_good = resumed.saved.location.uri if resumed.saved else None
    return checkpointer


def _room(job: Job, global_batch: int) -> Room | None:
    world, most = job.ranks.world_size, job.starting_world
    if job.free_slots is None or world >= most or not (job.save_checkpoints and job.cfg.checkpoint_every):
        return None
    return Room(world=world, most=most, global_batch=global_batch, free=job.free_slots)


def _gpu_memory(ranks: Ranks) -> int | None:
    return None if ranks.device.type != "cuda" else torch.cuda.get_device_properties(ranks.device).total_memory


def _node_memory(ranks: Ranks) -> int | None:
    memory = _gpu_memory(ranks)
    return None if memory is None else memory * ranks.local_world_size


def _announce(
    job: Job, resumed: Resumed, kind: str, precision: str, compiled: bool, total: int, plan: Any, speed: Speed
) -> None:
    cfg, ranks = job.cfg, job.ranks
    device = torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else "cpu"
    job.sink.emit(
        "config", **{**cfg.to_dict(), "sharding": kind, "precision": precision, "compile": compiled},
        world_size=ranks.world_size, nodes=ranks.num_nodes, device=device, backend=dist.get_backend(), parameters=total,
        micro_batch=plan.micro_batch, micro_batches=plan.accumulate, global_batch=plan.global_batch,
        tokens_per_step=speed.tokens_per_step, flops_per_token=speed.flops_per_token, peak_tflops=speed.peak_tflops,
        train_sequences=job.prepared.n_train, held_out_sequences=job.prepared.n_eval, attempt=resumed.attempt,
        run_folder=job.run.root.uri, submission=job.submission, torch=torch.__version__,
    )  # fmt: skip


def _summary(loop: Loop, exported: str | None) -> dict[str, Any]:
    mean = loop.mean_step_s
    return {
        "status": "succeeded" if loop.grown_to is None else "grow",
        "world_size": loop.ranks.world_size,
        "grow_to": loop.grown_to,
        "step": loop.progress.step,
        "final_loss": loop.progress.loss,
        "checkpoint": loop.checkpointer.last_good if loop.checkpointer else None,
        "mean_step_s": mean,
        **(loop.speed.fields(mean) if mean else {}),
        "peak_memory_gib": round(peak_memory_gib(loop.ranks.device), 3),
        "profile": loop.profile.path,
        "export": exported,
    }


__all__ = ["Job", "NonFiniteLossError", "train"]
