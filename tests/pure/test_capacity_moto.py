"""The calls that moto has, through real boto3 clients: filters, pages and answers as boto3 parses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from eks_ray_train.capacity import handler
from eks_ray_train.capacity.aws import Aws
from eks_ray_train.capacity.market import enabled_regions
from eks_ray_train.capacity.nodes import read_ground
from eks_ray_train.capacity.offers import availability_zones, offering_zone_ids
from eks_ray_train.capacity.quota import _default_vcpus
from eks_ray_train.capacity.request import Request, plain_id
from eks_ray_train.cli.capacity_account import Account
from tests.fake_stack import STACK_ID, properties


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in {"ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x", "DEFAULT_REGION": "us-west-2"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    handler._boto_clients.cache_clear()
    with mock_aws():
        yield boto3.client("ec2")
    handler._boto_clients.cache_clear()


def _event(**fields: Any) -> dict[str, Any]:
    return {"RequestId": "r", "StackId": STACK_ID, "LogicalResourceId": "Claim", **fields}


def test_zones_offers_sizes_and_regions_are_read(ec2: Any) -> None:
    aws = handler.clients()
    zones = availability_zones(aws)
    assert [z.name for z in zones] == [f"us-west-2{letter}" for letter in "abcd"]
    assert offering_zone_ids(aws, "g6.12xlarge") <= {z.zone_id for z in zones} != set()
    assert _default_vcpus(aws, {"g6.12xlarge", "p5.48xlarge"}) == {"g6.12xlarge": 48, "p5.48xlarge": 192}
    assert "us-west-2" in enabled_regions(aws, aws.ec2)


def test_running_nodes_are_counted_in_our_subnets_and_of_our_type_only(ec2: Any) -> None:
    subnets = {s["AvailabilityZone"]: s["SubnetId"] for s in ec2.describe_subnets()["Subnets"]}
    image = ec2.describe_images()["Images"][0]["ImageId"]
    for name, kind, count in (
        ("us-west-2b", "g6.12xlarge", 2),
        ("us-west-2b", "m7i.xlarge", 1),
        ("us-west-2d", "g6.12xlarge", 1),
    ):
        ec2.run_instances(ImageId=image, InstanceType=kind, MinCount=count, MaxCount=count, SubnetId=subnets[name])

    class Named:
        zones = dict.fromkeys(("us-west-2a", "us-west-2b"), "")
        region = "us-west-2"

    aws: Aws = handler.clients()
    (zone,) = [z for z in availability_zones(aws) if z.name == "us-west-2b"]
    told = properties(Named(), SubnetIds=[subnets[name] for name in Named.zones])  # type: ignore[arg-type]
    event = _event(RequestType="Update", ResourceProperties=told, OldResourceProperties=told)
    owner = Request.from_event({**event, "PhysicalResourceId": ""}).owner
    ground = read_ground(Request.from_event({**event, "PhysicalResourceId": plain_id("claim", owner, zone)}), aws)
    assert ground.zone == zone and dict(ground.nodes) == {"g6.12xlarge": 2}


def test_lambdas_entry_point_answers_with_its_own_clients(ec2: Any) -> None:
    class Context:
        @staticmethod
        def get_remaining_time_in_millis() -> int:
            return 600_000

    class Named:
        zones = {"us-west-2a": "z"}
        region = "us-west-2"

    told = properties(Named(), Capacity="none")  # type: ignore[arg-type]
    event = _event(RequestType="Create", ResourceType="Custom::CapacityClaim", ResourceProperties=told)
    assert handler.on_event(event, Context())["Data"]["ZoneName"] == "us-west-2a"


def test_the_callers_account_knows_itself_and_its_regions(ec2: Any) -> None:
    account = Account(None)
    assert (account.home, account.id) == ("us-west-2", "123456789012")
    assert "eu-central-1" in account.enabled_regions()
    assert account.aws_of("eu-central-1") is account.aws_of("eu-central-1")
    assert account.aws_of("eu-central-1").ec2.meta.region_name == "eu-central-1"  # type: ignore[attr-defined]
