"""A benchmark's report: ``bench.json`` and one page that opens without a network."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eks_ray_train.errors import UsageError

from . import page_style as style
from .events import plain
from .run_figures import curve
from .svg_chart import line_chart, size_text

if TYPE_CHECKING:
    from .bench_runs import Counted


def write_bench(folder: Path, document: dict[str, Any], runs: list[Counted]) -> Path:
    """Write both files; returns the page. Raises UsageError where the folder cannot be written."""
    path = folder / "bench.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bench.json").write_text(json.dumps(plain(document), indent=1, allow_nan=False), encoding="utf-8")
        path.write_text(render(document, runs), encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(
            f"cannot write the report to {folder}: {error.strerror or error}; choose another --report-dir"
        ) from None
    return path


def render(document: dict[str, Any], runs: list[Counted]) -> str:
    """The page."""
    title = "Transport benchmark" if document["benchmark"] == "transport" else "Bandwidth between nodes"
    parts = [f"<h1>{title}</h1>", f"<p class='mute'>{html.escape(str(document.get('cluster')))}</p>"]
    parts += _transport(document, runs) if document["benchmark"] == "transport" else _bandwidth(document)
    rows = [
        (run.over, run.repeat, "yes" if run.counts else "no", run.proof or run.why_not or "", run.result.submission_id)
        for run in runs
    ]
    parts += [
        "<h2>Runs</h2>",
        style.table(("transport", "run", "counts", "proof, or why it does not count", "id"), rows),
    ]
    known = [(key, value) for key, value in document.items() if not isinstance(value, dict | list)]
    parts += [
        "<h2>Cluster and arguments</h2>",
        style.facts([*known, ("job_args", " ".join(document.get("job_args") or []))]),
    ]
    return style.page(title, "\n".join(parts))


def _transport(document: dict[str, Any], runs: list[Counted]) -> list[str]:
    found = document["transports"]
    tiles = [
        (f"median step over {kind}", f"{one['median_step_s']['median']:.4g} s")
        for kind, one in found.items()
        if one["median_step_s"]["count"]
    ]
    if document.get("ratio"):
        tiles.append(("the second against the first", f"{document['ratio']:.2f} x"))
    rows = []
    for kind, one in found.items():
        step, rate = one["median_step_s"], one["median_tokens_per_s"]
        rows.append(
            (kind, step["count"], step["median"], step["low"], step["high"], _share(step["spread"]), rate["median"])
        )
    head = ("transport", "runs that count", "median step, s", "lowest, s", "highest, s", "spread", "tokens/s")
    counted = [run for run in runs if run.counts]
    curves = [(f"{run.over} {run.repeat}", curve(run.record, "step_s")[1:]) for run in counted]
    chart = line_chart(curves, label="step time", x_label="step (the first one left out)", from_zero=True)
    return [
        style.tiles(tiles),
        "<h2>Step time</h2>",
        style.table(head, rows),
        style.charts(style.figure("Seconds a step, each run", chart)),
    ]


def _bandwidth(document: dict[str, Any]) -> list[str]:
    parts = []
    curves = [
        (kind, [(float(row["bytes"]), row["bus_gb_s"]["median"]) for row in rows])
        for kind, rows in document["bandwidth"].items()
    ]
    best = {kind: max((value for _, value in points), default=None) for kind, points in curves}
    parts.append(
        style.tiles(
            [
                (f"highest bus bandwidth over {kind}", f"{value:.3g} GB/s")
                for kind, value in best.items()
                if value is not None
            ]
        )
    )
    line = document.get("line_rate_gb_s")
    chart = line_chart(curves, label="bus bandwidth", x_label="message, bytes", from_zero=True, log_x=True, limit=line)
    note = (
        f"GB/s; the dashed line is the instance's line rate, {line:g} GB/s"
        if line
        else "GB/s; the line rate is not known"
    )
    parts += ["<h2>Bus bandwidth of an all-reduce</h2>", style.charts(style.figure(note, chart))]
    for kind, rows in document["bandwidth"].items():
        cells = [
            (f"{size_text(row['bytes'])}B", f"{row['seconds']['median'] * 1e6:,.1f}", row["algorithm_gb_s"], row["bus_gb_s"]["median"], row["bus_gb_s"]["low"],
             row["bus_gb_s"]["high"], _share(row["line_rate_share"]))
            for row in rows
        ]  # fmt: skip
        head = ("message", "median, us", "algorithm, GB/s", "bus, GB/s", "lowest", "highest", "of line rate")
        parts += [f"<h2>Over {html.escape(kind)}</h2>", style.table(head, cells)]
    return parts


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
