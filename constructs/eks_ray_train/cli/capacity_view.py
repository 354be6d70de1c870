"""How the search's result is shown: a table for people, one document for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from eks_ray_train.capacity.find import Candidate, RegionFinding, Verdict
from eks_ray_train.capacity.market import BlockOffer
from eks_ray_train.capacity.model import Need, Reservation, format_time
from eks_ray_train.capacity.quota import increase_command

_HEAD = ("region", "zone", "id", "verdict", "spot", "$/h a node", "quota used/limit", "why")
_BLOCKS_SHOWN = 3
_ROWS_SHOWN = 25


def table(candidates: Sequence[Candidate]) -> str:
    """Aligned columns, best first. Zones that do not offer the type are left out where any zone does."""
    shown = [c for c in candidates if c.verdict is not Verdict.NOT_OFFERED] or list(candidates)
    rows = [_HEAD, *(_row(c) for c in shown[:_ROWS_SHOWN])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD) - 1)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]
    if len(shown) > _ROWS_SHOWN:
        lines.append(f"... and {len(shown) - _ROWS_SHOWN} more places (--json shows all)")
    return "\n".join(lines)


def _row(c: Candidate) -> tuple[str, ...]:
    def known(value: int | None) -> str:
        return "?" if value is None else str(value)

    price = "?" if c.usd_per_hour is None else f"{c.usd_per_hour:.3f}"
    return (
        c.region,
        c.zone.name if c.zone else "-",
        c.zone.zone_id if c.zone else "-",
        c.verdict.value,
        known(c.spot_score),
        price if c.price_source == "price list" else f"~{price}" if price != "?" else price,
        f"{known(c.quota.used)}/{known(c.quota.limit)}" if c.quota else "?",
        c.why,
    )


def notes(findings: Iterable[RegionFinding], candidates: Sequence[Candidate]) -> list[str]:
    """What the table has no room for: unreadable columns, reservations that do not fit, Capacity Blocks for sale."""
    lines = []
    for finding in findings:
        lines += [f"{finding.region}: {column}: {why}" for column, why in finding.unknown.items()]
        for held, bad in finding.reservations:
            if bad:
                lines.append(f"{finding.region}: {held.id} does not fit: {'; '.join(bad)}")
    if any(c.price_source.startswith("catalogue") for c in candidates):
        lines.append("~ price: the catalogue's us-east-1 list price, not read from the Price List API")
    if any(c.spot_score is not None for c in candidates):
        lines.append("spot: Spot placement score, 1 to 10; a weak hint for On-Demand, and always low for a single type")
    offers = sorted((b for c in candidates for b in c.blocks), key=lambda b: (b.start is None, b.start, b.fee_usd))
    lines += [
        f"Capacity Block for sale in {b.zone}: {b.nodes} nodes, {b.hours} h from {format_time(b.start)} UTC, "
        f"${b.fee_usd:,.2f} up front ({b.id})"
        for b in offers[:_BLOCKS_SHOWN]
    ]
    return lines


def increases(candidates: Sequence[Candidate], need: Need) -> list[str]:
    """The command for each region whose quota is short, in the ranking's order."""
    short = {c.region: c for c in reversed(candidates) if c.verdict is Verdict.QUOTA_SHORT}
    order = [region for region in dict.fromkeys(c.region for c in candidates) if region in short]
    return [increase_command(need, short[region].quota, region) for region in order]


def document(
    need: Need,
    findings: list[RegionFinding],
    candidates: list[Candidate],
    commands: list[str],
    written: dict[str, tuple[Any, Any]],
    problems: list[str],
    code: int,
    *,
    fits: bool,
) -> dict[str, Any]:
    """The one document of ``capacity find --json``."""
    reservations = [(f.region, held, bad) for f in findings for held, bad in f.reservations]
    return {
        "instance_type": need.instance_type,
        "nodes": need.nodes,
        "vcpus": need.vcpus,
        "exit_code": code,
        "best": candidate_json(candidates[0]) if fits else None,
        "candidates": [candidate_json(c) for c in candidates],
        "reservations": [{"region": r, **reservation_json(h), "misfits": list(bad)} for r, h, bad in reservations],
        "unknown": {f.region: dict(f.unknown) for f in findings if f.unknown},
        "problems": problems,
        "quota_increase": commands,
        "written": {key: new for key, (_, new) in written.items()},
    }


def reservation_json(held: Reservation) -> dict[str, Any]:
    return {
        "id": held.id,
        "type": held.kind,
        "state": held.state,
        "instance_type": held.instance_type,
        "zone": held.zone.name,
        "zone_id": held.zone.zone_id,
        "available": held.available,
        "total": held.total,
        "match": held.match,
        "start": format_time(held.start) or None,
        "end": format_time(held.end) or None,
    }


def candidate_json(c: Candidate) -> dict[str, Any]:
    return {
        "region": c.region,
        "zone": c.zone.name if c.zone else None,
        "zone_id": c.zone.zone_id if c.zone else None,
        "verdict": c.verdict.value,
        "why": c.why,
        "quota": {"code": c.quota.code, "limit": c.quota.limit, "used": c.quota.used} if c.quota else None,
        "spot_score": c.spot_score,
        "usd_per_hour": c.usd_per_hour,
        "price_source": c.price_source,
        "reservation": reservation_json(c.reservation) if c.reservation else None,
        "blocks": [block_json(b) for b in c.blocks],
    }


def block_json(b: BlockOffer) -> dict[str, Any]:
    return {
        "id": b.id,
        "zone": b.zone,
        "nodes": b.nodes,
        "hours": b.hours,
        "start": format_time(b.start) or None,
        "end": format_time(b.end) or None,
        "fee_usd": b.fee_usd,
    }
