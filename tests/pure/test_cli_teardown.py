"""``teardown check``: each kind of leftover in a moto account, prices, what is kept, what may not be looked at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import NoCredentialsError
from moto import mock_aws

from eks_ray_train.cli import __main__ as cli
from eks_ray_train.cli import aws_session
from tests.fake_cdk import CdkWorld
from tests.fake_ec2 import World, client_error
from tests.moto_session import MotoSession, moto_client

REGION = "us-west-2"
STACK_TAG = {"Key": "aws:cloudformation:stack-name", "Value": "EksRayTrainNetwork"}
CLUSTER_TAG = {"Key": "kubernetes.io/cluster/eks-ray-train", "Value": "owned"}
EMPTY = {"describe_file_systems": {"FileSystems": []}}
CDK_JSON = '{"app": "x", "context": {"eks-ray-train": {"region": "us-west-2"}}}'


class Account:
    """A moto account in which a test leaves things behind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "cdk.json").write_text(CDK_JSON)
        self.ec2 = moto_client("ec2")
        self.world = World()
        self.stacks = CdkWorld(tmp_path)
        self.session = MotoSession(self.stacks, self.world, extra=dict(EMPTY))
        monkeypatch.setattr(aws_session, "open_session", lambda region: self.session)
        self._capsys = capsys
        self.out = self.err = ""

    def check(self, *argv: str) -> int:
        code = cli.main(["teardown", "check", *argv])
        shown = self._capsys.readouterr()
        self.out, self.err = shown.out, shown.err
        assert "Traceback" not in self.out + self.err
        return code

    def left(self) -> dict[str, dict[str, Any]]:
        """What the check lists, by kind (one each in these tests)."""
        self.check("--json")
        return {item["kind"]: item for item in json.loads(self.out)["left"]}

    def vpc(self) -> str:
        made = self.ec2.create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=_tags("vpc", STACK_TAG))
        return str(made["Vpc"]["VpcId"])

    def subnet(self, vpc: str) -> str:
        return str(self.ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"])


def _tags(kind: str, *tags: dict[str, str]) -> Any:
    return [{"ResourceType": kind, "Tags": list(tags)}]


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Account]:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # a second a backend, for images that nothing here needs
    with mock_aws():
        yield Account(monkeypatch, tmp_path, capsys)


def test_empty_account_is_clean(account: Account) -> None:
    assert account.check() == 0
    assert account.out == f"nothing that costs money is left in {REGION}\n"


def test_other_peoples_things_are_not_listed(account: Account) -> None:
    account.ec2.create_volume(AvailabilityZone="us-west-2a", Size=500)
    account.ec2.allocate_address(Domain="vpc")
    account.world.add_reservation()
    other = account.ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    account.ec2.create_security_group(GroupName="theirs", Description="d", VpcId=other)
    moto_client("logs").create_log_group(logGroupName="/aws/eks/other-cluster/cluster")
    account.ec2.create_volume(
        AvailabilityZone="us-west-2a",
        Size=5,
        TagSpecifications=_tags("volume", {**CLUSTER_TAG, "Key": CLUSTER_TAG["Key"] + "-2"}),
    )
    assert account.check("--json") == 0
    assert json.loads(account.out)["left"] == []


def test_volume_of_a_claim_costs_money_and_exits_7(account: Account) -> None:
    account.ec2.create_volume(
        AvailabilityZone="us-west-2a", Size=100, VolumeType="gp3", TagSpecifications=_tags("volume", CLUSTER_TAG)
    )
    assert account.check() == 7
    assert "$8.00/month  EBS volume vol-" in account.out and "aws ec2 delete-volume --volume-id vol-" in account.out


def test_nat_gateway_and_its_address_cost_money(account: Account) -> None:
    address = account.ec2.allocate_address(Domain="vpc", TagSpecifications=_tags("elastic-ip", STACK_TAG))
    account.ec2.create_nat_gateway(SubnetId=account.subnet(account.vpc()), AllocationId=address["AllocationId"])
    left = account.left()
    assert left["NAT gateway"]["usd_per_month"] == pytest.approx(32.85)
    assert left["Elastic IP address"]["usd_per_month"] == pytest.approx(3.65)
    assert account.check() == 7


