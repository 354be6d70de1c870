"""``plan --html``: one page with everything in it (no network, no script), light and dark, down to 390 px wide."""

from __future__ import annotations

from dataclasses import asdict
from html import escape

from .predict import Advice, Prediction, cheapest, fastest
from .report import duration, money, seconds, warnings

_COLORS = ("--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8", "--c9")
_TIME_PARTS = ("matmul", "attention", "elementwise", "copies", "optimizer", "network_exposed", "host")
_TIME_NAMES = {
    "matmul": "matrix products", "attention": "attention", "elementwise": "element-wise", "copies": "FSDP copies",
    "optimizer": "optimizer", "network_exposed": "waiting for the network", "host": "waiting for the host",
}  # fmt: skip
_MEMORY_NAMES = {"outside": "CUDA and NCCL", "gathered": "gathered weights", "margin": "fragmentation margin"}

_STYLE = """
:root{--bg:#fff;--fg:#1b1f24;--mute:#5b6570;--line:#d6dbe1;--card:#f6f8fa;--warn:#9a3412;
--c1:#2563eb;--c2:#7c3aed;--c3:#0891b2;--c4:#65a30d;--c5:#ca8a04;--c6:#dc2626;--c7:#64748b;--c8:#db2777;--c9:#0d9488}
@media(prefers-color-scheme:dark){:root{--bg:#0f1318;--fg:#e6eaee;--mute:#9aa5b1;--line:#2c343d;--card:#171d24;--warn:#fdba74;
--c1:#60a5fa;--c2:#a78bfa;--c3:#22d3ee;--c4:#a3e635;--c5:#facc15;--c6:#f87171;--c7:#94a3b8;--c8:#f472b6;--c9:#2dd4bf}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
main{max-width:1248px;margin:0 auto;padding:20px 16px 48px}h1{font-size:1.5rem;margin:0 0 4px}h2{font-size:1.1rem;margin:32px 0 8px}
p{margin:4px 0}.mute{color:var(--mute)}.warn{color:var(--warn)}.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px}
table{border-collapse:collapse;width:100%;font-size:.86rem;white-space:nowrap;font-variant-numeric:tabular-nums}
th,td{padding:6px 9px;text-align:right;border-bottom:1px solid var(--line)}th:first-child,td:first-child{text-align:left}
tr:last-child td{border-bottom:0}th{background:var(--card);font-weight:600}.no{color:var(--warn);font-weight:600}
.row{margin:10px 0}.row b{font-weight:600}.bar{display:flex;height:22px;border-radius:4px;overflow:hidden;background:var(--card)}
.bar i{display:block;height:100%;min-width:0}.key{display:flex;flex-wrap:wrap;gap:4px 14px;margin:8px 0;font-size:.85rem}
.key i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:5px}.limit{position:relative}
.limit u{position:absolute;top:-3px;bottom:-3px;width:2px;background:var(--fg)}
"""


def _key(names: list[str]) -> str:
    items = [f'<span><i style="background:var({_COLORS[n]})"></i>{escape(name)}</span>' for n, name in enumerate(names)]
    return f'<div class="key">{"".join(items)}</div>'


def _bar(parts: dict[str, float], scale: float, limit: float | None, unit: str) -> str:
    cells = []
    for n, (name, value) in enumerate(parts.items()):
        width = 100.0 * value / scale if scale else 0.0
        title = f"{name}: {value:.3g} {unit}"
        cells.append(f'<i style="width:{width:.3f}%;background:var({_COLORS[n]})" title="{escape(title)}"></i>')
    mark = (
        f'<u style="left:{min(100.0, 100.0 * limit / scale):.2f}%" title="{limit:.1f} {unit}"></u>'
        if limit and scale
        else ""
    )
    return f'<div class="limit"><div class="bar">{"".join(cells)}</div>{mark}</div>'


