"""TrainingNetwork: a VPC whose private subnets hold control plane interfaces, system nodes and GPU nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aws_cdk import Acknowledgment, Fn, RemovalPolicy, Stack, Token, Validations
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_logs as logs
from constructs import Construct

from .errors import SettingsError
from .suppressions import log_key

# The CDK's own stand-in (aws-cdk-lib, aws-ec2/lib/vpc.ts, DUMMY_VPC_PROPS).
_LOOKUP_PENDING = "vpc-12345"


class TrainingNetwork(Construct):
    """A VPC with one NAT gateway, a public and a private subnet a zone, and S3's free gateway endpoint.

    Instances with several network interfaces get no public address, so nodes live in private subnets.

    :param availability_zones: zone names; empty: the region's first two, which needs no look-up at synth.
    :param flow_logs: rejected connections to a log group of one week.
    """

    def __init__(
        self, scope: Construct, id: str, *, availability_zones: Sequence[str] = (), flow_logs: bool = True
    ) -> None:
        super().__init__(scope, id)
        self.availability_zones: list[str] = list(availability_zones) or [Fn.select(n, Fn.get_azs()) for n in (0, 1)]
        self.vpc: ec2.Vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr("10.0.0.0/16"),
            availability_zones=self.availability_zones,
            nat_gateways=1,
            # The default group of a new VPC allows everything between its members; nothing of ours uses it.
            restrict_default_security_group=False,
            subnet_configuration=[
                ec2.SubnetConfiguration(
                    name="Public", subnet_type=ec2.SubnetType.PUBLIC, cidr_mask=24, map_public_ip_on_launch=False
                ),
                ec2.SubnetConfiguration(
                    name="Private",
                    subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS,
                    cidr_mask=_private_mask(len(self.availability_zones)),
                ),
            ],
        )
        # Checkpoints and datasets in S3 stay off the NAT gateway and its price per GB.
        self.vpc.add_gateway_endpoint("S3", service=ec2.GatewayVpcEndpointAwsService.S3)
        if flow_logs:
            group = logs.LogGroup(
                self,
                "FlowLogs",
                retention=logs.RetentionDays.ONE_WEEK,
                removal_policy=RemovalPolicy.DESTROY,
                encryption_key=log_key(self),
            )
            self.vpc.add_flow_log(
                "Rejected",
                destination=ec2.FlowLogDestination.to_cloud_watch_logs(group),
                traffic_type=ec2.FlowLogTrafficType.REJECT,
            )


def _private_mask(zones: int) -> int:
    """Prefix length of a zone's private subnet: as large as a /16 allows beside a public /24 a zone (us-east-1 has 6 zones)."""
    return 18 if zones <= 3 else 19 if zones <= 6 else 20


def existing_vpc(
    scope: Construct, id: str, *, vpc_id: str | None, existing_cluster: Mapping[str, Any]
) -> ec2.IVpc | None:
    """The VPC that settings name: an existing cluster's (by its attributes, no look-up) or ``vpc_id`` (looked up); else None.

    Raises SettingsError where a look-up is needed and the stack has no account or region.
    """
    if existing_cluster:
        return ec2.Vpc.from_vpc_attributes(
            scope,
            id,
            vpc_id=existing_cluster["vpc_id"],
            availability_zones=list(existing_cluster["availability_zones"]),
            private_subnet_ids=list(existing_cluster["private_subnet_ids"]),
        )
    if vpc_id is None:
        return None
    stack = Stack.of(scope)
    if Token.is_unresolved(stack.account) or Token.is_unresolved(stack.region):
        raise SettingsError(
            f"existing_vpc_id {vpc_id} is looked up in AWS, which needs an account and a region; set region, and run with the "
            f"credentials of that account (CDK_DEFAULT_ACCOUNT)"
        )
    vpc = ec2.Vpc.from_lookup(scope, id, vpc_id=vpc_id)
    if vpc.vpc_id == _LOOKUP_PENDING:
        # The CDK CLI synthesizes once with stand-in ids, looks up, and synthesizes again; only the stand-ins break these rules.
        reason = "stand-in of a look-up that the CDK CLI has yet to do"
        rules = [
            Acknowledgment(id=f"CloudFormation-Validate::{rule}", reason=reason) for rule in ("E1151", "E1154", "F3031")
        ]
        Validations.of(scope.node.root).acknowledge(*rules)
    return vpc
