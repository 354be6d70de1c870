"""The frame of every page that the command line writes: one file, no script, no network, light and dark, from 360 px on."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--mute:#5b6570;--line:#d6dbe1;--card:#f6f8fa;--good:#15803d;--bad:#b91c1c;
--c1:#2563eb;--c2:#c2410c;--c3:#4d7c0f;--c4:#7c3aed;--c5:#0891b2;--c6:#ca8a04;--c7:#db2777;--c8:#64748b}
@media(prefers-color-scheme:dark){:root{--bg:#0f1318;--fg:#e6eaee;--mute:#9aa5b1;--line:#2c343d;--card:#171d24;--good:#4ade80;--bad:#f87171;
--c1:#60a5fa;--c2:#fb923c;--c3:#a3e635;--c4:#a78bfa;--c5:#22d3ee;--c6:#facc15;--c7:#f472b6;--c8:#94a3b8}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
main{max-width:1120px;margin:0 auto;padding:20px 16px 48px}h1{font-size:1.4rem;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:30px 0 8px}p{margin:4px 0}p,li{overflow-wrap:anywhere}.mute{color:var(--mute)}.good{color:var(--good)}.bad{color:var(--bad)}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card);padding:10px;border-radius:8px;font-size:.85rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(145px,1fr));gap:10px;margin:14px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px 12px}.tile b{display:block;font-size:1.15rem;overflow-wrap:anywhere}
.tile span{color:var(--mute);font-size:.85rem}.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:18px}
figure{margin:0;min-width:0}figcaption{font-weight:600;margin-bottom:2px}svg{display:block;width:100%;height:auto}
svg text{font-size:12px;fill:var(--mute)}@media(max-width:600px){svg text{font-size:14px}}.grid{stroke:var(--line);fill:none}
.limit{stroke:var(--mute);stroke-dasharray:6 4;fill:none}.checkpoint{stroke:var(--c3);stroke-dasharray:2 3;fill:none}
.restart{stroke:var(--bad);stroke-width:1.6;fill:none}.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{padding:6px 10px;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
tr:last-child td,tr:last-child th{border-bottom:0}thead th{background:var(--card)}th{font-weight:600}td:last-child{overflow-wrap:anywhere;min-width:170px}.facts th,.facts td{overflow-wrap:anywhere}.facts th{width:34%;font-weight:500;color:var(--mute)}
.key{display:flex;flex-wrap:wrap;gap:2px 14px;margin:4px 0;font-size:.85rem}.key i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:5px}
code{font-size:.85em;overflow-wrap:anywhere}
"""


def page(title: str, body: str) -> str:
    """A whole document."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{html.escape(title)}</title><style>{STYLE}</style></head><body><main>\n{body}\n</main></body></html>\n'
    )


def tiles(figures: Iterable[tuple[str, str]]) -> str:
    """Key figures: (name, value)."""
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{_text(value)}</b><span>{_text(name)}</span></div>' for name, value in figures)
        + "</div>"
    )


def figure(caption: str, picture: str) -> str:
    """A chart with its caption."""
    return f"<figure><figcaption>{_text(caption)}</figcaption>{picture}</figure>"


def charts(*figures: str) -> str:
    """Charts side by side where there is room."""
    return f'<div class="charts">{"".join(figures)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table that scrolls inside its own frame."""
    heads = "".join(f"<th>{_text(name)}</th>" for name in head)
    lines = "".join("<tr>" + "".join(f"<td>{_text(shown(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'


def facts(pairs: Iterable[tuple[str, Any]]) -> str:
    """Names and values, those that are known."""
    rows = "".join(
        f"<tr><th>{_text(name.replace('_', ' '))}</th><td>{_text(shown(value))}</td></tr>"
        for name, value in pairs
        if value is not None and value != ""
    )
    return f'<div class="scroll"><table class="facts"><tbody>{rows}</tbody></table></div>' if rows else ""


def shown(value: Any) -> str:
    """A value for people."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "–" if not math.isfinite(value) else f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 1e5 else str(value)
    if isinstance(value, list | tuple):
        return ", ".join(shown(item) for item in value)
    return str(value)


def duration(seconds: float | None) -> str:
    """``1:02:03``, or ``12.3 s`` below a minute."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d} min"


def _text(value: str) -> str:
    return html.escape(str(value))
