"""The ways of training that ``train_speed.py`` compares, each a function that a Ray Train worker runs.

Every function takes plain values and returns rank 0's measurements of each point: step times in seconds (host clock between
losses that have arrived, so nothing is timed while the device still works), peak memory in GiB and the last loss.
(Over 300 lines because the ways stand side by side, each complete in itself.)
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

Point = dict[str, Any]


def _torch() -> Any:
    import torch

    return torch


def batch_of(point: Point, vocab: int, device: Any, number: int) -> Any:
    """Random tokens [batch, seq_len + 1], other ones on each rank and step."""
    torch = _torch()
    rank = torch.distributed.get_rank()
    draw = torch.Generator().manual_seed(1_000_003 * number + rank)
    return torch.randint(0, vocab, (point["batch"], point["seq"] + 1), generator=draw).to(device)


def timed(step: Callable[[int], Any], *, warmup: int, steps: int, seconds: float) -> tuple[list[float], float]:
    """(seconds of each step after the warm-up, last loss); stops early after ``seconds``. ``step`` returns a device loss.

    A step's loss is read after the next step has been queued, as a training loop does that logs without stalling.
    """
    torch = _torch()
    times: list[float] = []
    waiting = None
    loss = float("nan")
    torch.cuda.synchronize()
    last = began = time.perf_counter()
    for number in range(warmup + steps + 1):
        queued = step(number)
        if waiting is not None:
            loss = float(waiting)
        now = time.perf_counter()
        if number > warmup:
            times.append(now - last)
        last, waiting = now, queued
        stop = torch.tensor(float(now - began > seconds and len(times) >= 3), device="cuda")
        torch.distributed.broadcast(stop, 0)
        if number % 4 == 3 and bool(stop):
            break
    return times, loss


def measured(point: Point, times: list[float], loss: float) -> Point:
    """One row of the result."""
    torch = _torch()
    return {
        **point, "step_s": times, "median_s": statistics.median(times), "loss": loss,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30, "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
    }  # fmt: skip


@contextlib.contextmanager
def fresh_memory() -> Iterator[None]:
    """Start a point with an empty allocator."""
    torch = _torch()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield
    gc.collect()
    torch.cuda.empty_cache()


def _model(config: dict[str, Any], dtype: Any) -> Any:
    """A model with random weights, made on the GPU: drawn on the CPU they take a minute at 1.5 billion parameters."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = dict(config)
    settings = AutoConfig.for_model(values.pop("model_type"), **values)
    settings.use_cache = False
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(settings, attn_implementation="sdpa", dtype=dtype)


def sample_worker(settings: dict[str, Any]) -> list[Point]:
    """The AWS sample's way, written from its description: FSDP1 through Ray's ``prepare_model`` with size-based wrapping, all
    in bf16, AdamW at its defaults, the model's own loss, and ``ray.train.report`` each step (measured with and without)."""
    import functools

    import ray.train
    import torch
    from ray.train.torch import get_device, prepare_model
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

    rows = []
    for point in settings["points"]:
        with fresh_memory():
            torch.manual_seed(0)
            model: Any = _model(settings["model"], torch.bfloat16)
            policy = functools.partial(size_based_auto_wrap_policy, min_num_params=int(settings["wrap_parameters"]))
            model = prepare_model(
                model, parallel_strategy="fsdp", parallel_strategy_kwargs={"auto_wrap_policy": policy}
            )
            optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)

            def step(
                number: int,
                *,
                report: bool = False,
                model: Any = model,
                optimizer: Any = optimizer,
                point: Point = point,
            ) -> Any:
                tokens = batch_of(point, settings["model"]["vocab_size"], get_device(), number)[:, :-1]
                optimizer.zero_grad()
                loss = model(input_ids=tokens, labels=tokens).loss
                loss.backward()
                optimizer.step()
                if report:
                    ray.train.report({"loss": loss.item(), "step": number})
                return loss.detach()

            times, loss = timed(step, warmup=settings["warmup"], steps=settings["steps"], seconds=settings["seconds"])
            rows.append(measured({**point, "way": "sample, no report"}, times, loss))
            if point.get("report"):
                reporting = functools.partial(step, report=True)
                times, loss = timed(reporting, warmup=2, steps=settings["report_steps"], seconds=60)
                rows.append(measured({**point, "way": "sample"}, times, loss))
            del model, optimizer, step
    return rows


