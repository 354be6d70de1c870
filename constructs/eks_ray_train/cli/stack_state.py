"""The app's three stacks as CloudFormation sees them: which stand, in which state, and when they have settled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from eks_ray_train.errors import EksRayTrainError

from .aws_session import aws_errors, error_code

NETWORK = "EksRayTrainNetwork"
CLUSTER = "EksRayTrainCluster"
TRAINING = "EksRayTrainTraining"
STACKS = (NETWORK, CLUSTER, TRAINING)
BOOTSTRAP = "CDKToolkit"
# The training stack's parameter that arm_key.py declares; that module loads the CDK, this one must not.
ARM_PARAMETER = "ArmKey"
# The version of CDK's bootstrap resources: what the app's own templates look up.
# https://docs.aws.amazon.com/cdk/v2/guide/bootstrapping-env.html
BOOTSTRAP_PARAMETER = "/cdk-bootstrap/hnb659fds/version"

# States of a stack none of whose resources exist, or ever did.
_EMPTY = ("ROLLBACK_COMPLETE", "DELETE_COMPLETE", "REVIEW_IN_PROGRESS")
_POLL_SECONDS = 10.0
# A cluster's deletion and a node group's failed creation are the longest steps: 20 to 40 minutes each.
SETTLE_SECONDS = 90 * 60


@dataclass(frozen=True, kw_only=True)
class StackState:
    """One stack that CloudFormation knows."""

    name: str
    stack_id: str
    status: str
    reason: str = ""
    outputs: dict[str, str] = field(default_factory=dict)

    @property
    def stands(self) -> bool:
        """Whether resources of it exist (an attempt that was rolled back leaves none)."""
        return self.status not in _EMPTY

    @property
    def whole(self) -> bool:
        """Whether it was deployed and can be updated."""
        return self.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE")

    @property
    def moving(self) -> bool:
        return self.status.endswith("_IN_PROGRESS") and self.status != "REVIEW_IN_PROGRESS"

    def __str__(self) -> str:
        return f"{self.name}: {self.status}"


def read_stack(cloudformation: Any, name: str) -> StackState | None:
    """None where CloudFormation knows no such stack (a deleted one is found only by its id)."""
    from botocore.exceptions import ClientError

    with aws_errors("cloudformation:DescribeStacks"):
        try:
            found = cloudformation.describe_stacks(StackName=name)["Stacks"]
        except ClientError as error:
            # CloudFormation has no code of its own for this: ValidationError, "Stack with id X does not exist".
            if error_code(error) == "ValidationError" and "does not exist" in str(error):
                return None
            raise
    if not found:
        return None
    stack = found[0]
    return StackState(
        name=str(stack["StackName"]),
        stack_id=str(stack["StackId"]),
        status=str(stack["StackStatus"]),
        reason=str(stack.get("StackStatusReason", "")),
        outputs={o["OutputKey"]: o.get("OutputValue", "") for o in stack.get("Outputs", ())},
    )


def read_stacks(cloudformation: Any, names: Sequence[str] = STACKS) -> dict[str, StackState]:
    """The stacks that CloudFormation knows, by name, in the order of deployment."""
    states = ((name, read_stack(cloudformation, name)) for name in names)
    return {name: state for name, state in states if state is not None}


def settle(
    cloudformation: Any,
    names: Sequence[str] = STACKS,
    *,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    patience_s: float = SETTLE_SECONDS,
) -> dict[str, StackState]:
    """Waits until no stack changes any more (an interrupted deploy goes on by itself), and returns them.

    Raises EksRayTrainError where one still changes after ``patience_s`` seconds.
    """
    waited, told = 0.0, ""
    while True:
        states = read_stacks(cloudformation, names)
        moving = [state for state in states.values() if state.moving]
        if not moving:
            return states
        text = ", ".join(map(str, moving))
        if waited >= patience_s:
            raise EksRayTrainError(
                f"CloudFormation still works after {waited / 60:.0f} minutes ({text}); run the command again later"
            )
        if text != told:
            say(f"waiting for CloudFormation, which still works: {text}")
            told = text
        sleep(_POLL_SECONDS)
        waited += _POLL_SECONDS


def is_bootstrapped(session: Any, region: str) -> bool:
    """Whether ``cdk bootstrap`` was run in ``region``: by its parameter, else (not readable) by its stack."""
    from botocore.exceptions import ClientError

    from .aws_session import is_absent, is_denied

    with aws_errors("ssm:GetParameter"):
        try:
            session.client("ssm", region).get_parameter(Name=BOOTSTRAP_PARAMETER)
            return True
        except ClientError as error:
            if is_absent(error):
                return False
            if not is_denied(error):
                raise
    stack = read_stack(session.client("cloudformation", region), BOOTSTRAP)
    return stack is not None and stack.stands
