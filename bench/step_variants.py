"""What each means of speeding the job's step up gives: the job's own ``train`` with one of them taken away or added.

    python bench/step_variants.py --out rows.jsonl --variants now,no-join --point 8x2048   # two GPUs, no Ray

Rows are appended as they come. Variants are named in ``VARIANTS``; ``now`` is the job as it is. With ``--kernels``, the kernels
that the variants are made of are timed by themselves too.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO / "bench"), str(REPO / "constructs"), str(REPO / "job")]


def _no_join() -> None:
    from fsdp_job import fuse

    fuse.join_products = lambda _module: 0  # type: ignore[assignment]


def _no_rows() -> None:
    from fsdp_job import loss

    loss._rows = _compiled_rows()  # type: ignore[assignment]


def _compiled_rows() -> Any:
    import torch

    from fsdp_job import loss

    kernel = torch.compile(loss._chunk_loss_and_gradient, dynamic=False)
    return lambda logits, labels, scale, softcap: kernel(logits, labels, scale, softcap)


def _no_copies() -> None:
    from fsdp_job import copies

    copies.install = lambda *_: None  # type: ignore[assignment]


def _no_graph() -> None:
    from fsdp_job import step_graph

    step_graph.MOST_MEMORY = 0.0


def _inductor(**values: Any) -> None:
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    for name, value in values.items():
        setattr(functorch if hasattr(functorch, name) else inductor, name, value)


def _fp8_all() -> None:
    from fsdp_job import precision

    precision.FP8_ELEMENTS = 0


def _fp8_fast(*products: str) -> None:
    """Fast accumulation in these products of the backward pass too (forward has it)."""
    import dataclasses

    from torchao.float8 import Float8LinearConfig
    from torchao.float8.config import Float8GemmConfig

    plain = Float8LinearConfig.from_recipe_name("tensorwise")
    changed: dict[str, Any] = {f"gemm_config_{product}": Float8GemmConfig(use_fast_accum=True) for product in products}
    fast = dataclasses.replace(plain, **changed)
    Float8LinearConfig.from_recipe_name = staticmethod(lambda _name: fast)


VARIANTS: dict[str, Callable[[], Any]] = {
    "now": lambda: None,
    "no-join": _no_join,
    "no-rows": _no_rows,
    "old": lambda: (_no_join(), _no_rows(), _no_graph(), _no_copies()),
    "no-graph": _no_graph,
    "no-copies": _no_copies,
    "tuned": partial(_inductor, coordinate_descent_tuning=True),
    "budget": partial(_inductor, activation_memory_budget=0.8),
    "autotune": partial(_inductor, max_autotune_gemm=True),
    "fp8-all": _fp8_all,
    "fp8-fast-input": partial(_fp8_fast, "grad_input"),
    "fp8-fast": partial(_fp8_fast, "grad_input", "grad_weight"),
}


def one_run(point: dict[str, Any], ranks: Any, folder: str, *, steps: int, warmup: int) -> dict[str, Any]:
    """Row of one call of the job's ``train``."""
    import torch

    from fsdp_job.config import JobConfig
    from fsdp_job.data import DataSpec, prepare
    from fsdp_job.events import LocalSink
    from fsdp_job.model import load_config
    from fsdp_job.storage import RunFolder
    from fsdp_job.train_func import Job, train
    from fsdp_job.transport import Evidence
    from fsdp_job.watch import Watch

    gc.collect()  # the run before leaves cycles that hold its weights: its memory would count as this one's
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    profile = 2 if point.get("profile") else 0
    cfg = JobConfig(
        model_config=point["model_config"], steps=warmup + steps + profile, seq_len=point["seq"], batch_size=point["batch"],
        sharding="full", warmup_steps=warmup + steps if profile else warmup, dataset="random", tokenizer="bytes", compile=True,
        precision=point["precision"], profile=profile,
    )  # fmt: skip
    prepared = prepare(
        DataSpec(
            dataset="random", tokenizer="bytes", seq_len=cfg.seq_len, seed=0, vocab_size=load_config(cfg).vocab_size,
            eval_sequences=0, cache_dir=folder, storage_path=folder,
        )
    )  # fmt: skip
    sink = LocalSink(quiet=True)
    evidence = Evidence(rank=ranks.rank, node=ranks.node, local_rank=ranks.local_rank, world_size=ranks.world_size)
    watch = Watch(sink, evidence, rank=ranks.rank, node=ranks.node, world_size=ranks.world_size, limit_s=600)
    began = time.perf_counter()
    run = RunFolder(folder, f"bench-{point['variant']}-{point['batch']}-{point['seq']}-{point['precision']}")
    try:
        train(
            Job(cfg=cfg, prepared=prepared, run=run, submission="bench", starting_world=ranks.world_size, save_checkpoints=False,
                ranks=ranks, sink=sink, watch=watch)
        )  # fmt: skip
    finally:
        watch.stop()
    found = [event for event in sink.history if event["event"] == "step"]
    if not ranks.is_first:
        return {}
    times = [event["step_s"] for event in found[warmup : warmup + steps]]
    row = {
        **{k: v for k, v in point.items() if k != "model_config"}, "median_s": statistics.median(times), "min_s": min(times), "max_s": max(times),
        "losses": [event["loss"] for event in found][: warmup + steps], "norm": found[-1]["grad_norm"],
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30, "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
        "took_s": time.perf_counter() - began,
    }  # fmt: skip
    if profile:
        row["kernels"] = kernels_of(Path(run.root.path) / "profile" / "rank-0.json.gz", profile)
    return row


