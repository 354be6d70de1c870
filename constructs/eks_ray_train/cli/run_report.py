"""A run's report: ``report.json`` with all numbers, and ``report.html`` with the loss curve, that opens without a network."""

from __future__ import annotations

import html
import json
import math
from pathlib import Path
from typing import Any

from eks_ray_train.errors import UsageError

from .run_record import RunRecord

WIDTH, HEIGHT = 760, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 40
COLOURS = ("#0b6e99", "#c2410c", "#4d7c0f", "#7e22ce")


def write_report(folder: Path, document: dict[str, Any], record: RunRecord, *, title: str = "Training run") -> Path:
    """Write both files into ``folder`` and return the HTML one. Raises UsageError where the folder cannot be written."""
    return write_reports(folder, document, [("loss", record)], title=title)


def write_reports(folder: Path, document: dict[str, Any], runs: list[tuple[str, RunRecord]], *, title: str) -> Path:
    """The same for several runs in one chart, such as a run and the one that resumed it."""
    full = {**document, "runs": [{"name": name, **record.to_json()} for name, record in runs]}
    curves = [(name, [(s["step"], s["loss"]) for s in record.steps if _finite(s.get("loss"))]) for name, record in runs]
    path = folder / "report.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(json.dumps(full, indent=1), encoding="utf-8")
        path.write_text(_page(title, document, curves), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the report to {folder}: {error.strerror or error}; choose another folder") from None
    return path


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover ``low`` to ``high``, about ``count`` of them, in steps of 1, 2 or 5 times a power of ten."""
    if high <= low:
        high = low + 1.0
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(k * step, 10) for k in range(first, last + 1)]


def loss_curve(curves: list[tuple[str, list[tuple[int, float]]]]) -> str:
    """An SVG element: loss over steps, one line a run; a sentence where no step was told."""
    points = [point for _, line in curves for point in line]
    if not points:
        return "<p>No step was reported.</p>"
    x0, x1 = min(p[0] for p in points), max(p[0] for p in points)
    y0, y1 = min(p[1] for p in points), max(p[1] for p in points)
    pad = (y1 - y0) * 0.05 or 0.5
    y0, y1 = y0 - pad, y1 + pad
    x1 = max(x1, x0 + 1)

    def x(step: float) -> float:
        return LEFT + (step - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)

    def y(loss: float) -> float:
        return TOP + (y1 - loss) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="training loss over steps" xmlns="http://www.w3.org/2000/svg">']
    for tick in nice_ticks(y0, y1):
        parts.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in nice_ticks(x0, x1, 6):
        if tick == int(tick):
            parts.append(f'<text x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">step</text>')
    for index, (name, line) in enumerate(curves):
        if not line:
            continue
        colour = COLOURS[index % len(COLOURS)]
        path = "M" + "L".join(f"{x(step):.1f} {y(loss):.1f}" for step, loss in line)
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.8"><title>{html.escape(name)}</title></path>')
        if len(curves) > 1:
            top = TOP + 14 + 18 * index
            parts.append(f'<text x="{WIDTH - RIGHT - 8}" y="{top}" text-anchor="end" style="fill:{colour}">{html.escape(name)}</text>')
    return "".join([*parts, "</svg>"])


def _page(title: str, document: dict[str, Any], curves: list[tuple[str, list[tuple[int, float]]]]) -> str:
    rows = "".join(
        f"<tr><th>{html.escape(key.replace('_', ' '))}</th><td>{html.escape(_shown(value))}</td></tr>"
        for key, value in document.items()
        if not isinstance(value, dict | list) and value is not None
    )
    gate = document.get("gate") or {}
    reasons = "".join(f"<li>{html.escape(str(reason))}</li>" for reason in gate.get("reasons", []))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><link rel="icon" href="data:,">
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1c1917; background: #fff; }}
svg {{ width: 100%; height: auto; }} svg text {{ font-size: 12px; fill: #57534e; }} .grid {{ stroke: #e7e5e4; }}
table {{ border-collapse: collapse; }} th {{ text-align: left; font-weight: 500; padding: .2rem 1.5rem .2rem 0; vertical-align: top; }}
td {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
</style></head><body>
<h1>{html.escape(title)}</h1>
<h2>Training loss</h2>
{loss_curve(curves)}
<h2>Result</h2>
<table>{rows}</table>
{f"<h2>Gate</h2><ul>{reasons}</ul>" if reasons else ""}
</body></html>
"""


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
