"""What Ray says of one job, taken out of the dashboard's JSON."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from eks_ray_train.errors import ClusterNotReadyError

TERMINAL = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
LATEST_MS = 253_402_300_800_000  # the year 10000, in milliseconds since 1970: no job started later


@dataclass(frozen=True, kw_only=True)
class JobInfo:
    """What Ray says of one job. ``status``: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED; times in seconds since 1970."""

    submission_id: str
    status: str
    entrypoint: str = ""
    message: str = ""
    error_type: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    driver_exit_code: int | None = None
    driver_node_id: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def seconds(self) -> float | None:
        """Wall time of the job, None before it started; of a running job, up to now."""
        if self.started_at is None:
            return None
        return (self.ended_at or time.time()) - self.started_at

    @classmethod
    def from_json(cls, data: Any) -> JobInfo:
        """From the dashboard's JSON (times there are in milliseconds). Raises ClusterNotReadyError for any other shape."""
        if not isinstance(data, dict):
            raise odd_answer("a job", data)
        text = {name: _field(data, name, str) for name in ("submission_id", "job_id", "status", "entrypoint", "message")}
        job_id = text["submission_id"] or text["job_id"]
        if not job_id or not text["status"]:
            raise odd_answer("a job with its id and status", data)
        return cls(
            submission_id=job_id,
            status=text["status"].upper(),
            entrypoint=text["entrypoint"] or "",
            message=text["message"] or "",
            error_type=_field(data, "error_type", str),
            started_at=_seconds(data, "start_time"),
            ended_at=_seconds(data, "end_time"),
            driver_exit_code=_field(data, "driver_exit_code", int),
            driver_node_id=_field(data, "driver_node_id", str),
            metadata=_field(data, "metadata", dict) or {},
        )


def odd_answer(wanted: str, got: Any) -> ClusterNotReadyError:
    """What stands between here and Ray (a proxy, a half-started head) may answer anything: no reason to end as a bug does."""
    return ClusterNotReadyError(
        f"the dashboard answered {json.dumps(got)[:120]} instead of {wanted}; try again, or check that the address is a Ray dashboard's"
    )


def _field(data: dict[str, Any], name: str, kind: type) -> Any:
    value = data.get(name)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise odd_answer(f"a job whose {name} is {kind.__name__}", data)
    return value


def _seconds(data: dict[str, Any], name: str) -> float | None:
    value = data.get(name)
    if not value:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LATEST_MS:
        raise odd_answer(f"a job whose {name} is in milliseconds", data)
    return value / 1000
