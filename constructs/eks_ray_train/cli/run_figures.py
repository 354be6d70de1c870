"""Numbers that a run's report derives from its events. Pure; seconds, tokens, US dollars."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from .events import number
from .run_record import RunRecord
from .svg_chart import Mark

__all__ = ["bars", "clock", "curve", "figures", "marks", "number", "time_line", "times_of_steps", "versions", "warm"]

BARS = 60
PARTS = ("compute and communication", "waiting for data", "stopped for a checkpoint")


def curve(record: RunRecord, name: str) -> list[tuple[float, float]]:
    """(step, value) of one field of the step events."""
    return [(s["step"], value) for s in record.steps if (value := number(s.get(name))) is not None]


def warm(record: RunRecord) -> list[dict[str, Any]]:
    """Steps after the warm-up, by which speed is judged."""
    warm_up = number(record.config.get("warmup_steps")) or 0
    return [s for s in record.steps if s["step"] > warm_up] or record.steps


def figures(record: RunRecord, *, usd: float | None) -> dict[str, Any]:
    """Step time and throughput after the warm-up, shares of the time, price of a million tokens; None where unknown."""
    steps = warm(record)
    times = [value for s in steps if (value := number(s.get("step_s"))) is not None]
    rates = [value for s in steps if (value := number(s.get("tokens_per_s"))) is not None]
    mfus = [value for s in steps if (value := number(s.get("mfu"))) is not None]
    waits = [number(s.get("data_wait_s")) or 0.0 for s in steps]
    blocked = sum(number(c.get("blocking_seconds")) or 0.0 for c in record.checkpoints)
    tokens = number(record.last.get("tokens"))
    found = {
        "mean_step_s": statistics.fmean(times) if times else None,
        "median_step_s": statistics.median(times) if times else None,
        "p90_step_s": statistics.quantiles(times, n=10)[8] if len(times) > 1 else (times[0] if times else None),
        "median_tokens_per_s": statistics.median(rates) if rates else None,
        "median_mfu": statistics.median(mfus) if mfus else None,
        "data_wait_share": sum(waits) / sum(times) if times and sum(times) > 0 else None,
        "checkpoint_blocking_s": blocked,
        "peak_memory_gib": max(
            (value for s in record.steps if (value := number(s.get("peak_memory_gib"))) is not None), default=None
        ),
        "usd_per_million_tokens": usd / tokens * 1e6 if usd is not None and tokens else None,
    }
    # A mean of two numbers near the largest one is none.
    return {
        **{name: number(value) for name, value in found.items()},
        "lost_steps": sum(r.get("lost_steps", 0) for r in record.restarts),
    }


def times_of_steps(record: RunRecord) -> dict[int, float]:
    """Step -> seconds of training before its end, by the steps' own times; steps that were thinned out count like their neighbour."""
    clock, before, found = 0.0, 0, {}
    for step in record.steps:
        clock += (number(step.get("step_s")) or 0.0) * (step["step"] - before if before else 1)
        before = step["step"]
        found[before] = clock
    return found


def marks(record: RunRecord) -> list[Mark]:
    """Checkpoints and restarts on the axis of steps."""
    saved = [
        Mark(
            x=c["step"], kind="checkpoint" if not c.get("error") else "restart", title=f"checkpoint at step {c['step']}"
        )
        for c in record.checkpoints
        if isinstance(c.get("step"), int)
    ]
    again = [
        Mark(x=r["step"], kind="restart", title=f"restart from step {r['step']}")
        for r in record.restarts
        if isinstance(r.get("step"), int)
    ]
    return [*saved, *again]


def bars(record: RunRecord) -> list[tuple[float, tuple[float, float, float]]]:
    """(first step, mean seconds a step by part) of at most BARS groups of steps; the parts are PARTS."""
    steps = [s for s in record.steps if number(s.get("step_s")) is not None]
    if not steps:
        return []
    size = math.ceil(len(steps) / BARS)
    out = []
    for start in range(0, len(steps), size):
        group = steps[start : start + size]
        low, high = group[0]["step"], group[-1]["step"]
        last = start + size >= len(steps)
        inside = [
            c
            for c in record.checkpoints
            if isinstance(c.get("step"), int) and low <= c["step"] and (last or c["step"] <= high)
        ]
        blocked = sum(number(c.get("blocking_seconds")) or 0.0 for c in inside) / len(group)
        waited = sum(number(s.get("data_wait_s")) or 0.0 for s in group) / len(group)
        total = sum(number(s.get("step_s")) or 0.0 for s in group) / len(group)
        # A save that stops the loop lies inside the time between two steps, and so does the wait for data.
        rest = max(0.0, total - waited - blocked)
        out.append((float(low), (rest, min(waited, total), blocked)))
    return out


def clock(seconds: Any) -> str:
    """Wall-clock time, UTC, of seconds since 1970; empty where it is not known."""
    value = number(seconds)
    if value is None or not 0 < value < 1e11:
        return ""
    return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S}"


def time_line(record: RunRecord) -> list[tuple[str, str, str, str]]:
    """(when, wall-clock time in UTC, what, more) of checkpoints and restarts in the order of steps, from begin to end.

    ``when``: step, and seconds of training before it. The time is empty where the job did not say it; begin and end are
    told only with it.
    """
    from .page_style import duration

    at = times_of_steps(record)
    rows: list[tuple[float, int, str, str, str]] = []

    def add(event: Mapping[str, Any], what: str, about: str) -> None:
        moment = number(event.get("time"))
        step = int(number(event.get("step")) or 0)
        if what in ("begin", "end") and moment is None:
            return
        if what == "end":
            step = record.steps_done
        when = f"step {step}" + (f", {duration(at[step])}" if step in at else "")
        rows.append((moment or 0.0, step, when, what, about))

    if record.config:
        add(record.config, "begin", f"{record.config.get('world_size', '?')} ranks on {record.config.get('nodes', '?')} nodes")
    for c in record.checkpoints:
        size, took = number(c.get("bytes")), number(c.get("seconds"))
        about = f"failed: {c['error']}" if c.get("error") else ", ".join(
            part for part in (
                f"{size / 2**20:,.1f} MiB" if size else "", f"{took:.2f} s" if took is not None else "",
                f"training stopped for {number(c.get('blocking_seconds')) or 0:.2f} s", str(c.get("path") or ""),
            ) if part
        )  # fmt: skip
        add(c, "checkpoint", about)
    for r in record.restarts:
        lost = f"; {r['lost_steps']} steps were lost" if r.get("lost_steps") else ""
        add(r, "restart", f"{r.get('world_size', '?')} ranks, from {r.get('resumed_from') or 'the start'}{lost}")
    if record.done:
        add(record.done, "end", str(record.done.get("status") or ""))
    by_clock = all(moment for moment, *_ in rows)  # after a restart, steps come twice
    rows.sort(key=lambda row: row[0] if by_clock else row[1])
    return [(when, clock(moment), what, about) for moment, _, when, what, about in rows]


def versions(records: Sequence[RunRecord], document: Mapping[str, Any]) -> dict[str, Any]:
    """What was loaded, as far as the run said it."""
    found: dict[str, Any] = {"Ray": document.get("ray_version")}
    for record in records:
        found["PyTorch"] = found.get("PyTorch") or record.config.get("torch")
        for node in record.transports.values():
            for name, value in node.get("versions", {}).items():
                found.setdefault(name, value)
    return {name: value for name, value in found.items() if value}