def _table(predictions: list[Prediction]) -> str:
    head = (
        "cluster", "fits", "GiB a GPU", "sharding", "GB a node and step", "step", "tokens/s", "of peak", "network", "$ an hour",
        "time", "cost", "$ a million tokens",
    )  # fmt: skip
    rows = []
    for p in predictions:
        fits = "yes" if p.fits else '<span class="no">no</span>'
        per_million = p.cost.usd_per_million_tokens
        cells = (
            escape(p.cluster.name), fits, f"{p.memory.needed_gib:.1f} of {p.cluster.gpu_memory_gib:.0f}", p.sharding,
            f"{p.traffic.node_bytes / 1e9:.2f}", seconds(p.time.total), f"{p.tokens_per_s:,.0f}", f"{p.mfu:.1%}",
            f"{p.time.network_share:.0%}", money(p.cost.usd_per_hour), duration(p.cost.hours), money(p.cost.usd),
            "no price" if per_million is None else f"${per_million:.4f}",
        )  # fmt: skip
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f'<div class="scroll"><table><tr>{"".join(f"<th>{h}</th>" for h in head)}</tr>{"".join(rows)}</table></div>'


def render(predictions: list[Prediction], advice: list[list[Advice]]) -> str:
    """The page for these candidates (at least one), as HTML text."""
    run = predictions[0].run
    quick, cheap = fastest(predictions), cheapest(predictions)
    best = ""
    if quick is not None:
        price = cheap.cluster.name if cheap else "no price known"
        best = f"<p>Fastest: <b>{escape(quick.cluster.name)}</b>. Cheapest a token: <b>{escape(price)}</b>.</p>"
    warned = [line for p, found in zip(predictions, advice, strict=True) for line in warnings(p, found)]
    slowest = max(p.time.total for p in predictions)
    time_rows = "".join(
        f'<div class="row"><b>{escape(p.cluster.name)}</b> <span class="mute">{seconds(p.time.total)}, '
        f"{p.tflops_per_gpu:.0f} TFLOP/s a GPU</span>"
        f"{_bar({_TIME_NAMES[k]: getattr(p.time, k) for k in _TIME_PARTS}, slowest, None, 's')}</div>"
        for p in predictions
    )
    largest = max(max(p.memory.needed_gib, p.cluster.gpu_memory_gib) for p in predictions)
    memory = [{_MEMORY_NAMES.get(k, k): v for k, v in asdict(p.memory).items()} for p in predictions]
    memory_rows = "".join(
        f'<div class="row"><b>{escape(p.cluster.name)}</b> <span class="mute">{p.memory.needed_gib:.1f} of '
        f"{p.cluster.gpu_memory_gib:.0f} GiB</span>{_bar(parts, largest, p.cluster.gpu_memory_gib, 'GiB')}</div>"
        for p, parts in zip(predictions, memory, strict=True)
    )
    unmeasured = sorted({p.cluster.chip.name for p in predictions if not p.cluster.chip.measured})
    note = (
        f"<p class='mute'>Not measured on {escape(', '.join(unmeasured))}: the H200's share of its peak is carried over.</p>"
        if unmeasured
        else ""
    )
    extra = f"<p class='mute'>{escape(run.shape.note)}</p>" if run.shape.note else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>Plan: {escape(run.shape.name)}</title><style>{_STYLE}</style></head><body><main>'
        f"<h1>{escape(run.shape.name)}</h1>"
        f'<p class="mute">{run.shape.parameters / 1e9:.2f} billion parameters · {run.batch_size} × {run.seq_len} tokens a GPU · '
        f"{run.accumulate} micro-batch{'es' if run.accumulate > 1 else ''} · {escape(run.precision)} · activation checkpointing "
        f"{escape(run.checkpointing)}</p>{extra}{best}"
        + "".join(f'<p class="warn">{escape(line)}</p>' for line in warned)
        + f"<h2>Candidates</h2>{_table(predictions)}"
        f"<h2>Time of a step</h2>{_key(list(_TIME_NAMES.values()))}{time_rows}"
        f"<h2>Memory of a GPU</h2>{_key(list(memory[0]))}{memory_rows}"
        f"<p class='mute'>The line marks what the GPU has. Prices: on demand, us-east-1, cluster's fixed cost included.</p>{note}"
        "</main></body></html>\n"
    )
