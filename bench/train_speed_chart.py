"""The table and the chart of ``train_speed.py``: tokens a second and GPU by way, one group of bars a point; SVG, light and dark."""

from __future__ import annotations

from html import escape
from typing import Any

COLORS = ("#2563eb", "#f59e0b", "#dc2626", "#0d9488", "#7c3aed")
WIDTH, BAR, GAP, LEFT = 860, 20, 26, 210


def render(result: dict[str, Any]) -> str:
    """SVG of a result document; bars are TFLOP/s a GPU, the dashed line the measured ceiling of a matrix product."""
    rows = result["rows"]
    points = list(dict.fromkeys((row["batch"], row["seq"]) for row in rows))
    names = list(dict.fromkeys(row.get("label", row["way"]) for row in rows))
    ceiling = result.get("ceilings", {}).get("matmul_tflops")
    scale = max([row["tflops_per_gpu"] for row in rows] + ([ceiling] if ceiling else [])) * 1.02 or 1.0
    span = WIDTH - LEFT - 150
    out: list[str] = []
    y = 60
    for batch, seq in points:
        group = [row for row in rows if (row["batch"], row["seq"]) == (batch, seq)]
        out.append(f'<text x="10" y="{y + 14}" font-weight="600">{batch} × {seq} tokens a GPU</text>')
        y += 22
        for row in group:
            name = row.get("label", row["way"])
            width = max(1.0, span * row["tflops_per_gpu"] / scale)
            out.append(f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
            out.append(
                f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 4}" rx="2" fill="{COLORS[names.index(name) % len(COLORS)]}"/>'
            )
            said = f"{row['tflops_per_gpu']:.0f} TFLOP/s, {row['median_s']:.3g} s, {row['peak_gib']:.0f} GiB"
            out.append(f'<text x="{LEFT + width + 6:.1f}" y="{y + 13}" class="mute">{said}</text>')
            y += BAR
        y += GAP - BAR + 8
    if ceiling:
        x = LEFT + span * ceiling / scale
        out.append(f'<line x1="{x:.1f}" y1="44" x2="{x:.1f}" y2="{y}" class="line"/>')
        out.append(
            f'<text x="{x:.1f}" y="40" text-anchor="middle" class="mute">matrix product alone: {ceiling:.0f}</text>'
        )
    title = f"{result['model']} on {result['gpus']} × {result['device']}: training speed a GPU"
    style = (
        "text{font:12px system-ui,sans-serif;fill:#1b1f24}.mute{fill:#5b6570}.line{stroke:#5b6570;stroke-dasharray:4 3}"
        ".bg{fill:#fff}@media(prefers-color-scheme:dark){text{fill:#e6eaee}.mute{fill:#9aa5b1}.bg{fill:#0f1318}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 10}" role="img"><title>{escape(title)}</title>'
        f'<style>{style}</style><rect class="bg" width="100%" height="100%"/>'
        f'<text x="10" y="22" style="font-size:15px;font-weight:600">{escape(title)}</text>{"".join(out)}</svg>\n'
    )


def table(rows: list[dict[str, Any]]) -> str:
    """The rows for people."""
    out = [
        f"{'way':<22}{'batch × seq':>12}{'step s':>10}{'spread':>8}{'tokens/s/GPU':>14}{'TFLOP/s/GPU':>13}{'peak GiB':>10}"
    ]
    for row in rows:
        out.append(
            f"{row.get('label', row['way']):<22}{row['batch']:>4} × {row['seq']:<5}{row['median_s']:>10.4f}{row['spread']:>8.1%}"
            f"{row['tokens_per_s_per_gpu']:>14,.0f}{row['tflops_per_gpu']:>13.1f}{row['peak_gib']:>10.1f}"
        )
    return "\n".join(out)
