"""EfaSecurityGroup: the group on every EFA interface, with self rules in both directions that reach the template."""

from __future__ import annotations

from aws_cdk import CfnResource
from aws_cdk import aws_ec2 as ec2
from constructs import Construct


class EfaSecurityGroup(Construct):
    """All traffic from and to the group itself: EFA's own traffic is matched by group membership, never by address.

    The rules are L1 resources, because ``SecurityGroup.add_egress_rule`` is dropped (with a warning at best) on a group that
    allows all outbound traffic, and silently on an imported one.
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html#efa-start-security

    :param security_group: own or imported group; default: a new one that also allows all outbound traffic.
    :param manage_rules: false where an imported group has both self rules already (a second copy of a rule is an error).
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        vpc: ec2.IVpc,
        security_group: ec2.ISecurityGroup | None = None,
        manage_rules: bool = True,
    ) -> None:
        super().__init__(scope, id)
        self.security_group: ec2.ISecurityGroup = security_group or ec2.SecurityGroup(
            self, "SecurityGroup", vpc=vpc, description="EFA between the GPU nodes of one training cluster"
        )
        self.security_group_id: str = self.security_group.security_group_id
        self.rules: list[CfnResource] = []
        if security_group is None or manage_rules:
            self.rules = [
                ec2.CfnSecurityGroupIngress(
                    self,
                    "FromSelf",
                    group_id=self.security_group_id,
                    source_security_group_id=self.security_group_id,
                    ip_protocol="-1",
                    description="EFA from the same group",
                ),
                ec2.CfnSecurityGroupEgress(
                    self,
                    "ToSelf",
                    group_id=self.security_group_id,
                    destination_security_group_id=self.security_group_id,
                    ip_protocol="-1",
                    description="EFA to the same group",
                ),
            ]
