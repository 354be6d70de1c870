"""``plan`` against measurement: step time and peak memory of the job at points that were not used to fit the plan's constants.

    python bench/plan_check.py                                   # about six minutes on two H200s; on one, the points of one
    python bench/plan_check.py --rows rows.jsonl                 # only compare rows that were measured before

Models of 0.1, 0.5, 1.5 and 3 billion parameters, sequences of 512, 2048 and 8192, with and without activation checkpointing,
full and hybrid sharding (each GPU a node of its own), on one and on all GPUs. Every point is the job's own ``train``
(fsdp_job/train_func.py) inside a Ray Train worker. Writes ``bench/results/plan_check.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO / "bench"), str(REPO / "constructs")]

MODELS = {
    "0.1b": "HuggingFaceTB/SmolLM2-135M", "0.5b": "Qwen/Qwen2.5-0.5B", "1.5b": "Qwen/Qwen2.5-1.5B", "3b": "Qwen/Qwen2.5-3B",
}  # fmt: skip
# (gpus, model, sequences a GPU, tokens a sequence, activation checkpointing, sharding). Not among them, since the constants come
# from there: 0.5b at 4 × 2048; 1.5b at 8 × 2048, 16 × 2048, 24 × 2048, 2 × 8192, 1 × 128, full sharding, no checkpointing, two GPUs; 7b.
POINTS = (
    (2, "1.5b", 32, 512, "none", "full"),
    (2, "0.1b", 32, 2048, "none", "full"),
    (2, "3b", 8, 2048, "none", "full"),
    (2, "0.5b", 16, 2048, "none", "full"),
    (2, "1.5b", 16, 2048, "full", "full"),
    (2, "1.5b", 12, 2048, "none", "hybrid"),
    (2, "0.1b", 128, 512, "none", "full"),
    (2, "3b", 2, 8192, "none", "full"),
    (2, "0.5b", 64, 512, "none", "full"),
    (2, "0.5b", 4, 8192, "full", "full"),
    (2, "3b", 32, 512, "full", "full"),
    (2, "0.5b", 16, 2048, "none", "hybrid"),
    (2, "1.5b", 4, 8192, "none", "full"),
    (1, "1.5b", 8, 2048, "none", "full"),
    (1, "0.5b", 8, 2048, "full", "full"),
    (1, "3b", 4, 2048, "none", "full"),
    (1, "1.5b", 16, 2048, "none", "full"),
    (1, "1.5b", 32, 512, "none", "full"),
    (1, "1.5b", 24, 2048, "full", "full"),
    (1, "0.5b", 64, 512, "none", "full"),
    (1, "0.5b", 4, 8192, "full", "full"),
    (1, "0.1b", 32, 2048, "none", "full"),
    (1, "0.1b", 128, 512, "none", "full"),
    (1, "3b", 2, 8192, "none", "full"),
    (1, "3b", 32, 512, "full", "full"),
)


def measure(folder: Path, rows_file: Path, *, warmup: int, steps: int) -> None:
    """Run all points; each row is appended to ``rows_file`` as soon as it is there."""
    import job_points
    import torch
    import train_speed

    from eks_ray_train.plan.known_models import known_config

    for short, name in MODELS.items():
        (folder / f"{short}.json").write_text(json.dumps({**known_config(name), "max_position_embeddings": 32768}))
    most = torch.cuda.device_count()
    with train_speed.ray_cluster(most):
        for gpus in sorted({p[0] for p in POINTS if p[0] <= most}, reverse=True):
            points = [
                {
                    "gpus": gpus, "model": model, "batch": batch, "seq": seq, "checkpointing": checkpointing, "sharding": sharding,
                    "nodes": gpus if sharding == "hybrid" else 1, "model_config": str(folder / f"{model}.json"),
                }
                for count, model, batch, seq, checkpointing, sharding in POINTS
                if count == gpus
            ]  # fmt: skip
            settings = {
                "points": points, "warmup": warmup, "steps": steps, "job_dir": str(REPO / "job"), "scratch": str(folder),
                "rows_file": str(rows_file),
            }  # fmt: skip
            train_speed.through_ray(job_points.job_worker, settings, gpus)


def compare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each measured row with what ``plan`` says of it, and the relative errors."""
    from eks_ray_train.plan import Cluster, Run, find_model, make_chip, predict

    out = []
    for row in rows:
        if "error" in row:
            out.append(
                {key: row[key] for key in ("gpus", "model", "batch", "seq", "checkpointing", "sharding", "error")}
            )
            continue
        nodes = row["nodes"]
        # Two GPUs of one host, also where each counts as a node: NVLink between them.
        cluster = Cluster(
            name="bench", chip=make_chip("H200 SXM 141GB", 989, 4800), gpus_per_node=row["gpus"] // nodes, nodes=nodes,
            gpu_memory_gib=143771 / 1024, intra_gb_s=270, inter_gb_s=270, inter_latency_s=65e-6,
        )  # fmt: skip
        run = Run(
            shape=find_model(MODELS[row["model"]]), seq_len=row["seq"], batch_size=row["batch"], sharding=row["sharding"],
            checkpointing=row["checkpointing"],
        )  # fmt: skip
        plan = predict(run, cluster)
        peak_gib = plan.memory.peak_gib
        measured = statistics.median(row["step_s"])
        out.append(
            {
                **{key: row[key] for key in ("gpus", "model", "batch", "seq", "checkpointing", "sharding")},
                "step_s": round(measured, 5), "step_s_min": round(min(row["step_s"]), 5), "step_s_max": round(max(row["step_s"]), 5),
                "plan_step_s": round(plan.time.total, 5), "step_error": round(plan.time.total / measured - 1, 4),
                "peak_gib": round(row["peak_gib"], 3), "plan_peak_gib": round(peak_gib, 3),
                "peak_error": round(peak_gib / row["peak_gib"] - 1, 4),
            }
        )  # fmt: skip
    return out


