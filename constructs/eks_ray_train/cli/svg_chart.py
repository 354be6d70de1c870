"""Charts as inline SVG: no script, no network; colours come from the page's variables, so that light and dark both work."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 480, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 14, 40
COLOURS = tuple(f"--c{number}" for number in range(1, 9))
MAX_POINTS = 800
LARGEST = 1e300  # what lies beyond is drawn there: the distance between two ends must be a number, too
LEAST_SHARE = 1e-9  # two ends closer together than this share of their size are one to the eye, and no ticks fit between them

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A vertical line at ``x``; ``kind``: its CSS class (checkpoint, restart …)."""

    x: float
    kind: str
    title: str


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover ``low`` to ``high``, about ``count`` of them, in steps of 1, 2 or 5 times a power of ten."""
    low, high = apart(low, high)
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{k * step:.10g}") for k in range(first, last + 1)]


def apart(low: float, high: float) -> tuple[float, float]:
    """Both ends of an axis, moved where nothing could be drawn between them: beyond LARGEST, or too close together."""
    low, high = max(low, -LARGEST), min(high, LARGEST)
    least = max(max(abs(low), abs(high)) * LEAST_SHARE, 1 / LARGEST)
    if high - low >= least:
        return low, high
    room = max(1.0, 10 * least)
    return (low, low + room) if low < LARGEST / 2 else (high - room, high)


def drawable(points: Points) -> list[tuple[float, float]]:
    """Points that have a place: those of finite numbers, within LARGEST."""
    return [(x, max(-LARGEST, min(LARGEST, y))) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def thinned(points: Points, limit: int = MAX_POINTS) -> list[tuple[float, float]]:
    """At most about ``limit`` points that keep every peak: lowest and highest of each group, in their order."""
    if len(points) <= limit:
        return list(points)
    size = math.ceil(len(points) / (limit // 2))
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        group = points[start : start + size]
        low, high = min(group, key=lambda p: p[1]), max(group, key=lambda p: p[1])
        kept += [low] if low == high else sorted((low, high))
    return kept


def short(value: float) -> str:
    """A tick's text: 1500000 -> 1.5M."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):g}{letter}"
    return f"{value:g}"


