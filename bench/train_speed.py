"""How fast and in how little memory the job trains, beside the AWS sample's way and accelerate's, on the same GPUs.

    python bench/train_speed.py                                    # all ways, Qwen2.5-1.5B, on this machine's GPUs
    python bench/train_speed.py --points 8x2048 --ways job sample  # less
    python bench/train_speed.py --smoke                            # tiny model on the CPU, only our job: is the bench whole?

In one call: correctness (loss and gradient against fp32 on one device), the ceilings (a bf16 matrix product of 8192³ and a
device copy), then each way through Ray. Ours is ``job/train.py`` itself with its own flags, read by its event lines. Writes
JSON and a chart (SVG) to ``bench/results/``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO / "bench"), str(REPO / "constructs")]

import train_speed_chart  # noqa: E402
import train_speed_ways as ways  # noqa: E402
from train_speed_ceilings import ceilings  # noqa: E402
from train_speed_chart import table  # noqa: E402

WAYS = ("sample", "accelerate", "job", "worker")
BLOCK_CLASSES = {"qwen2": "Qwen2DecoderLayer", "qwen3": "Qwen3DecoderLayer", "llama": "LlamaDecoderLayer"}


@contextlib.contextmanager
def ray_cluster(gpus: int) -> Iterator[str]:
    """A Ray cluster of this process's own; gives its address."""
    import ray

    with tempfile.TemporaryDirectory(prefix="ts", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(
            address="local", num_cpus=max(4, os.cpu_count() or 1), num_gpus=gpus, include_dashboard=False, _temp_dir=folder,
            logging_level=logging.ERROR,
        )  # fmt: skip
        try:
            yield ray.get_runtime_context().gcs_address
        finally:
            ray.shutdown()


def through_ray(worker: Callable[[dict[str, Any]], Any], settings: dict[str, Any], gpus: int) -> Any:
    """Rank 0's answer of a Ray Train run of ``worker``."""
    from ray.train import ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.config import RunConfig

    with tempfile.TemporaryDirectory(prefix="train-speed-") as folder:
        trainer: Any = TorchTrainer(
            worker, train_loop_config=settings, torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl"),
            scaling_config=ScalingConfig(num_workers=gpus, use_gpu=True), run_config=RunConfig(storage_path=folder),  # type: ignore[arg-type]
        )  # fmt: skip
        return trainer.fit().return_value


def run_job(
    point: dict[str, Any], model_config: Path, address: str | None, *, steps: int, warmup: int, more: list[str]
) -> dict[str, Any]:
    """One run of ``job/train.py``; its event lines give step times, peak memory and the last loss."""
    command = [
        sys.executable, str(REPO / "job" / "train.py"), "--model-config", str(model_config), "--dataset", "random", "--tokenizer",
        "bytes", "--steps", str(warmup + steps), "--warmup-steps", str(warmup), "--seq-len", str(point["seq"]), "--batch-size",
        str(point["batch"]), *point.get("flags", []), *more,
    ]  # fmt: skip
    env = {**os.environ, **({"RAY_ADDRESS": address} if address else {})}
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"event"')]
    found = [e for e in events if e["event"] == "step"]
    if done.returncode != 0 or len(found) < warmup + steps:
        raise RuntimeError(f"job/train.py ended with {done.returncode}: {done.stderr.strip()[-1500:]}")
    times = [e["step_s"] for e in found[warmup:]]
    return {
        **point, "way": "job", "step_s": times, "median_s": statistics.median(times), "loss": found[-1]["loss"],
        "peak_gib": max(e["peak_memory_gib"] for e in found), "took_s": time.perf_counter() - began,
        "checkpoints": [e for e in events if e["event"] == "checkpoint"], "command": " ".join(command[1:]).replace(f"{REPO}/", ""),
    }  # fmt: skip


def _in_one_worker(
    args: argparse.Namespace, settings: dict[str, Any], model_config: Path, gpus: int, folder: str
) -> list[dict[str, Any]]:
    """The job's own ``train`` at many points in one Ray Train worker: half a minute less a point than ``job/train.py``."""
    import job_points

    points = [
        {
            **point, "model_config": str(model_config), "precision": (point.get("flags") or ["", "bf16"])[1],
            "label": point.get("label", "job") + " (one worker)",
        }
        for point in args.worker_points
    ]  # fmt: skip
    rows: Path = args.out.with_suffix(".rows.jsonl")
    rows.unlink(missing_ok=True)
    more = {"points": points, "warmup": args.warmup, "steps": args.steps, "scratch": folder, "rows_file": str(rows)}
    through_ray(job_points.job_worker, {**settings, **more}, gpus)
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    rows.unlink()
    return [{k: v for k, v in row.items() if k != "model_config"} for row in found if "error" not in row]


def _one_way(
    way: str,
    args: argparse.Namespace,
    settings: dict[str, Any],
    model_config: Path,
    address: str,
    gpus: int,
    folder: str,
) -> Iterator[tuple[list[dict[str, Any]], str]]:
    """Rows of a way as they come, each with why it is missing (empty: it is not); one failing point leaves the others."""
    more = ["--storage-path", folder, "--num-workers", str(gpus), *args.job_flags.split()]
    if way == "job":
        run = partial(
            run_job, model_config=model_config, address=address, steps=args.steps, warmup=args.warmup, more=more
        )
        works: list[Callable[[], Any]] = [partial(run, point) for point in [*args.points, *args.job_points]]
    elif way == "worker":
        works = [partial(_in_one_worker, args, settings, model_config, gpus, folder)]
    else:
        points = [{**p, "report": p["batch"] * p["seq"] == 16384 and p["seq"] == 2048} for p in args.points]
        works = [partial(through_ray, getattr(ways, f"{way}_worker"), {**settings, "points": points}, gpus)]
    for work in works:
        try:
            found = work()
            yield (found if isinstance(found, list) else [found]), ""
        except Exception as error:
            yield [], f"{type(error).__name__}: {str(error)[-1500:]}"


def parse_point(text: str) -> dict[str, Any]:
    """``8x2048`` (sequences a GPU × tokens), or ``8x2048:fp8`` with a precision (our job only) -> a point."""
    size, _, precision = text.partition(":")
    batch, _, seq = size.partition("x")
    if not (batch.isdigit() and seq.isdigit() and int(batch) and int(seq)) or precision not in ("", "bf16", "fp8"):
        raise argparse.ArgumentTypeError(f"a point is BATCHxSEQUENCE[:bf16|fp8], for example 8x2048, got {text!r}")
    point: dict[str, Any] = {"batch": int(batch), "seq": int(seq)}
    return {**point, "label": f"job, {precision}", "flags": ["--precision", precision]} if precision else point


def finish(rows: list[dict[str, Any]], shape: Any, ceiling: float | None) -> None:
    """Add tokens/s, TFLOP/s and spread to each row, in place."""
    for row in rows:
        row["tokens_per_s_per_gpu"] = row["batch"] * row["seq"] / row["median_s"]
        row["tflops_per_gpu"] = row["tokens_per_s_per_gpu"] * shape.flops_per_token(row["seq"]) / 1e12
        row["share_of_ceiling"] = row["tflops_per_gpu"] / ceiling if ceiling else None
        row["spread"] = (max(row["step_s"]) - min(row["step_s"])) / row["median_s"]
        row["step_s"] = [round(value, 5) for value in row["step_s"]]


def main() -> int:
    """Run the bench; 0 when every way asked for ran or was skipped with a reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Qwen/Qwen2.5-1.5B", help="a model that plan knows, or a config.json")
    parser.add_argument(
        "--points", nargs="+", type=parse_point, default=[parse_point(p) for p in ("8x2048", "2x8192", "1x128")]
    )
    parser.add_argument(
        "--job-points",
        nargs="*",
        type=parse_point,
        default=[parse_point(p) for p in ("16x2048", "8x2048:fp8", "16x2048:fp8")],
        help="points of our job alone",
    )
    parser.add_argument(
        "--worker-points",
        nargs="*",
        type=parse_point,
        default=[parse_point(p) for p in ("24x2048", "24x2048:fp8", "32x512")],
        help="more points of our job, all in one worker",
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--gpus", type=int, default=None, help="default: all")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0, help="most seconds of timed steps a point")
    parser.add_argument(
        "--wrap-parameters",
        type=float,
        default=2e7,
        help="the sample's size-based wrapping: least parameters of a unit",
    )
    parser.add_argument("--job-flags", default="", help="more flags for job/train.py, in one argument")
    parser.add_argument("--smoke", action="store_true", help="tiny model on the CPU, our job only")
    parser.add_argument("--out", type=Path, default=REPO / "bench" / "results" / "train_speed.json")
    args = parser.parse_args()
    import torch

    from eks_ray_train.plan import find_model, shape_from_config
    from eks_ray_train.plan.known_models import known_config, known_models

    shape = find_model(args.model)
    config = (
        dict(known_config(shape.name)) if shape.name in known_models() else json.loads(Path(args.model).read_text())
    )
    config.setdefault("max_position_embeddings", 32768)
    if args.smoke:
        config.update(
            vocab_size=512,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=128,
        )
    shape = shape_from_config(config, name=shape.name if not args.smoke else "tiny")
    gpus = 0 if args.smoke else (args.gpus or torch.cuda.device_count())
    if not gpus and not args.smoke:
        parser.error(
            "no GPU found: all ways but a smoke run of the job need one (FSDP1 needs an accelerator); give --smoke"
        )
    rows: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    result: dict[str, Any] = {
        "command": "python bench/train_speed.py " + " ".join(sys.argv[1:]), "model": shape.name, "gpus": gpus,
        "device": torch.cuda.get_device_name(0) if gpus else platform.processor() or "cpu",
        "versions": {"torch": torch.__version__, "python": platform.python_version(), "ray": _version("ray"), "transformers": _version("transformers")},
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        model_config = Path(folder) / "config.json"
        model_config.write_text(json.dumps(config))
        small = Path(folder) / "small.json"
        small_config = {**config, "num_hidden_layers": 4}
        small.write_text(json.dumps(small_config))
        settings = {
            "model": config, "points": args.points, "warmup": args.warmup, "steps": args.steps, "seconds": args.seconds, "report_steps": 4,
            "wrap_parameters": args.wrap_parameters, "block_class": BLOCK_CLASSES.get(str(config["model_type"]), ""),
            "job_dir": str(REPO / "job"),
        }  # fmt: skip
        if args.smoke:
            more = ["--num-workers", "2", "--storage-path", folder, *args.job_flags.split()]
            rows += [
                run_job(p, model_config, None, steps=args.steps, warmup=args.warmup, more=more) for p in args.points
            ]
        else:
            result["ceilings"] = ceilings()
            print(json.dumps(result["ceilings"]), flush=True)
            with ray_cluster(gpus) as address:
                check = {"model": small_config, "model_config": str(small), "job_dir": settings["job_dir"]}
                result["correctness"] = through_ray(ways.check_worker, check, gpus)
                print(json.dumps(result["correctness"]), flush=True)
                for way in args.ways:
                    for found, problem in _one_way(way, args, settings, model_config, address, gpus, folder):
                        rows += found
                        if problem:
                            skipped[way] = problem
                            print(f"{way} skipped: {problem}", file=sys.stderr, flush=True)
                    finish([row for row in rows if "spread" not in row], shape, result["ceilings"]["matmul_tflops"])
                    print(table(rows), flush=True)
                    _write(args.out, {**result, "rows": rows, "skipped": skipped})
    if args.smoke:
        finish(rows, shape, None)
        print(table(rows))
    result.update(rows=rows, skipped=skipped)
    _write(args.out, result)
    print(f"results: {args.out}")
    return 0


def _write(path: Path, result: dict[str, Any]) -> None:
    """The document and its chart."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    if result["rows"]:
        path.with_suffix(".svg").write_text(train_speed_chart.render(result))


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    sys.exit(main())
