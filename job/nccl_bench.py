"""Bandwidth between the ranks by message size, through torch.distributed inside Ray Train: ``python nccl_bench.py`` (see ``--help``).

All-reduce of fp32 tensors; each ``bandwidth`` event holds the seconds of one operation, once a repetition, the slowest rank's.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from typing import Any

from fsdp_job.config import JobConfig
from fsdp_job.driver import ENVIRONMENT, first_cause
from fsdp_job.ending import Ending, telling
from fsdp_job.errors import EXIT_FAILED
from fsdp_job.nccl_bench_flags import parse

CPU_MAX_BYTES = 16 * 2**20


def sizes(low: int, high: int, factor: int) -> list[int]:
    """Message sizes in bytes, multiples of 4, ``high`` the last one."""
    found = []
    size = max(4, low // 4 * 4)
    while size < high:
        found.append(size)
        size *= factor
    return [*found, max(4, high // 4 * 4)]


def bench_worker(settings: dict[str, Any]) -> None:
    """One rank. Its ``transport`` event goes out on every ending."""
    import torch
    import torch.distributed as dist

    from fsdp_job.ranks import from_ray
    from fsdp_job.sink import ActorSink
    from fsdp_job.transport import Evidence

    ranks, sink = from_ray(), ActorSink(settings["sink"])
    evidence = Evidence(rank=ranks.rank, node=ranks.node, local_rank=ranks.local_rank, world_size=ranks.world_size)
    on_gpu = ranks.device.type == "cuda"
    try:
        if ranks.is_first:
            device = torch.cuda.get_device_name(ranks.device) if on_gpu else "cpu"
            sink.emit(
                "config",
                world_size=ranks.world_size,
                nodes=ranks.num_nodes,
                device=device,
                backend=dist.get_backend(),
                torch=torch.__version__,
            )
        for size in settings["sizes"]:
            tensor = torch.zeros(size // 4, dtype=torch.float32, device=ranks.device)

            def operate(count: int, tensor: torch.Tensor = tensor) -> float:
                began = time.perf_counter()
                for _ in range(count):
                    dist.all_reduce(tensor)
                if on_gpu:
                    torch.cuda.synchronize()
                return time.perf_counter() - began

            operate(settings["warm_up"])
            seconds = []
            for _ in range(settings["repeat"]):
                dist.barrier()
                seconds.append(operate(settings["iterations"]) / settings["iterations"])
            slowest = torch.tensor(seconds, dtype=torch.float64, device=ranks.device)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if ranks.is_first:
                sink.emit(
                    "bandwidth", collective="all_reduce", bytes=size, seconds=slowest.tolist(), iterations=settings["iterations"],
                    world_size=ranks.world_size, nodes=ranks.num_nodes,
                )  # fmt: skip
    finally:
        sink.emit("transport", **evidence.fields(), final=True)
        sink.flush(20)
        evidence.clean()


def run(argv: Sequence[str], ending: Ending) -> None:
    """Wait for the cluster, measure, fill ``ending``."""
    args = parse(argv)

    import ray
    from ray.train import ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.config import RunConfig
    from ray.train.v2.api.exceptions import TrainingFailedError

    from fsdp_job import cluster
    from fsdp_job.sink import Printer, start_sink
    from fsdp_job.transport import nccl_environment

    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    cfg = JobConfig(num_workers=args.num_workers, wait_seconds=args.wait_seconds)
    cluster.connect(cfg)
    world, on_gpus = cluster.wait_for_workers(cfg)
    high = args.max_bytes or max(args.min_bytes, 2**30 if on_gpus else CPU_MAX_BYTES)
    name = f"nccl-bench-{uuid.uuid4().hex[:8]}"
    sink = start_sink()
    printer = Printer(sink)
    failed: Exception | None = None
    try:
        with tempfile.TemporaryDirectory(prefix="ray-train-") as folder:
            env = nccl_environment(name, os.environ) if on_gpus else {}
            TorchTrainer(
                bench_worker,  # type: ignore[arg-type]
                train_loop_config={
                    "sink": sink, "sizes": sizes(args.min_bytes, high, args.factor), "iterations": args.iterations,
                    "warm_up": args.warm_up, "repeat": args.repeat,
                },
                torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if on_gpus else "gloo"),
                scaling_config=ScalingConfig(num_workers=world, use_gpu=on_gpus, resources_per_worker=None if on_gpus else {"CPU": 1}),
                run_config=RunConfig(  # type: ignore[arg-type]
                    name=name, storage_path=folder, worker_runtime_env={"env_vars": env} if env else None
                ),
            ).fit()  # fmt: skip
        ending.succeed()
    except TrainingFailedError as error:
        failed = error
    finally:
        seen = printer.finish()
        if failed is None:
            ray.shutdown()
    if failed is not None:
        ending.fail(EXIT_FAILED, first_cause(seen["failures"], failed))
        print(f"nccl_bench.py: {failed}", file=sys.stderr, flush=True)


def main(argv: Sequence[str]) -> int:
    """The process's exit code."""
    if {"-h", "--help"} & set(argv):
        parse(["--help"])
    ending = Ending()
    with telling(ending, "nccl_bench.py"):
        run(argv, ending)
    return ending.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