def missing(rows: list[dict[str, Any]]) -> list[list[Any]]:
    """Points that have no row (a run that was cut short), of the numbers of GPUs that were there."""
    have = {(r["gpus"], r["model"], r["batch"], r["seq"], r["checkpointing"], r["sharding"]) for r in rows}
    most = max((r["gpus"] for r in rows), default=0)
    return [list(point) for point in POINTS if point[0] <= most and point not in have]


def main() -> int:
    """Measure (or read), compare, write; 0 also where a prediction is off: the file says by how much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=None, help="compare these rows instead of measuring")
    parser.add_argument("--raw", type=Path, default=None, help="also keep the measured rows here, as they come")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--out", type=Path, default=REPO / "bench" / "results" / "plan_check.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plan-check-") as name:
        rows_file = args.rows or args.raw or Path(name) / "rows.jsonl"
        if args.rows is None:
            measure(Path(name), rows_file, warmup=args.warmup, steps=args.steps)
        compared = compare([json.loads(line) for line in rows_file.read_text().splitlines()])
    print(f"{'point':<44}{'step s':>9}{'plan':>9}{'off':>8}{'GiB':>8}{'plan':>8}{'off':>8}")
    for row in compared:
        point = (
            f"{row['gpus']} GPU {row['model']} {row['batch']} × {row['seq']} {row['checkpointing']} {row['sharding']}"
        )
        if "error" in row:
            print(f"{point:<44} {row['error']}")
            continue
        print(
            f"{point:<44}{row['step_s']:>9.4f}{row['plan_step_s']:>9.4f}{row['step_error']:>+8.1%}{row['peak_gib']:>8.1f}"
            f"{row['plan_peak_gib']:>8.1f}{row['peak_error']:>+8.1%}"
        )
    args.out.write_text(
        json.dumps(
            {
                "command": "python bench/plan_check.py",
                "device": "NVIDIA H200",
                "rows": compared,
                "missing": missing(compared),
            },
            indent=1,
        )
        + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