def kernels_of(trace: Path, steps: int) -> dict[str, Any]:
    """Milliseconds a step by kernel (the 45 longest), by stream, and what the whole trace spans."""
    with gzip.open(trace) as stream:
        events = [e for e in json.load(stream)["traceEvents"] if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    by_name: dict[str, list[float]] = {}
    by_stream: dict[str, float] = {}
    for e in events:
        by_name.setdefault(e["name"][:110], []).append(e["dur"])
        by_stream[str(e["tid"])] = by_stream.get(str(e["tid"]), 0.0) + e["dur"] / 1e3 / steps
    top = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:45]
    span = max(e["ts"] + e["dur"] for e in events) - min(e["ts"] for e in events)
    return {
        "span_ms": span / 1e3 / steps, "streams": by_stream, "count": len(events) / steps,
        "top": [[name, round(sum(v) / 1e3 / steps, 3), round(len(v) / steps, 1)] for name, v in top],
    }  # fmt: skip


def worker(rank: int, world: int, args: argparse.Namespace, store: str, folder: str) -> None:
    """One process, one GPU."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)}
    import torch
    import torch.distributed as dist

    from fsdp_job.ranks import Ranks

    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{store}", rank=rank, world_size=world)
    ranks = Ranks(
        rank=rank, world_size=world, local_rank=rank, local_world_size=world, node_rank=0, node="here", device=device
    )
    began = time.monotonic()
    for text in args.point:
        size, _, precision = text.partition(":")
        batch, _, seq = size.partition("x")
        for variant in args.variants.split(","):
            late = torch.tensor(time.monotonic() - began > args.budget, device=device)
            dist.broadcast(late, 0)
            if late:
                break
            base, _, more = variant.partition("+")
            VARIANTS[base]()
            point = {
                "variant": args.label + variant, "batch": int(batch), "seq": int(seq), "precision": precision or "bf16",
                "model_config": args.model_config, "profile": more == "profile",
            }  # fmt: skip
            try:
                row = one_run(point, ranks, folder, steps=args.steps, warmup=args.warmup)
            except Exception as error:
                import traceback

                row = {
                    **point,
                    "error": f"{type(error).__name__}: {error}"[:3000],
                    "trace": traceback.format_exc()[-3000:],
                }
                print(json.dumps(row), flush=True)
            if rank == 0:
                with Path(args.out).open("a") as stream:
                    stream.write(json.dumps(row) + "\n")
                print({k: v for k, v in row.items() if k not in ("losses", "kernels", "trace")}, flush=True)
            if "error" in row:
                os._exit(3)
            torch._dynamo.reset()
    dist.barrier()
    os._exit(0)


def main() -> int:
    """Start the processes and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--variants", default="now")
    parser.add_argument("--label", default="")
    parser.add_argument("--point", nargs="+", default=["8x2048"])
    parser.add_argument("--model", default="Qwen/Qwen2.5-1.5B")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=6)
    parser.add_argument("--budget", type=float, default=1e9, help="no further run is begun after so many seconds")
    parser.add_argument("--gpus", type=int, default=2)
    args = parser.parse_args()
    import multiprocessing

    from eks_ray_train.plan.known_models import known_config

    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="variants-") as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps({**known_config(args.model), "max_position_embeddings": 32768}))
        args.model_config = str(config)
        processes = [
            context.Process(target=worker, args=(rank, args.gpus, args, f"{folder}/store", folder))
            for rank in range(args.gpus)
        ]
        for process in processes:
            process.start()
        while any(p.is_alive() for p in processes):
            if any(p.exitcode not in (None, 0) for p in processes):
                time.sleep(3)
                for process in processes:
                    process.kill()
            time.sleep(0.2)
        return max(abs(p.exitcode or 0) for p in processes)


if __name__ == "__main__":
    sys.exit(main())
