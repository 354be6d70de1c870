"""Ordered checks, each ok, wrong or unknown: what runs them in order, and the lines that people read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from eks_ray_train.errors import EksRayTrainError

from .eks_access import OddAnswer

NAME_WIDTH = 20
Facts = TypeVar("Facts")


class State(Enum):
    """Unknown is no success: it says that nobody could look."""

    OK = "ok"
    WRONG = "wrong"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A check's answer in one line; ``remedy`` says what to do, empty where it is ok."""

    state: State
    detail: str
    remedy: str = ""


def ok(detail: str) -> Finding:
    """All as it should be."""
    return Finding(state=State.OK, detail=detail)


def wrong(detail: str, remedy: str) -> Finding:
    """This stands in the way of a run."""
    return Finding(state=State.WRONG, detail=detail, remedy=remedy)


def unknown(detail: str, remedy: str = "") -> Finding:
    """Nobody could look."""
    return Finding(state=State.UNKNOWN, detail=detail, remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class Check(Generic[Facts]):
    """One check. ``needs``: checks that must not be wrong (nor unknown for that reason) before this one can say anything.

    ``error_is_wrong``: an error of ours is itself the answer; else it only means that nobody could look. An answer that cannot
    be understood, and an error that nobody foresaw, always mean that.
    """

    name: str
    look: Callable[[Facts], Finding]
    needs: tuple[str, ...] = ()
    error_is_wrong: bool = False


@dataclass(frozen=True, kw_only=True)
class Result:
    """A check with its answer."""

    name: str
    finding: Finding

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.name,
            "state": self.finding.state.value,
            "detail": self.finding.detail,
            "remedy": self.finding.remedy or None,
        }


def run_checks(checks: Sequence[Check[Facts]], facts: Facts, tell: Callable[[Result], None]) -> list[Result]:
    """Run all in order and tell each as it is known. A check whose need was not met is unknown, with that as its reason."""
    results: list[Result] = []
    blocked: dict[str, str] = {}
    for check in checks:
        need = next((name for name in check.needs if name in blocked), None)
        if need is not None:
            blocked[check.name] = blocked[need]
            finding = unknown(f"cannot be looked at while {blocked[need]} is not in order")
        else:
            finding = _look(check, facts)
            if finding.state is State.WRONG:
                blocked[check.name] = check.name
        result = Result(name=check.name, finding=finding)
        results.append(result)
        tell(result)
    return results


def _look(check: Check[Facts], facts: Facts) -> Finding:
    try:
        return check.look(facts)
    except EksRayTrainError as error:
        detail, _, remedy = str(error).partition("; ")
        return (wrong if check.error_is_wrong and not isinstance(error, OddAnswer) else unknown)(detail, remedy)
    except Exception as error:  # one odd answer must not keep the other checks from being made
        return unknown(f"unexpected {type(error).__name__}: {error}")


def line(result: Result) -> str:
    """``ok       nodes and zones     2 of 2 …``, with what to do below."""
    finding = result.finding
    first, *more = finding.detail.splitlines() or [""]
    lines = [f"{finding.state.value:<8} {result.name:<{NAME_WIDTH}} {first}"]
    indent = " " * (9 + NAME_WIDTH + 1)
    lines += [indent + text for text in more]
    lines += [
        f"{indent}{'->' if not number else '  '} {text}" for number, text in enumerate(finding.remedy.splitlines())
    ]
    return "\n".join(lines)


def summary(results: Sequence[Result]) -> str:
    """The last line."""
    counts = {state: sum(r.finding.state is state for r in results) for state in State}
    if counts[State.WRONG]:
        first = next(r for r in results if r.finding.state is State.WRONG)
        return f"{counts[State.WRONG]} wrong, {counts[State.UNKNOWN]} unknown, {counts[State.OK]} ok; begin with: {first.name}"
    if counts[State.UNKNOWN]:
        return f"nothing is known to be wrong; {counts[State.UNKNOWN]} of {len(results)} could not be looked at"
    return f"all {len(results)} checks are ok"
