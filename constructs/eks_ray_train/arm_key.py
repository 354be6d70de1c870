"""The stack parameter by which ``eks-ray-train scale`` asks for a new spending limit and a new claim."""

from __future__ import annotations

from aws_cdk import CfnParameter
from constructs import Construct

ARM_KEY = "ArmKey"


def arm_key(scope: Construct) -> str:
    """Value (a token) of the parameter ``ArmKey`` of ``scope``'s stack; empty until somebody sets it.

    A parameter and no setting: ``cdk deploy`` keeps a parameter's previous value, so that an ordinary deploy neither
    moves the limit nor claims again. https://docs.aws.amazon.com/cdk/v2/guide/parameters.html
    """
    parameter = CfnParameter(
        scope,
        ARM_KEY,
        type="String",
        default="",
        allowed_pattern="[0-9TZ:.-]{0,40}",
        description="A new value claims capacity again and re-arms the spending limit; set by eks-ray-train scale",
    )
    parameter.override_logical_id(ARM_KEY)
    return parameter.value_as_string
