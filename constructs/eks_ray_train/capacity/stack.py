"""The state of our own stack: is it rolling back, is it whole, how old is it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from .aws import AWS_ERRORS, Aws
from .model import as_utc

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


def whole_since(aws: Aws, stack_id: str) -> datetime | None:
    """Creation time (UTC) of a stack that stands in a ``*_COMPLETE`` state; None while it changes, failed or is gone.

    Not knowing counts as gone: what nobody can vouch for is not paid for any longer.
    """
    stack = _stack(aws, stack_id)
    if not stack or not stack["StackStatus"].endswith("_COMPLETE") or stack["StackStatus"] in _GONE:
        return None
    return as_utc(stack["CreationTime"])