def accelerate_worker(settings: dict[str, Any]) -> list[Point]:
    """Hugging Face accelerate with FSDP2 by block: fp32 weights, bf16 compute, gradient clipping, torch's AdamW."""
    import torch
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", reshard_after_forward=True, cpu_ram_efficient_loading=False,
        transformer_cls_names_to_wrap=[settings["block_class"]],
    )  # fmt: skip
    accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
    rows = []
    for point in settings["points"]:
        with fresh_memory():
            torch.manual_seed(0)
            model = _model(settings["model"], torch.float32)
            optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
            model, optimizer = accelerator.prepare(model, optimizer)

            def step(number: int, *, model: Any = model, optimizer: Any = optimizer, point: Point = point) -> Any:
                tokens = batch_of(point, settings["model"]["vocab_size"], accelerator.device, number)[:, :-1]
                loss = model(input_ids=tokens, labels=tokens).loss
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                return loss.detach()

            times, loss = timed(step, warmup=settings["warmup"], steps=settings["steps"], seconds=settings["seconds"])
            rows.append(measured({**point, "way": "accelerate, FSDP2"}, times, loss))
            accelerator.free_memory()
            del model, optimizer, step
    return rows


def check_worker(settings: dict[str, Any]) -> Point:
    """Correctness before speed: loss and gradient norm of the job's fast path (bf16, compiled, chunked loss, sharded) against
    the plain model in fp32 on one device with the same weights and tokens."""
    import torch

    sys.path.insert(0, settings["job_dir"])
    from fsdp_job import model as models
    from fsdp_job import sharding, weights
    from fsdp_job.config import JobConfig
    from fsdp_job.ranks import from_ray

    ranks = from_ray()
    cfg = JobConfig(model_config=settings["model_config"], dataset="random", tokenizer="bytes")
    built = models.build(cfg)
    root = models.CausalLMLoss(built.model, compiled=True, chunk_logits=2**22)
    mesh = sharding.make_mesh("full", ranks)
    sharding.apply(root, built.blocks, mesh, checkpointing="none", compiled=True, bf16=True)
    weights.materialize(root, built, ranks.device)
    weights.initialize(built, ranks.device, 0)
    sharded: dict[str, Any] = dict(built.model.named_parameters())
    full = {name: value.full_tensor() for name, value in sharded.items()}
    tokens = batch_of({"batch": 2, "seq": 512}, settings["model"]["vocab_size"], ranks.device, 1)
    torch.distributed.broadcast(tokens, 0)
    positions = torch.arange(512, device=ranks.device).expand(2, -1)
    root.loss_scale = torch.tensor(1.0 / tokens[:, 1:].numel(), device=ranks.device)
    scaled, _ = root(input_ids=tokens[:, :-1], labels=tokens[:, 1:].contiguous(), position_ids=positions)
    scaled.backward()
    ours = [p.grad.full_tensor().float() for p in sharded.values()]
    plain = _model(settings["model"], torch.float32).to(ranks.device)
    for name, value in plain.named_parameters():
        value.data.copy_(full[name])
    torch.backends.cuda.matmul.allow_tf32 = False
    logits = plain(input_ids=tokens[:, :-1], position_ids=positions).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    exact = [p.grad for p in plain.parameters()]
    difference = sum(float((a - b).square().sum()) for a, b in zip(ours, exact, strict=True)) ** 0.5
    norm = sum(float(b.square().sum()) for b in exact) ** 0.5
    return {
        "loss_fast": float(scaled), "loss_fp32": float(loss), "loss_relative": abs(float(scaled) - float(loss)) / float(loss),
        "gradient_relative": difference / norm,
    }  # fmt: skip
