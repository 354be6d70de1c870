"""The job's driver: flags -> cluster -> data -> ``TorchTrainer.fit()`` -> exit code, with a ``done`` event on every ending."""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from typing import Any

from fsdp_job.architecture import read_architecture
from fsdp_job.check import check_files
from fsdp_job.config import JobConfig
from fsdp_job.ending import Ending, telling
from fsdp_job.errors import EXIT_FAILED, EXIT_OK, JobUsageError
from fsdp_job.flags import build_parser, parse_args
from fsdp_job.hub_token import TOKEN_ENV, load_token, with_token

START_TIMEOUT_S = 20
"""After a lost node Ray Train waits so long for the dead node's workers before it tries again or takes fewer (its default: 60)."""

ENVIRONMENT = {
    # Each event line comes once through the sink; what else the workers print is neither doubled nor folded together.
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(START_TIMEOUT_S),
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def main(argv: Sequence[str]) -> int:
    """Run the job that ``argv`` asks for; returns the process's exit code."""
    if {"-h", "--help"} & set(argv):
        build_parser().print_help()
        return EXIT_OK
    ending = Ending()
    with telling(ending, "train.py"):
        _run(argv, ending)
    return ending.code


def _run(argv: Sequence[str], ending: Ending) -> None:
    cfg = parse_args(argv)
    check_files(cfg)  # what can be wrong without a cluster is found before one is awaited
    load_token()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    submission = uuid.uuid4().hex[:12]
    run_name = ending.run_name = cfg.run_name or time.strftime("run-%Y%m%d-%H%M%S-") + submission[:6]

    from fsdp_job import cluster

    cluster.connect(cfg)
    world, on_gpus = cluster.wait_for_workers(cfg)
    _fit(cfg, ending, world=world, on_gpus=on_gpus, submission=submission, run_name=run_name)


def _prepare_data(cfg: JobConfig, storage_path: str) -> Any:
    from fsdp_job.data import DataSpec, prepare
    from fsdp_job.model import load_config

    config = load_config(cfg)
    held_out = cfg.eval_sequences or (max(8, 4 * cfg.batch_size) if cfg.eval_every else 0)
    return prepare(
        DataSpec(
            dataset=cfg.dataset, tokenizer=cfg.tokenizer or cfg.effective_model_id or "bytes", seq_len=cfg.seq_len,
            seed=cfg.seed, vocab_size=getattr(config, "vocab_size", None), eval_sequences=held_out,
            cache_dir=os.environ.get("EKS_RAY_TRAIN_CACHE_DIR") or f"{tempfile.gettempdir()}/eks-ray-train-cache",
            storage_path=storage_path,
        )
    )  # fmt: skip


def _fit(cfg: JobConfig, ending: Ending, *, world: int, on_gpus: bool, submission: str, run_name: str) -> None:
    import ray
    from ray.train.v2.api.exceptions import TrainingFailedError

    from fsdp_job.sink import Printer, start_sink
    from fsdp_job.storage import default_storage_path

    _check_fewest(cfg, world)
    storage = cfg.storage_path or default_storage_path()
    prepared = _prepare_data(cfg, storage)
    prepared.check_global_batch(cfg.sequences_per_step(world))
    sink = start_sink()
    printer = Printer(sink)
    ending.seen = printer.seen
    settings = {
        "architecture": read_architecture(cfg.model_config) if cfg.model_config else None,
        "config": cfg.to_dict(), "prepared": prepared.to_json(), "submission": submission, "run_name": run_name,
        "storage_path": storage, "storage_asked": cfg.storage_path is not None, "starting_world": world, "sink": sink,
    }  # fmt: skip
    failed: TrainingFailedError | None = None
    try:
        with tempfile.TemporaryDirectory(prefix="ray-train-") as ray_folder:
            ending.summary = _fit_growing(cfg, settings, world=world, on_gpus=on_gpus, folder=ray_folder)
    except TrainingFailedError as error:
        failed = error
    finally:
        ending.seen = _last_words(printer)
        if not sys.exc_info()[0]:
            ray.shutdown()
    if failed is None and ending.summary.get("status") == "succeeded":
        ending.succeed()
        return
    cause = first_cause(ending.seen["failures"], failed)
    ending.fail(cause.get("exit_code") or EXIT_FAILED, cause)
    where = f"rank {cause['rank']} on node {cause['node']}: " if cause.get("rank") is not None else ""
    print(f"train.py: the job failed; first: {where}{cause['type']}: {cause['message']}", file=sys.stderr, flush=True)


def _fit_growing(cfg: JobConfig, settings: dict[str, Any], *, world: int, on_gpus: bool, folder: str) -> dict[str, Any]:
    """Rank 0's summary of the last attempt; begins again, from the checkpoint just written, whenever more ranks can go on."""
    settings["may_grow"] = bool(cfg.min_workers)
    before, attempts, failures = 0, 0, cfg.effective_max_failures
    while True:
        result = _trainer(cfg, settings, world=world, on_gpus=on_gpus, folder=folder, max_failures=failures).fit()
        summary = dict(result.return_value or {})
        grow_to = summary.pop("grow_to", None)
        if grow_to is None:
            return summary
        print(
            f"train.py: room for {grow_to} ranks instead of {summary['world_size']}: going on from the checkpoint "
            f"at step {summary['step']}", file=sys.stderr, flush=True,
        )  # fmt: skip
        made = _attempts(settings["sink"]) - attempts
        attempts += made
        failures = max(0, failures - (made - 1))
        # What looked like room brought no more ranks, though none was lost since (something else took it): no second try, since
        # each costs a start.
        settings["may_grow"] = made > 1 or summary["world_size"] > before
        before = summary["world_size"]


def _attempts(sink: Any) -> int:
    import ray

    return int(ray.get(sink.state.remote(), timeout=60)["attempts"])


def _check_fewest(cfg: JobConfig, world: int) -> None:
    """Raises JobUsageError where ``--min-workers`` ranks could not share the global batch: the run would wait for more for ever."""
    batch = cfg.sequences_per_step(world)
    if cfg.min_workers and batch % cfg.min_workers:
        fit = [str(n) for n in range(1, world + 1) if batch % n == 0]
        raise JobUsageError(
            f"--min-workers must divide the global batch of {batch} sequences, got {cfg.min_workers}; give one of {', '.join(fit)}"
        )


def _last_words(printer: Any) -> dict[str, Any]:
    """The sink's state at the end; a sink that does not answer any more must not hide why the run ended."""
    import ray.exceptions

    try:
        return printer.finish()
    except ray.exceptions.RayError as error:
        print(f"events: the last ones are lost ({type(error).__name__}: {str(error).splitlines()[0]})", file=sys.stderr)
        return {**printer.seen, "failures": []}


def first_cause(failures: list[dict[str, Any]], failed: Exception | None) -> dict[str, Any]:
    """The failure that came first and is no mere echo of another rank's: what the user must read.

    Of the last attempt that recorded any; a worker that vanished (its process was killed) before ranks that lost touch.
    """
    last = [f for f in failures if f["attempt"] == failures[-1]["attempt"]] if failures else []
    real = sorted((f for f in last if not f["noise"]), key=lambda f: f["time"])
    if real:
        return real[0]
    by_rank = getattr(failed, "worker_failures", None) or {}
    for rank, error in sorted(by_rank.items()):
        if type(error).__name__ in (
            "RayActorError",
            "ActorDiedError",
            "WorkerCrashedError",
            "WorkerHealthCheckFailedError",
        ):
            return {"rank": rank, "node": None, "type": type(error).__name__, "message": str(error).splitlines()[0]}
    if last:
        return min(last, key=lambda f: f["time"])
    text = str(failed).strip() if failed else "the workers returned no result"
    return {"rank": None, "node": None, "type": type(failed).__name__ if failed else "NoResult", "message": text[:2000]}


def _trainer(
    cfg: JobConfig, settings: dict[str, Any], *, world: int, on_gpus: bool, folder: str, max_failures: int | None = None
) -> Any:
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.config import FailureConfig, RunConfig, ScalingConfig

    from fsdp_job.room import NO_RESIZE_S
    from fsdp_job.transport import nccl_environment
    from fsdp_job.watch import SLOW_PHASES
    from fsdp_job.worker import ray_worker

    env = nccl_environment(settings["submission"], os.environ) if on_gpus else {}
    if on_gpus:
        env.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/eks-ray-train-inductor")
    workers: Any = (cfg.min_workers, world) if cfg.min_workers and cfg.min_workers < world else world
    kind: Any = TorchTrainer
    if isinstance(workers, tuple):
        from fsdp_job.elastic import elastic_trainer

        kind = elastic_trainer(cfg.sequences_per_step(world))
    return kind(
        with_token(ray_worker, os.environ.get(TOKEN_ENV)),
        train_loop_config=settings,
        torch_config=TorchConfig(
            # A hang is found by fsdp_job.watch, which knows the phases; this only bounds what it could not see.
            backend="cpu:gloo,cuda:nccl" if on_gpus else "gloo",
            timeout_s=int(SLOW_PHASES * cfg.collective_timeout_seconds) + 60,
        ),
        scaling_config=ScalingConfig(
            num_workers=workers, use_gpu=on_gpus, resources_per_worker=None if on_gpus else {"CPU": 1},
            elastic_resize_monitor_interval_s=NO_RESIZE_S,
        ),
        run_config=RunConfig(
            # A name of its own each time: under a known name Ray would resume by itself, from what it remembers.
            name=f"{settings['run_name']}-{settings['submission']}-{uuid.uuid4().hex[:8]}",
            storage_path=folder,
            failure_config=FailureConfig(
                max_failures=cfg.effective_max_failures if max_failures is None else max_failures,
                # Attempts to place the workers, each of which waits for the start timeout; Ray's default never gives up.
                controller_failure_limit=math.ceil(cfg.wait_seconds / START_TIMEOUT_S),
            ),
            worker_runtime_env={"env_vars": env} if env else None,
        ),
    )
