"""Entry point of the capacity function: CDK's provider framework and the renewal schedule both call :func:`on_event`.

The framework answers CloudFormation: what is returned becomes the resource's id and attributes, what is raised becomes
the failure reason. boto3 is imported, and clients are made, on the first event, not at import.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from .aws import Aws
from .claim import answer_claim
from .hold import watch
from .limit import answer_limit
from .probe import answer_probe
from .reservations import log

ANSWERS: Mapping[str, Callable[[Mapping[str, Any], Aws], dict[str, Any]]] = {
    "Custom::CapacityProbe": answer_probe,
    "Custom::CapacityClaim": answer_claim,
    "Custom::SpendingLimit": answer_limit,
}


def on_event(event: Mapping[str, Any], context: Any = None) -> dict[str, Any]:
    """Create, Update and Delete of the custom resources; anything without a request type is the schedule's."""
    if "RequestType" not in event:
        return on_schedule(event, context)
    return answer(event, clients(context))


def on_schedule(event: Mapping[str, Any], context: Any = None) -> dict[str, Any]:
    """One tick: renew, trim or let go of the hold that the event names."""
    return dict(watch(event, clients(context)))


def answer(event: Mapping[str, Any], aws: Aws) -> dict[str, Any]:
    """The answer to one CloudFormation event. Delete succeeds whatever happens: a stack must always go away."""
    respond = ANSWERS[event["ResourceType"]]
    if event["RequestType"] != "Delete":
        return respond(event, aws)
    try:
        return respond(event, aws)
    except Exception as error:  # the reservation's own end date is the last resort
        log("delete-failed", error=repr(error))
        return {"PhysicalResourceId": event.get("PhysicalResourceId", "")}


@cache
def _boto_clients() -> tuple[Any, Any, Any]:
    logging.getLogger(__package__).setLevel(logging.INFO)  # Lambda's own handler on the root logger writes it
    import boto3
    from botocore.config import Config

    # Our own retries (aws.Aws.call) know the deadline; botocore's would hide the time they take.
    config = Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 1, "mode": "standard"})
    return tuple(boto3.client(name, config=config) for name in ("ec2", "service-quotas", "cloudformation"))  # type: ignore[return-value]


def clients(context: Any = None) -> Aws:
    """boto3 clients of the function's own region; the deadline is when Lambda kills this run."""
    ec2, quotas, cloudformation = _boto_clients()
    deadline = None
    if context is not None:
        deadline = datetime.now(UTC) + timedelta(milliseconds=context.get_remaining_time_in_millis())
    return Aws(ec2=ec2, quotas=quotas, cloudformation=cloudformation, deadline=deadline)