class _Frame:
    """Axes with ticks; maps data to the picture."""

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        label: str,
        x_label: str,
        *,
        whole_x: bool,
        log_x: bool = False,
    ) -> None:
        self._log = log_x
        self._x = (math.log2(x[0]), math.log2(x[1])) if log_x else apart(*x)
        self._y = y = apart(*y)
        self.parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(label)}" xmlns="http://www.w3.org/2000/svg">'
        ]
        for tick in nice_ticks(*y):
            self.parts.append(f'<path class="grid" d="M{LEFT} {self.y(tick):.1f}H{WIDTH - RIGHT}"/>')
            self.parts.append(f'<text x="{LEFT - 6}" y="{self.y(tick) + 4:.1f}" text-anchor="end">{short(tick)}</text>')
        for tick in self._x_ticks(x):
            if not whole_x or tick == int(tick):
                text = size_text(tick) if log_x else short(tick)
                self.parts.append(
                    f'<text x="{self.x(tick):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{text}</text>'
                )
        self.parts.append(
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{html.escape(x_label)}</text>'
        )

    def _x_ticks(self, x: tuple[float, float]) -> list[float]:
        if not self._log:
            return nice_ticks(*x, 5)
        low, high = math.ceil(self._x[0]), math.floor(self._x[1])
        return [2.0**k for k in range(low, high + 1, max(1, (high - low) // 4))]

    def x(self, value: float) -> float:
        low, high = self._x
        return LEFT + ((math.log2(value) if self._log else value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self._y
        return TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def done(self) -> str:
        return "".join([*self.parts, "</svg>"])


def size_text(size: float) -> str:
    """Bytes as people name them: 65536 -> 64K."""
    for power, letter in ((30, "G"), (20, "M"), (10, "K")):
        if size >= 2**power:
            return f"{size / 2**power:g}{letter}"
    return f"{size:g}"


def line_chart(
    curves: Sequence[tuple[str, Points]], *, label: str, x_label: str, marks: Sequence[Mark] = (), from_zero: bool = False, limit: float | None = None,
    log_x: bool = False,
) -> str:  # fmt: skip
    """One line a curve, with ``marks``; ``limit`` draws a horizontal line. A sentence where there is no point at all."""
    curves = [(name, thinned(drawable(line))) for name, line in curves]
    points = [point for _, line in curves for point in line]
    if not points:
        return f"<p class='mute'>No {html.escape(label)} was reported.</p>"
    x0, x1 = min(p[0] for p in points), max(p[0] for p in points)
    y0, y1 = min(p[1] for p in points), max(max(p[1] for p in points), limit or -math.inf)
    pad = (y1 - y0) * 0.05 or abs(y1) * 0.1 or 0.5
    y0, y1 = (0.0 if from_zero and y0 >= 0 else y0 - pad), y1 + pad
    frame = _Frame(
        (x0, x1 if x1 > x0 else (x0 * 2 if log_x else x0 + 1)), (y0, y1), label, x_label, whole_x=not log_x, log_x=log_x
    )
    for mark in marks:
        if x0 <= mark.x <= x1:
            title = html.escape(mark.title)
            frame.parts.append(
                f'<path class="{mark.kind}" d="M{frame.x(mark.x):.1f} {TOP}V{HEIGHT - BOTTOM}"><title>{title}</title></path>'
            )
    if limit is not None:
        frame.parts.append(f'<path class="limit" d="M{LEFT} {frame.y(limit):.1f}H{WIDTH - RIGHT}"/>')
    for index, (name, line) in enumerate(curves):
        if not line:
            continue
        colour = f"var({COLOURS[index % len(COLOURS)]})"
        title = f"<title>{html.escape(name)}</title>"
        if len(line) == 1:
            frame.parts.append(
                f'<circle cx="{frame.x(line[0][0]):.1f}" cy="{frame.y(line[0][1]):.1f}" r="3" style="fill:{colour}">{title}</circle>'
            )
        path = "M" + "L".join(f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in line)
        frame.parts.append(f'<path d="{path}" fill="none" stroke-width="1.8" style="stroke:{colour}">{title}</path>')
    return frame.done() + (key([name for name, line in curves if line]) if len(curves) > 1 else "")


def stacked_bars(
    bars: Sequence[tuple[float, Sequence[float]]], names: Sequence[str], *, label: str, x_label: str
) -> str:
    """A bar for each x, made of one part a name; heights in the parts' own unit."""
    if not bars:
        return f"<p class='mute'>No {html.escape(label)} was reported.</p>"
    most = LARGEST / 2 / len(names)
    bars = [(x, [max(0.0, min(most, part)) if math.isfinite(part) else 0.0 for part in parts]) for x, parts in bars]
    high = max(sum(parts) for _, parts in bars) * 1.05 or 1.0
    width = (WIDTH - LEFT - RIGHT) / len(bars)
    x0, x1 = bars[0][0], bars[-1][0]
    frame = _Frame((x0, x1 if x1 > x0 else x0 + 1), (0.0, high), label, x_label, whole_x=True)
    for index, (x, parts) in enumerate(bars):
        base = 0.0
        for number, (name, value) in enumerate(zip(names, parts, strict=True)):
            if value > 0:
                top, bottom = frame.y(base + value), frame.y(base)
                frame.parts.append(
                    f'<rect x="{LEFT + index * width:.2f}" y="{top:.2f}" width="{max(width * 0.9, 0.5):.2f}" height="{bottom - top:.2f}" '
                    f'style="fill:var({COLOURS[number % len(COLOURS)]})"><title>from step {x:g}: {html.escape(name)} {value:.4g} s</title></rect>'
                )
            base += value
    return frame.done() + key(names)


def key(names: Sequence[str]) -> str:
    """What each colour means."""
    items = "".join(
        f'<span><i style="background:var({COLOURS[n % len(COLOURS)]})"></i>{html.escape(name)}</span>'
        for n, name in enumerate(names)
    )
    return f'<div class="key">{items}</div>'
