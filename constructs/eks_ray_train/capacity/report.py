"""The failure reason: a ranked table in at most 4 KB of CloudFormation response, the most useful lines first."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

#: CloudFormation takes 4,096 bytes of JSON for the whole answer. CDK's provider framework adds ids, the log group's name
#: and a JavaScript stack (about 1.2 KB); the rest is ours.
REASON_BYTES = 2600


class Rank(IntEnum):
    """Order of the table: what can be used, then what might be later, then what never works."""

    PROVEN = 0
    CANDIDATE = 1
    TRIED = 2
    UNKNOWN = 3
    IMPOSSIBLE = 4


@dataclass(frozen=True, kw_only=True)
class Row:
    """One zone and what was found out about it."""

    rank: Rank
    zone: str
    zone_id: str
    result: str


def table(rows: Iterable[Row]) -> list[str]:
    """Aligned lines, best first; ties keep their order."""
    ranked = sorted(rows, key=lambda row: row.rank)
    wide = max((len(row.zone) for row in ranked), default=0)
    return [f"  {row.zone:<{wide}}  {row.zone_id:<9}  {row.result}" for row in ranked]


def reason(head: str, rows: Sequence[Row], notes: Sequence[str], remedies: Sequence[str]) -> str:
    """Head, remedies, table, notes: cut at the end, so that what to do survives any length."""
    lines = [head, *(f"What to do: {remedy}" for remedy in remedies), *table(rows), *notes]
    return fit("\n".join(lines))


def fit(text: str, limit: int = REASON_BYTES) -> str:
    """``text``, shortened so that its JSON form (escapes included) takes at most ``limit`` bytes."""
    if len(json.dumps(text)) <= limit:
        return text
    mark = "\n... (cut; the rest is in the function's log)"
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if len(json.dumps(text[:middle] + mark)) <= limit:
            low = middle
        else:
            high = middle - 1
    return text[:low] + mark
