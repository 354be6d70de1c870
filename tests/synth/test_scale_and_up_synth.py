"""What the commands hand to the CDK is what the app and the pinned ``cdk`` understand."""

from __future__ import annotations

import re
import subprocess

import pytest
from aws_cdk import App, Environment, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk.assertions import Match, Template

from eks_ray_train import CapacityClaim, TrainingNetwork
from eks_ray_train.arm_key import ARM_KEY, arm_key
from eks_ray_train.cli import stack_state


def test_arm_key_is_a_parameter_that_reaches_limit_and_claim() -> None:
    stack = Stack(App(), "Training")
    subnet = ec2.Subnet.from_subnet_attributes(stack, "S", subnet_id="subnet-1", availability_zone="us-west-2a")
    CapacityClaim(
        stack,
        "Capacity",
        instance_type="g6.12xlarge",
        vcpus_per_node=48,
        quota_code="L-DB2E81BA",
        node_count=2,
        subnets=[subnet],
        arm_key=arm_key(stack),
    )
    template = Template.from_stack(stack)
    assert ARM_KEY == stack_state.ARM_PARAMETER
    parameter = template.find_parameters(ARM_KEY)[ARM_KEY]
    assert parameter["Default"] == ""
    assert re.fullmatch(parameter["AllowedPattern"], "2026-11-29T12:00:00Z") and re.fullmatch(
        parameter["AllowedPattern"], ""
    )
    for kind in ("Custom::SpendingLimit", "Custom::CapacityClaim"):
        template.has_resource_properties(kind, Match.object_like({"ArmKey": {"Ref": ARM_KEY}}))


@pytest.mark.parametrize("zones", [2, 3, 4, 5, 6])
def test_network_has_room_for_every_zone_of_a_region(zones: int) -> None:
    stack = Stack(App(), "Network", env=Environment(account="111122223333", region="us-east-1"))
    TrainingNetwork(stack, "N", availability_zones=[f"us-east-1{letter}" for letter in "abcdef"[:zones]])
    subnets = Template.from_stack(stack).find_resources("AWS::EC2::Subnet")
    assert len(subnets) == 2 * zones
    assert len({s["Properties"]["CidrBlock"] for s in subnets.values()}) == 2 * zones


@pytest.mark.parametrize(
    ("verb", "flags"),
    [
        ("deploy", ("--all", "--require-approval", "--parameters", "--context", "--previous-parameters")),
        ("destroy", ("--all", "--force", "--exclusively", "--context")),
    ],
)
def test_flags_of_the_commands_are_flags_of_the_pinned_cdk(verb: str, flags: tuple[str, ...]) -> None:
    shown = subprocess.run(["cdk", verb, "--help"], capture_output=True, text=True, check=True).stdout
    assert [flag for flag in flags if flag not in shown] == []
