"""A run's report: ``report.json`` with all numbers, and ``report.html``, one file that opens without a network."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from eks_ray_train.errors import UsageError

from . import page_style as style
from .events import plain
from .run_figures import PARTS, bars, curve, figures, marks, number, time_line, versions
from .run_record import RunRecord
from .svg_chart import line_chart, nice_ticks, stacked_bars

__all__ = ["loss_curve", "nice_ticks", "write_report", "write_reports"]

Runs = list[tuple[str, RunRecord]]
_TILES_SHOWN_ELSEWHERE = {"failure", "verdict", "status", "usd", "wall_time_s", "final_loss", "steps"}


def write_report(folder: Path, document: dict[str, Any], record: RunRecord, *, title: str = "Training run") -> Path:
    """Write both files into ``folder`` and return the HTML one. Raises UsageError where the folder cannot be written."""
    return write_reports(folder, document, [("loss", record)], title=title)


def write_reports(folder: Path, document: dict[str, Any], runs: Runs, *, title: str) -> Path:
    """The same for several runs in one report, such as a run and the one that resumed it."""
    usd = number(document.get("usd"))
    derived = [figures(record, usd=usd if len(runs) == 1 else None) for _, record in runs]
    full = {
        **document,
        "versions": versions([record for _, record in runs], document),
        "runs": [
            {"name": name, **record.to_json(), "figures": found}
            for (name, record), found in zip(runs, derived, strict=True)
        ],
    }
    path = folder / "report.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(json.dumps(plain(full), indent=1, allow_nan=False), encoding="utf-8")
        path.write_text(render(title, full, runs, derived), encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(
            f"cannot write the report to {folder}: {error.strerror or error}; choose another folder (--report-dir, --out)"
        ) from None
    return path


def loss_curve(curves: list[tuple[str, list[tuple[int, float]]]]) -> str:
    """An SVG element: loss over steps, one line a run; a sentence where no step was told."""
    chart = line_chart(curves, label="training loss", x_label="step")
    return chart.partition('<div class="key">')[0]


def render(title: str, document: dict[str, Any], runs: Runs, derived: list[dict[str, Any]]) -> str:
    """The page."""
    heading = str(document.get("submission_id") or title)
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        _status(document, heading),
        style.tiles(_tiles(document, runs, derived[-1] if derived else {})),
        _why(document),
        "<h2>Curves</h2>",
        "<p class='mute'>Dotted lines are checkpoints, solid vertical ones restarts.</p>",
        _charts(runs),
        "<h2>Transport</h2>",
        _transport(document, runs),
        "<h2>Time line</h2>",
        _time_line(runs),
        "<h2>Versions, settings, cost</h2>",
        _facts(document, runs, derived),
    ]
    return style.page(title if heading == title else f"{heading}: {title}", "\n".join(parts))


def _status(document: dict[str, Any], heading: str) -> str:
    status = str(document.get("status", "unknown"))
    kind = "good" if status == "SUCCEEDED" else "bad"
    verdict = document.get("verdict")
    gate = (
        f" · gate <b class='{'bad' if verdict == 'fail' else 'good' if verdict == 'pass' else 'mute'}'>{html.escape(str(verdict))}</b>"
        if verdict
        else ""
    )
    return f"<p>{html.escape(heading)} · <b class='{kind}'>{html.escape(status)}</b>{gate}</p>"


def _tiles(document: dict[str, Any], runs: Runs, found: dict[str, Any]) -> list[tuple[str, str]]:
    loss, rate, mfu = (
        number(document.get("final_loss")),
        number(found.get("median_tokens_per_s")),
        number(found.get("median_mfu")),
    )
    usd = number(document.get("usd"))
    tiles = [
        ("steps", style.shown(document.get("steps"))),
        ("final loss", style.shown(loss)),
        ("median step", f"{found['median_step_s']:.4g} s" if found.get("median_step_s") is not None else "–"),
        ("tokens/s (median)", f"{rate:,.0f}" if rate is not None else "–"),
        ("MFU (median)", f"{mfu:.1%}" if mfu is not None else "–"),
        ("wall time", style.duration(number(document.get("wall_time_s")))),
        ("cost", f"${usd:,.2f}" if usd is not None else "–"),
    ]
    return [tile for tile in tiles if tile[1] != "–"]


def _why(document: dict[str, Any]) -> str:
    failure, reasons = document.get("failure"), (document.get("gate") or {}).get("reasons") or []
    text = f"<h2>Why it failed</h2><pre>{html.escape(str(failure))}</pre>" if failure else ""
    if reasons:
        text += (
            "<h2>The gate's reasons</h2><ul>"
            + "".join(f"<li>{html.escape(str(reason))}</li>" for reason in reasons)
            + "</ul>"
        )
    return text


def _charts(runs: Runs) -> str:
    lines = {
        name: [(run, curve(record, name)) for run, record in runs]
        for name in ("loss", "eval_loss", "tokens_per_s", "lr", "grad_norm")
    }
    held_out = [
        (f"{run}, held out" if len(runs) > 1 else "held out", points) for run, points in lines["eval_loss"] if points
    ]
    losses = [(run if len(runs) > 1 else "training", points) for run, points in lines["loss"]]
    all_marks = [mark for _, record in runs for mark in marks(record)]
    pictures = [
        style.figure("Loss", line_chart([*losses, *held_out], label="training loss", x_label="step", marks=all_marks)),
        style.figure(
            "Throughput, tokens/s",
            line_chart(lines["tokens_per_s"], label="throughput", x_label="step", marks=all_marks, from_zero=True),
        ),
    ]
    for run, record in runs:
        more = f" ({run})" if len(runs) > 1 else ""
        pictures.append(
            style.figure(
                f"Seconds a step by part{more}", stacked_bars(bars(record), PARTS, label="step time", x_label="step")
            )
        )
    for name, caption in (("grad_norm", "Gradient norm"), ("lr", "Learning rate")):
        if any(points for _, points in lines[name]):
            pictures.append(
                style.figure(caption, line_chart(lines[name], label=caption.lower(), x_label="step", from_zero=True))
            )
    return style.charts(*pictures)


def _transport(document: dict[str, Any], runs: Runs) -> str:
    gate = document.get("gate") or {}
    head = f"<p>{style.shown(gate.get('nodes_seen'))} of {style.shown(gate.get('nodes_expected'))} nodes and {style.shown(gate.get('ranks_seen'))} ranks seen; " \
        f"transport <b>{html.escape(str(gate.get('transport')))}</b>, expected {html.escape(str(gate.get('expected')))}.</p>" if gate else ""  # fmt: skip
    nodes = [
        (
            n.get("node"),
            n.get("ranks"),
            n.get("transport"),
            _bytes(n.get("efa_bytes")),
            "\n".join(n.get("evidence") or []),
        )
        for n in gate.get("nodes") or []
    ]
    if nodes:
        return head + style.table(("node", "ranks", "transport", "EFA sent / received", "evidence"), nodes)
    said = {node: entry for _, record in runs for node, entry in record.transports.items()}
    rows = [
        (node, entry.get("ranks"), _interfaces(entry.get("interfaces") or {}), entry.get("efa") or "–")
        for node, entry in sorted(said.items())
    ]
    if rows:
        return head + style.table(("node", "ranks", "bytes sent by interface", "EFA devices"), rows)
    return head or "<p class='mute'>The run was not judged, and no rank said what it used.</p>"


def _bytes(moved: Any) -> str:
    if not isinstance(moved, dict) or not (moved.get("sent") or moved.get("received")):
        return "–"
    return f"{moved.get('sent', 0) / 1e9:,.2f} / {moved.get('received', 0) / 1e9:,.2f} GB"


def _interfaces(interfaces: dict[str, Any]) -> str:
    return ", ".join(f"{name} {sent / 1e6:,.1f} MB" for name, sent in sorted(interfaces.items())) or "–"


def _time_line(runs: Runs) -> str:
    rows: list[tuple[str, ...]] = [
        ((name, *row) if len(runs) > 1 else row) for name, record in runs for row in time_line(record)
    ]
    head = ("when", "time (UTC)", "what", "more")
    if not rows:
        return "<p class='mute'>No checkpoint was written and nothing was restarted.</p>"
    shown = rows if len(rows) <= 60 else [*rows[:30], *rows[-30:]]
    note = (
        f"<p class='mute'>The first and last 30 of {len(rows)}; all are in report.json.</p>" if len(rows) > 60 else ""
    )
    return style.table(("run", *head) if len(runs) > 1 else head, shown) + note


def _facts(document: dict[str, Any], runs: Runs, derived: list[dict[str, Any]]) -> str:
    plain = [
        (key, value)
        for key, value in document.items()
        if not isinstance(value, dict | list) and key not in _TILES_SHOWN_ELSEWHERE
    ]
    settings = (
        [(key, value) for key, value in runs[0][1].config.items() if key not in ("event", "time") and not isinstance(value, dict)]
        if runs
        else []
    )
    parts = [
        style.facts((document.get("versions") or {}).items()),
        "<h2>Run</h2>",
        style.facts([*plain, ("usd", document.get("usd"))]),
    ]
    for (name, _), found in zip(runs, derived, strict=True):
        parts += [f"<h2>Speed{f': {html.escape(name)}' if len(runs) > 1 else ''}</h2>", style.facts(found.items())]
    if settings:
        parts += ["<h2>Settings of the job</h2>", style.facts(settings)]
    return "\n".join(parts)