def test_forgotten_node_costs_its_price(account: Account) -> None:
    account.ec2.run_instances(
        ImageId="ami-12345678",
        InstanceType="g6.12xlarge",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=_tags("instance", CLUSTER_TAG),
    )
    item = account.left()["instance"]
    assert item["usd_per_month"] == pytest.approx(4.6016 * 730, rel=1e-3) and item["counts"]


def test_reservation_of_a_deleted_stack_costs_its_unused_slots(account: Account) -> None:
    stack = "arn:aws:cloudformation:us-west-2:111122223333:stack/EksRayTrainTraining/0a"
    account.world.add_reservation(
        Tags=[{"Key": "eks-ray-train:stack-id", "Value": stack}], EndDate=account.world.now + timedelta(hours=1)
    )
    item = account.left()["capacity reservation"]
    assert item["usd_per_month"] == pytest.approx(2 * 4.6016 * 730, rel=1e-3)
    assert "ends by itself at 2026-11-29T13:00:00 UTC" in item["note"]
    assert account.check() == 7


def test_ended_reservation_is_not_listed(account: Account) -> None:
    stack = "arn:aws:cloudformation:us-west-2:111122223333:stack/EksRayTrainTraining/0a"
    account.world.add_reservation(Tags=[{"Key": "eks-ray-train:stack-id", "Value": stack}], State="expired")
    assert account.check("--json") == 0 and json.loads(account.out)["left"] == []


def test_load_balancer_of_a_service_is_found_by_its_tag_and_its_target_group_is_free(account: Account) -> None:
    vpc = account.ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    subnets = [
        s["SubnetId"] for s in account.ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["Subnets"]
    ]
    elb = moto_client("elbv2")
    tags = [{"Key": "elbv2.k8s.aws/cluster", "Value": "eks-ray-train"}]
    elb.create_load_balancer(Name="k8s-ray", Subnets=subnets[:2], Tags=tags)
    elb.create_load_balancer(Name="theirs", Subnets=subnets[:2])
    elb.create_target_group(Name="k8s-ray-t", Protocol="HTTP", Port=80, VpcId=vpc, Tags=tags)
    left = account.left()
    assert left["load balancer"]["id"] == "k8s-ray" and left["load balancer"]["usd_per_month"] == pytest.approx(16.425)
    assert left["target group"]["id"] == "k8s-ray-t" and not left["target group"]["counts"]
    assert account.check() == 7 and "theirs" not in account.out


def test_classic_load_balancer_in_our_vpc_is_found_without_any_tag(account: Account) -> None:
    subnet = account.subnet(account.vpc())
    listener = [{"Protocol": "tcp", "LoadBalancerPort": 80, "InstancePort": 80}]
    moto_client("elb").create_load_balancer(LoadBalancerName="a1b2", Listeners=listener, Subnets=[subnet])
    assert account.left()["classic load balancer"]["id"] == "a1b2"


def test_interfaces_and_groups_of_our_vpc_are_free_and_do_not_count(account: Account) -> None:
    vpc = account.vpc()
    account.ec2.create_network_interface(SubnetId=account.subnet(vpc), Description="AWS Lambda VPC ENI-kubectl")
    account.ec2.create_security_group(GroupName="k8s-elb-a1b2", Description="d", VpcId=vpc)
    assert account.check() == 0
    assert "AWS Lambda VPC ENI-kubectl; Lambda frees it within 20 to 40 minutes" in account.out
    assert "security group sg-" in account.out and "k8s-elb-a1b2" in account.out and f"VPC {vpc}" in account.out


def test_interfaces_of_the_cni_are_found_by_their_tag_in_a_vpc_of_others(account: Account) -> None:
    other = account.ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    subnet = account.ec2.create_subnet(VpcId=other, CidrBlock="10.1.0.0/24")["Subnet"]["SubnetId"]
    tag = {"Key": "cluster.k8s.amazonaws.com/name", "Value": "eks-ray-train"}
    account.ec2.create_network_interface(SubnetId=subnet, TagSpecifications=_tags("network-interface", tag))
    assert "network interface" in account.left()


def test_interface_endpoint_in_our_vpc_costs_by_zone_and_a_gateway_endpoint_is_free(account: Account) -> None:
    vpc = account.vpc()
    subnet = account.subnet(vpc)
    service = f"com.amazonaws.{REGION}"
    account.ec2.create_vpc_endpoint(
        VpcId=vpc, ServiceName=f"{service}.guardduty-data", VpcEndpointType="Interface", SubnetIds=[subnet]
    )
    assert account.left()["VPC endpoint"]["usd_per_month"] == pytest.approx(7.3)
    account.ec2.create_vpc_endpoint(VpcId=vpc, ServiceName=f"{service}.s3", VpcEndpointType="Gateway")
    account.check("--json")
    prices = sorted(i["usd_per_month"] for i in json.loads(account.out)["left"] if i["kind"] == "VPC endpoint")
    assert prices == pytest.approx([0.0, 7.3])


