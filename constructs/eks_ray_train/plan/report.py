"""A prediction as JSON values and as text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .predict import Advice, Prediction, cheapest, fastest


def as_json(prediction: Prediction, advice: list[Advice]) -> dict[str, Any]:
    """One candidate of ``plan --json``: units are in the names."""
    p = prediction
    return {
        "cluster": p.cluster.name,
        "instance_transport": p.cluster.transport,
        "nodes": p.cluster.nodes,
        "gpus": p.cluster.gpus,
        "chip": p.cluster.chip.name,
        "chip_measured": p.cluster.chip.measured,
        "sharding": p.sharding,
        "fits": p.fits,
        "gpu_memory_gib": round(p.cluster.gpu_memory_gib, 2),
        "memory_gib": {
            **{k: round(v, 3) for k, v in asdict(p.memory).items()},
            "peak": round(p.memory.peak_gib, 3),
            "needed": round(p.memory.needed_gib, 3),
        },
        "traffic_gb_per_step": {
            "gpu": round(p.traffic.gpu_bytes / 1e9, 4),
            "node": round(p.traffic.node_bytes / 1e9, 4),
            **{k: round(v / 1e9, 4) for k, v in p.traffic.by_kind().items()},
        },
        "step_s": {**{k: round(v, 6) for k, v in asdict(p.time).items()}, "total": round(p.time.total, 6)},
        "tokens_per_step": p.tokens_per_step,
        "tokens_per_s": round(p.tokens_per_s, 1),
        "tokens_per_s_per_gpu": round(p.tokens_per_s / p.cluster.gpus, 1),
        "tflops_per_gpu": round(p.tflops_per_gpu, 1),
        "mfu": round(p.mfu, 4),
        "network_share": round(p.time.network_share, 4),
        "network_is_limit": p.network_is_limit,
        "usd_per_hour": None if p.cost.usd_per_hour is None else round(p.cost.usd_per_hour, 4),
        "hours": round(p.cost.hours, 6),
        "usd": None if p.cost.usd is None else round(p.cost.usd, 6),
        "usd_per_million_tokens": None
        if p.cost.usd_per_million_tokens is None
        else round(p.cost.usd_per_million_tokens, 6),
        "advice": [
            {"change": a.change, "tokens_per_s": round(a.prediction.tokens_per_s, 1), "gain": round(a.gain, 2)}
            for a in advice
        ],
    }


def document(predictions: list[Prediction], advice: list[list[Advice]]) -> dict[str, Any]:
    """The whole of ``plan --json``."""
    run = predictions[0].run
    quick, cheap = fastest(predictions), cheapest(predictions)
    return {
        "model": run.shape.name,
        "parameters": run.shape.parameters,
        "note": run.shape.note,
        "run": {
            "seq_len": run.seq_len, "batch_size": run.batch_size, "accumulate": run.accumulate, "sharding": run.sharding,
            "precision": run.precision, "activation_checkpointing": run.checkpointing,
        },
        "candidates": [as_json(p, a) for p, a in zip(predictions, advice, strict=True)],
        "fastest": quick.cluster.name if quick else None,
        "cheapest": cheap.cluster.name if cheap else None,
    }  # fmt: skip


def money(value: float | None) -> str:
    """USD for people: cents below a hundred, else whole."""
    if value is None:
        return "no price"
    return f"${value:,.2f}" if value < 100 else f"${value:,.0f}"


def seconds(value: float) -> str:
    """A step's time for people."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def duration(hours: float) -> str:
    """A run's time for people."""
    if hours * 3600 < 120:
        return f"{hours * 3600:.0f} s"
    if hours < 2:
        return f"{hours * 60:.0f} min"
    return f"{hours:.1f} h" if hours < 72 else f"{hours / 24:.1f} days"


def table(predictions: list[Prediction]) -> str:
    """One line a candidate under a header."""
    head = (
        "cluster", "fits", "GiB/GPU", "of", "sharding", "GB/node/step", "step", "tokens/s", "of peak", "network", "$/h", "time", "cost",
    )  # fmt: skip
    rows = [head]
    for p in predictions:
        rows.append(
            (
                p.cluster.name, "yes" if p.fits else "NO", f"{p.memory.needed_gib:.1f}", f"{p.cluster.gpu_memory_gib:.0f}", p.sharding,
                f"{p.traffic.node_bytes / 1e9:.2f}", seconds(p.time.total), f"{p.tokens_per_s:,.0f}", f"{p.mfu:.1%}",
                f"{p.time.network_share:.0%}", money(p.cost.usd_per_hour), duration(p.cost.hours), money(p.cost.usd),
            )
        )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def text(predictions: list[Prediction], advice: list[list[Advice]]) -> str:
    """All that ``plan`` prints for people."""
    run = predictions[0].run
    lines = [
        f"{run.shape.name}: {run.shape.parameters / 1e9:.2f} billion parameters, {run.batch_size} × {run.seq_len} tokens a GPU"
        + (f" × {run.accumulate} micro-batches" if run.accumulate > 1 else "")
        + f", {run.precision}, activation checkpointing {run.checkpointing}"
    ]
    if run.shape.note:
        lines.append(f"note: {run.shape.note}")
    lines += ["", table(predictions), ""]
    quick, cheap = fastest(predictions), cheapest(predictions)
    if len(predictions) > 1 and quick is not None:
        lines.append(f"fastest: {quick.cluster.name}; cheapest: {cheap.cluster.name if cheap else 'no price known'}")
    for p, found in zip(predictions, advice, strict=True):
        lines += warnings(p, found)
    if any(not p.cluster.chip.measured for p in predictions):
        names = sorted({p.cluster.chip.name for p in predictions if not p.cluster.chip.measured})
        lines.append(f"note: not measured on {', '.join(names)}: the H200's share of its peak is carried over")
    return "\n".join(lines)


def warnings(p: Prediction, advice: list[Advice]) -> list[str]:
    """What stands in the way on one candidate, with the change that helps most."""
    out = []
    if not p.supported:
        out.append(f"warning: {p.cluster.name}: {p.cluster.chip.name} has no fp8; use --precision bf16 there")
    elif not p.fits:
        hint = "smaller --batch-size or --seq-len, --activation-checkpointing full, more nodes, or a larger GPU"
        out.append(
            f"warning: {p.cluster.name} does not fit: needs {p.memory.needed_gib:.1f} GiB a GPU, has {p.cluster.gpu_memory_gib:.1f}; {hint}"
        )
    if p.network_is_limit:
        link = "the network" if p.cluster.nodes > 1 else "traffic between the node's GPUs"
        here = [a for a in advice if a.prediction.cluster == p.cluster]
        elsewhere = [a for a in advice if a.prediction.cluster != p.cluster]
        said = [
            f"{here[0].change} helps most ({here[0].gain:.1f} × the tokens/s)"
            if here
            else "no change tried helps there"
        ]
        said += [f"{a.change} ({a.gain:.1f} ×)" for a in here[1:3]]
        if elsewhere:
            said.append(f"elsewhere: {elsewhere[0].change} ({elsewhere[0].gain:.1f} ×)")
        out.append(
            f"warning: {p.cluster.name}: {link} is the limit ({p.time.network_share:.0%} of the step): {'; '.join(said)}"
        )
    if p.host_is_limit:
        share = p.time.host / p.time.total
        out.append(
            f"warning: {p.cluster.name}: the GPU waits for the host {share:.0%} of the step: {p.run.micro_tokens} tokens a GPU are too few; "
            f"raise --batch-size or --seq-len"
        )
    return out
