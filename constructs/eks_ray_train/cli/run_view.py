"""What a person sees of a run: the log's lines, step lines or a progress bar, and the prices so far."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from .events import number, parse_event, split_line
from .failure import FailureFinder
from .run_record import RunRecord
from .streams import to_nowhere

STEP_LINE_EVERY_S = 1.0


class Judge(Protocol):
    """What the gate offers while lines stream by."""

    def feed_chunk(self, chunk: bytes) -> None: ...


class RunView:
    """Takes the log's lines as they come; knows nothing of where they come from.

    ``out``: where log lines go (stdout; stderr where stdout carries a JSON document). ``usd_per_hour``: price of all
    nodes, None where unknown. ``watch``: called after each step, and what it returns is told. The bar is drawn on stderr, only
    where both are terminals.
    """

    def __init__(
        self,
        *,
        out: TextIO,
        judge: Judge | None = None,
        usd_per_hour: float | None = None,
        quiet: bool = False,
        watch: Callable[[RunRecord], str | None] | None = None,
    ) -> None:
        self.record = RunRecord()
        self.failure = FailureFinder()
        self._out = out
        self._judge = judge
        self._usd_per_hour = usd_per_hour
        self._quiet = quiet
        self._watch = watch or (lambda _: None)
        self._began = time.monotonic()
        self._line_at = 0.0
        self._held: str | None = None
        self._bar: Any = None
        self._wants_bar = not quiet and out.isatty() and sys.stderr.isatty()
        if hasattr(out, "reconfigure"):
            out.reconfigure(errors="replace")  # a job may print what this terminal cannot show

    def on_lines(self, lines: list[bytes]) -> None:
        """Whole lines of the log, without their ends."""
        if self._judge is not None:
            self._judge.feed_chunk(b"\n".join(lines) + b"\n")
        text: list[str] = []
        for raw in lines:
            line = raw.decode("utf-8", "replace")
            event = parse_event(line) if '"event"' in line else None
            if event is None:
                self.failure.feed(split_line(line))
                text.append(line)
            else:
                self.failure.feed_event(event)
                if self.record.feed(event):
                    shown = self._event(event)
                    if event["event"] == "step" and (told := self._watch(self.record)):
                        self.notice(told)
                    if self._held and event["event"] != "step":
                        text.append(self._held)
                        self._held = None
                    if shown:
                        text.append(shown)
        if text and not self._quiet:
            self._print(text)
        self._draw()

    def notice(self, text: str) -> None:
        """A line of ours, on stderr."""
        if self._bar is not None:
            self._bar.clear()
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Tell the last step, take the bar away."""
        if self._held and not self._quiet:
            self._print([self._held])
        self._held = None
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def usd(self) -> float | None:
        """What the nodes have cost since the run began to be followed."""
        if self._usd_per_hour is None:
            return None
        return self._usd_per_hour * (time.monotonic() - self._began) / 3600

    # ---- inside ----------------------------------------------------------------------------------------------------
    def _print(self, lines: list[str]) -> None:
        if self._bar is not None:
            self._bar.clear()
        try:
            self._out.write("\n".join(lines) + "\n")
            self._out.flush()
        except OSError as error:  # a full disk, for one: the run, its verdict and its exit code are worth more than its lines
            self._quiet = True
            to_nowhere(self._out)
            self.notice(f"the log cannot be shown any more ({error.strerror or error}); the run is followed to its end without its lines")

    def _event(self, event: dict[str, Any]) -> str | None:
        kind = event["event"]
        if kind == "step":
            return self._step_line(event)
        return {"config": config_line, "checkpoint": checkpoint_line, "restart": restart_line, "done": done_line}.get(
            kind, lambda _: None
        )(event)

    def _step_line(self, event: dict[str, Any]) -> str | None:
        if self._wants_bar:
            return None
        line = step_line(event, total=self.record.total_steps, eta_s=self.record.eta_s(), usd=self.usd())
        now = time.monotonic()
        if now - self._line_at < STEP_LINE_EVERY_S:
            self._held = line  # many steps a second: one line a second, and the last one always
            return None
        self._line_at, self._held = now, None
        return line

    def _draw(self) -> None:
        last = self.record.last
        if not (self._wants_bar and last):
            return
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(total=self.record.total_steps, unit="step", file=sys.stderr, dynamic_ncols=True, leave=True)
        self._bar.n = last["step"]
        self._bar.set_postfix_str("  ".join(figures(last, usd=self.usd())), refresh=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def figures(event: dict[str, Any], *, usd: float | None = None) -> list[str]:
    """Loss, tokens/s, MFU and price of a step, those that are known."""
    out = []
    if (loss := number(event.get("loss"))) is not None:
        out.append(f"loss {loss:.4f}")
    if (rate := number(event.get("tokens_per_s"))) is not None:
        out.append(f"{rate:,.0f} tokens/s")
    if (mfu := number(event.get("mfu"))) is not None:
        out.append(f"MFU {100 * mfu:.1f} %")
    if usd is not None:
        out.append(f"${usd:.2f}")
    return out


def step_line(event: dict[str, Any], *, total: int | None, eta_s: float | None, usd: float | None) -> str:
    """``step 10/300  loss 3.2140  1,234 tokens/s  ETA 2:10``"""
    parts = [f"step {event['step']}" + (f"/{total}" if total else ""), *figures(event, usd=usd)]
    if (value := number(event.get("eval_loss"))) is not None:
        parts.insert(2, f"held-out loss {value:.4f}")
    if eta_s:
        parts.append(f"ETA {_duration(eta_s)}")
    return "  ".join(parts)


def config_line(event: dict[str, Any]) -> str:
    """What the job is about to train."""
    parts = []
    if (parameters := number(event.get("parameters"))) is not None:
        parts.append(f"{parameters / 1e9:.2f} B parameters" if parameters >= 1e9 else f"{parameters / 1e6:.2f} M parameters")
    if event.get("world_size"):
        parts.append(f"{event['world_size']} ranks on {event.get('nodes', '?')} nodes ({event.get('device')}, {event.get('backend')})")
    parts += [f"{name} {event[name]}" for name in ("sharding", "precision") if event.get(name)]
    if (tokens := number(event.get("tokens_per_step"))) is not None:
        parts.append(f"{tokens:,.0f} tokens a step")
    return "training: " + ", ".join(parts)


def checkpoint_line(event: dict[str, Any]) -> str:
    """One checkpoint, or why there is none."""
    if event.get("error"):
        return f"checkpoint at step {event.get('step')} failed: {event['error']}"
    size, seconds = number(event.get("bytes")), number(event.get("seconds"))
    about = ", ".join(
        part for part in (f"{size / 1024**2:.1f} MiB" if size else "", f"{seconds:.1f} s" if seconds is not None else "") if part
    )
    return f"checkpoint at step {event.get('step')}" + (f" ({about})" if about else "") + f": {event.get('path')}"


def restart_line(event: dict[str, Any]) -> str:
    """From where a run goes on."""
    source = event.get("resumed_from")
    return f"going on from step {event.get('step')}" + (f": {source}" if source else " (no checkpoint found)")


def done_line(event: dict[str, Any]) -> str:
    """How the job itself says that it ended."""
    loss, wall = number(event.get("final_loss")), number(event.get("wall_s"))
    return (
        f"job: {event.get('status')} after {event.get('steps')} steps"
        + (f", final loss {loss:.4f}" if loss is not None else "")
        + (f", {_duration(wall)} wall time" if wall is not None else "")
    )
