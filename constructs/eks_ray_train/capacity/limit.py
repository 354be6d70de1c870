"""The spending limit's time, and the guard that cancels whatever a killed claim left behind.

CloudFormation runs a custom resource again only when its properties change, and remembers its attributes until then. The
limit's resource has only the properties that ask for a new limit, so its answer is stable without any stored state.

It is also the guard: CDK's provider framework never delivers the Delete of a resource whose Create failed, so a claim
that was killed inside Create could not clean up. The guard is created before the claim and deleted after it, and its
Delete always arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from .aws import Aws
from .check import BLOCK_WIND_DOWN
from .model import format_time
from .request import owner_of, plain_id
from .reservations import log, sweep
from .stack import limit_before

#: Workers are asked to checkpoint and leave this long before the node group goes to zero.
DRAIN_BEFORE = timedelta(minutes=15)
#: A schedule whose time is over when the rollback comes to it could be refused, and wedge the stack.
_ROLLBACK_AT_MOST = timedelta(minutes=30)


def limit_after(now: datetime, max_hours: int) -> datetime | None:
    """When the nodes must be gone; None where ``max_hours`` is 0 (no limit)."""
    return now + timedelta(hours=max_hours) if max_hours else None


def earliest_limit(limit_at: datetime | None, block_end: datetime | None) -> datetime | None:
    """The limit, or the wind-down of a Capacity Block where that comes first."""
    times = [t for t in (limit_at, block_end and block_end - BLOCK_WIND_DOWN) if t is not None]
    return min(times, default=None)


def answer_limit(event: Mapping[str, Any], aws: Aws) -> dict[str, Any]:
    """Create and Update arm the limit (asked anew, or CloudFormation would not call); Delete cancels everything."""
    owner = owner_of(event)
    physical_id = str(event.get("PhysicalResourceId") or plain_id("limit", owner))
    if event["RequestType"] == "Delete":
        failures = sweep(aws, owner, holds=True)
        if failures:
            log("left-behind", failures=failures)  # each ends by itself within the hour
        return {"PhysicalResourceId": physical_id}
    limit = limit_after(aws.now(), int(event["ResourceProperties"].get("MaxHours", 0)))
    if limit is not None and event["RequestType"] == "Update":
        limit = _kept_by_rollback(aws, owner.stack_id, limit)
    return {"PhysicalResourceId": physical_id, "Data": {"LimitAt": format_time(limit)}}


def _kept_by_rollback(aws: Aws, stack_id: str, anew: datetime) -> datetime:
    """A `scale` that fails must not prolong what runs: its rollback keeps the earlier time, if that is far enough ahead."""
    before = limit_before(aws, stack_id)
    if before is None or before >= anew or before - DRAIN_BEFORE < aws.now() + _ROLLBACK_AT_MOST:
        return anew
    log("limit-kept", limit_at=before, instead_of=anew)
    return before
