"""Why a deploy or a destroy failed: the first failing events of the stacks, their kind, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any

from .aws_session import aws_errors, error_code
from .stack_state import STACKS

_MOST_EVENTS = 2000
_REASONS_SHOWN = 3


class Kind(StrEnum):
    """What a failure means for the search of a place."""

    CAPACITY = "no capacity"  # the next zone may have it
    QUOTA = "quota too small"  # every zone of the region shares it
    RESERVATION = "reservation does not fit"
    OTHER = "another failure"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One failing resource: ``stack`` and ``resource`` (logical id), ``type``, ``status`` and CloudFormation's
    ``reason``.
    """

    stack: str
    resource: str
    type: str
    status: str
    reason: str

    @property
    def kind(self) -> Kind:
        return kind_of(self.reason)

    def __str__(self) -> str:
        return f"{self.stack}: {self.resource} ({self.type}) {self.status}: {clean(self.reason)}"


# The handler's own sentences (capacity/prove.py, probe.py, claim.py, check.py) and EC2's and EKS's codes inside them.
# Quota first: a node group reports it under the same AsgInstanceLaunchFailures as a lack of capacity.
_KINDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        Kind.QUOTA,
        re.compile(r"VcpuLimitExceeded|InstanceLimitExceeded|quota is too small|vCPU capacity than your current", re.I),
    ),
    (
        Kind.RESERVATION,
        re.compile(r"Reservation cr-\w+ (cannot carry|does not exist)|InvalidCapacityReservation", re.I),
    ),
    (
        Kind.CAPACITY,
        re.compile(
            r"InsufficientInstanceCapacity|InsufficientCapacity|ReservationCapacityExceeded|do not have sufficient "
            r".{1,60} capacity"
            r"|No capacity for \d|is not offered in|UnsupportedAvailabilityZone|not supported in your requested "
            r"Availability Zone",
            re.I | re.S,
        ),
    ),
)


def kind_of(reason: str) -> Kind:
    """The kind of one reason; an unknown text is OTHER, which stops the search."""
    return next((kind for kind, pattern in _KINDS if pattern.search(reason)), Kind.OTHER)


def clean(reason: str) -> str:
    """A custom resource's reason without what CloudFormation and the SDK put round the message."""
    text = re.sub(r"^Received response status \[FAILED\] from custom resource\. Message returned: ", "", reason)
    # CDK's provider framework appends the function's stack trace; request ids follow in brackets.
    text = re.split(r"\n\s*at |\n\s*File \"|\nLogs: |\\n\s*at ", text, maxsplit=1)[0]
    text = re.sub(r"\s*\((?:Service: [^()]*|RequestToken: [^()]*|RequestId: [^()]*)\)", "", text)
    return re.sub(r"^CapacityError: ", "", text).strip()


def remember(cloudformation: Any, names: Sequence[str] = STACKS) -> dict[str, str]:
    """Newest event id of each stack: what :func:`failures_since` reads up to. No clock has to agree with AWS's."""
    return {name: events[0]["EventId"] for name in names if (events := list(islice(_events(cloudformation, name), 1)))}


def failures_since(cloudformation: Any, seen: Mapping[str, str], names: Sequence[str] = STACKS) -> list[Failure]:
    """Resources that failed after ``seen``, first cause first; what CloudFormation merely cancelled is left out."""
    found: list[Failure] = []
    for name in names:
        new: list[Failure] = []
        for event in islice(_events(cloudformation, name), _MOST_EVENTS):
            if event["EventId"] == seen.get(name):
                break
            status, reason = str(event.get("ResourceStatus", "")), str(event.get("ResourceStatusReason", ""))
            own = event.get("PhysicalResourceId") == event.get("StackId")
            if status.endswith("FAILED") and not own and "cancelled" not in reason.lower():
                new.append(
                    Failure(
                        stack=name,
                        resource=str(event.get("LogicalResourceId", "?")),
                        type=str(event.get("ResourceType", "?")),
                        status=status,
                        reason=reason,
                    )
                )
        found += reversed(new)  # CloudFormation lists the newest first
    return found


def _events(cloudformation: Any, name: str) -> Any:
    from botocore.exceptions import ClientError

    with aws_errors("cloudformation:DescribeStackEvents"):
        try:
            for page in cloudformation.get_paginator("describe_stack_events").paginate(StackName=name):
                yield from page["StackEvents"]
        except ClientError as error:
            if not (error_code(error) == "ValidationError" and "does not exist" in str(error)):
                raise


def verdict(failures: Sequence[Failure]) -> Kind:
    """The kind of the whole: of the first cause; OTHER where no event tells."""
    return failures[0].kind if failures else Kind.OTHER


def show(failures: Sequence[Failure]) -> str:
    """The first causes, a line each (their own lines indented)."""
    lines = [str(failure).replace("\n", "\n    ") for failure in failures[:_REASONS_SHOWN]]
    if len(failures) > _REASONS_SHOWN:
        lines.append(f"… and {len(failures) - _REASONS_SHOWN} more (cloudformation describe-stack-events)")
    return "\n".join(f"  {line}" for line in lines)


# What a destroy stumbles over, and the way on.
# https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/troubleshooting.html
_DESTROY_HINTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"dependent object|DependencyViolation|has dependencies|in use|mapped public address", re.I),
        "something that CloudFormation does not know still uses it: network interfaces of Lambda functions go by "
        "themselves within "
        "20 to 40 minutes, load balancers made by a Service or Ingress must be deleted; `eks-ray-train teardown "
        "check` names them; "
        "then run `eks-ray-train down` again",
    ),
    (
        re.compile(r"deletion ?protection", re.I),
        "set deletion_protection to false, run `cdk deploy EksRayTrainCluster`, then `eks-ray-train down` again",
    ),
    (
        re.compile(r"ResourceInUse|update in progress|nodegroups attached|in state (UPDATING|CREATING)", re.I),
        "EKS still changes it: wait some minutes, then run `eks-ray-train down` again",
    ),
    (
        re.compile(r"AccessDenied|not authorized|UnauthorizedOperation", re.I),
        "the role that deletes may not do this: allow the action (CDK's execution role is CloudFormation's), then run "
        "`eks-ray-train down` again",
    ),
    (
        re.compile(r"BucketNotEmpty|not empty", re.I),
        "empty the bucket, then run `eks-ray-train down` again",
    ),
    (
        re.compile(r"timed? ?out|did not (stabilize|respond)|failed to stabilize", re.I),
        "it took too long, often because a Ray resource waits for its operator: run `eks-ray-train down` again; where "
        "it fails at "
        "the same resource, delete the stack with `aws cloudformation delete-stack --retain-resources` for that "
        "resource",
    ),
)


def destroy_hint(failures: Sequence[Failure]) -> str:
    """What to do after a destroy that stopped half-way."""
    for failure in failures:
        for pattern, hint in _DESTROY_HINTS:
            if pattern.search(failure.reason):
                return hint
    return "run `eks-ray-train down` again; what stands is listed below"