def test_cluster_costs_its_control_plane(account: Account) -> None:
    moto_client("eks").create_cluster(
        name="eks-ray-train", roleArn="arn:aws:iam::111122223333:role/r", resourcesVpcConfig={"subnetIds": []}
    )
    assert account.left()["EKS cluster"]["usd_per_month"] == pytest.approx(73.0)


def test_log_groups_are_found_by_name_and_small_ones_do_not_count(account: Account) -> None:
    logs = moto_client("logs")
    for name in ("/aws/eks/eks-ray-train/cluster", "/aws/lambda/EksRayTrainCluster-x", "/aws/lambda/other"):
        logs.create_log_group(logGroupName=name)
    assert account.check() == 0
    assert "/aws/eks/eks-ray-train/cluster" in account.out and "/aws/lambda/EksRayTrainCluster-x" in account.out
    assert "/aws/lambda/other" not in account.out
    big = {"logGroups": [{"logGroupName": "/aws/eks/eks-ray-train/cluster", "storedBytes": 5_000_000_000}]}
    account.session.extra["describe_log_groups"] = big
    assert account.check() == 7 and "$0.15/month" in account.out


def _bucket(account: Account, *, keep: bool) -> None:
    """moto refuses what only CloudFormation may do, to write its own tags: the tagging service's answer is canned."""
    moto_client("s3").create_bucket(Bucket="checkpoints", CreateBucketConfiguration={"LocationConstraint": REGION})
    tags = [
        {"Key": STACK_TAG["Key"], "Value": "EksRayTrainTraining"},
        *([{"Key": "keep", "Value": "true"}] if keep else []),
    ]
    found = {"ResourceTagMappingList": [{"ResourceARN": "arn:aws:s3:::checkpoints", "Tags": tags}]}
    account.session.extra["get_resources"] = found
    account.session.extra["describe_key"] = {"KeyMetadata": {"KeyId": "k", "KeyState": "PendingDeletion"}}


def test_kept_bucket_is_listed_with_its_price_and_does_not_count(account: Account) -> None:
    _bucket(account, keep=True)
    account.session.extra["get_metric_statistics"] = {
        "Datapoints": [{"Timestamp": account.world.now, "Average": 100e9}]
    }
    assert account.check() == 0
    assert "kept on purpose (keep=true), not counted:" in account.out
    assert "$2.30/month  S3 bucket checkpoints (100.00 GB)" in account.out


def test_bucket_that_nobody_asked_to_keep_counts_even_where_its_size_is_unknown(account: Account) -> None:
    _bucket(account, keep=False)
    account.session.denied.add("get_metric_statistics")
    assert account.check() == 7
    assert "$?/month  S3 bucket checkpoints (size not known)" in account.out
    assert "and what has no known price" in account.out


def test_bucket_that_the_tagging_service_still_remembers_is_not_listed(account: Account) -> None:
    arn = {"ResourceARN": "arn:aws:s3:::gone", "Tags": [{"Key": STACK_TAG["Key"], "Value": "EksRayTrainTraining"}]}
    account.session.extra["get_resources"] = {"ResourceTagMappingList": [arn]}
    account.session.extra["describe_key"] = {"KeyMetadata": {"KeyId": "k", "KeyState": "PendingDeletion"}}
    assert account.check("--json") == 0 and json.loads(account.out)["left"] == []


def test_key_that_is_not_about_to_be_deleted_counts(account: Account) -> None:
    key = moto_client("kms").create_key()["KeyMetadata"]["Arn"]
    entry = {"ResourceARN": key, "Tags": [{"Key": STACK_TAG["Key"], "Value": "EksRayTrainCluster"}]}
    account.session.extra["get_resources"] = {"ResourceTagMappingList": [entry]}
    account.session.extra["head_bucket"] = {}
    assert account.left()["KMS key"]["usd_per_month"] == 1.0


