"""The state of our own stack: is it rolling back, is it whole, how old is it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from .aws import AWS_ERRORS, Aws
from .model import as_utc, parse_time

#: Written by run_outputs.py, which loads the CDK; this module must not.
LIMIT_OUTPUT = "SpendingLimitAt"

#: ``*_COMPLETE`` states in which the stack's resources do not exist.
_GONE = ("DELETE_COMPLETE", "ROLLBACK_COMPLETE")


def _stack(aws: Aws, stack_id: str) -> Mapping[str, Any] | None:
    if aws.cloudformation is None:
        return None
    try:
        stacks = aws.call(aws.cloudformation.describe_stacks, StackName=stack_id)["Stacks"]
    except AWS_ERRORS:
        return None
    return stacks[0] if stacks else None


def rolling_back(aws: Aws, stack_id: str) -> bool:
    """Whether CloudFormation restores an earlier state. Not knowing counts as no."""
    stack = _stack(aws, stack_id)
    return bool(stack) and "ROLLBACK_IN_PROGRESS" in stack["StackStatus"]  # type: ignore[index]


def limit_before(aws: Aws, stack_id: str) -> datetime | None:
    """The spending limit that a stack which rolls back goes back to; None where it had none, or that is not known.

    CloudFormation changes a stack's outputs only when an update is complete, so they still tell the state before it.
    """
    stack = _stack(aws, stack_id)
    if not stack or "ROLLBACK_IN_PROGRESS" not in stack["StackStatus"]:
        return None
    found = [o.get("OutputValue", "") for o in stack.get("Outputs", ()) if o["OutputKey"] == LIMIT_OUTPUT]
    try:
        return parse_time(found[0]) if found else None
    except ValueError:
        return None


def whole_since(aws: Aws, stack_id: str) -> datetime | None:
    """Creation time (UTC) of a stack that stands in a ``*_COMPLETE`` state; None while it changes, failed or is gone.

    Not knowing counts as gone: what nobody can vouch for is not paid for any longer.
    """
    stack = _stack(aws, stack_id)
    if not stack or not stack["StackStatus"].endswith("_COMPLETE") or stack["StackStatus"] in _GONE:
        return None
    return as_utc(stack["CreationTime"])