def test_file_system_costs_by_size_and_throughput(account: Account) -> None:
    system = {
        "FileSystemId": "fs-1",
        "FileSystemType": "LUSTRE",
        "StorageCapacity": 1200,
        "Lifecycle": "AVAILABLE",
        "LustreConfiguration": {"PerUnitStorageThroughput": 250},
        "Tags": [{"Key": STACK_TAG["Key"], "Value": "EksRayTrainTraining"}],
    }
    account.session.extra["describe_file_systems"] = {
        "FileSystems": [system, {**system, "FileSystemId": "fs-2", "Tags": []}]
    }
    assert account.left()["FSx file system"]["usd_per_month"] == pytest.approx(252.0)


def test_stack_that_stands_is_named_with_its_state(account: Account) -> None:
    account.stacks.standing(Network="DELETE_FAILED")
    assert account.check() == 0
    assert "stack EksRayTrainNetwork (DELETE_FAILED" in account.out


@pytest.mark.parametrize(
    ("operation", "kind", "costs"),
    [
        ("describe_instances", "instance", True),
        ("describe_capacity_reservations", "capacity reservation", True),
        ("describe_nat_gateways", "NAT gateway", True),
        ("describe_addresses", "Elastic IP address", True),
        ("describe_volumes", "EBS volume", True),
        ("describe_vpc_endpoints", "VPC endpoint", True),
        ("describe_cluster", "EKS cluster", True),
        ("describe_load_balancers", "load balancer", True),
        ("describe_log_groups", "log group", True),
        ("get_resources", "S3 bucket", True),
        ("describe_file_systems", "FSx file system", True),
        ("describe_network_interfaces", "network interface", False),
        ("describe_security_groups", "security group", False),
        ("describe_target_groups", "target group", False),
        ("describe_vpcs", "VPC", False),
    ],
)
def test_kind_that_may_not_be_read_is_named_and_fails_only_where_it_can_cost(
    account: Account, operation: str, kind: str, costs: bool
) -> None:
    account.session.denied.add(operation)
    assert account.check() == (1 if costs else 0)
    assert f"could not be looked at: {kind}: no permission for " in account.out
    assert ("not everything could be looked at" in account.out) is costs


def test_what_costs_money_is_told_though_another_kind_may_not_be_read(account: Account) -> None:
    account.ec2.create_volume(AvailabilityZone="us-west-2a", Size=8, TagSpecifications=_tags("volume", CLUSTER_TAG))
    account.session.denied |= {"describe_nat_gateways"}
    assert account.check() == 7
    assert "EBS volume" in account.out and "could not be looked at: NAT gateway" in account.out


def test_another_teams_cluster_is_never_ours(account: Account, tmp_path: Path) -> None:
    existing = {
        "name": "eks-ray-train",
        "kubectl_role_arn": "arn:aws:iam::111122223333:role/k",
        "security_group_id": "sg-1",
        "vpc_id": "vpc-1",
        "availability_zones": ["us-west-2a", "us-west-2b"],
        "private_subnet_ids": ["subnet-1", "subnet-2"],
    }
    block = {"region": REGION, "existing_cluster": existing}
    (tmp_path / "cdk.json").write_text(json.dumps({"context": {"eks-ray-train": block}}))
    account.ec2.create_volume(AvailabilityZone="us-west-2a", Size=8, TagSpecifications=_tags("volume", CLUSTER_TAG))
    assert account.check("--json") == 0 and json.loads(account.out)["left"] == []


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidClientTokenId"])
def test_expired_credentials_are_one_message_with_the_remedy(
    account: Account, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    class Sts:
        @staticmethod
        def get_caller_identity() -> None:
            raise client_error(code, "The security token included in the request is expired", "GetCallerIdentity")

    session = aws_session.BotoSession(REGION)
    monkeypatch.setattr(session, "client", lambda service, region=None: Sts())
    monkeypatch.setattr(aws_session, "open_session", lambda region: session)
    assert account.check() == 2
    assert code in account.err and "aws sso login" in account.err


def test_missing_credentials_are_one_message_with_the_remedy(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sts:
        @staticmethod
        def get_caller_identity() -> None:
            raise NoCredentialsError

    session = aws_session.BotoSession(REGION)
    monkeypatch.setattr(session, "client", lambda service, region=None: Sts())
    monkeypatch.setattr(aws_session, "open_session", lambda region: session)
    assert account.check("--json") == 2
    assert json.loads(account.out)["exit_code"] == 2 and "aws sso login" in json.loads(account.out)["error"]
