"""The Lambda function behind CapacityProbe and CapacityClaim: its code, its permissions, its way to CloudFormation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aws_cdk import Aws, CustomResource, Duration, IgnoreMode, RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import custom_resources as cr
from constructs import Construct

from .capacity.model import TAG_STACK
from .suppressions import log_key, suppress


class CapacityFunction(Construct):
    """The function with its log group, its permissions and CDK's provider framework in front of it."""

    def __init__(self, scope: Construct, *, instance_type: str, quota_code: str, spends: bool) -> None:
        super().__init__(scope, "Handler")
        self._owner = scope
        log_group = logs.LogGroup(
            self,
            "Logs",
            retention=logs.RetentionDays.ONE_MONTH,
            removal_policy=RemovalPolicy.DESTROY,
            encryption_key=log_key(self),
        )
        # Roles of our own: AWS's managed policy for functions lets them write, and make, any log group.
        role, framework_role = (
            iam.Role(self, id, assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
            for id in ("Role", "FrameworkRole")
        )
        self.function = lambda_.Function(
            self,
            "Function",
            description="Answers where GPU capacity is, and claims it",
            runtime=lambda_.Runtime.PYTHON_3_14,
            handler="capacity.handler.on_event",
            code=lambda_.Code.from_asset(
                str(Path(__file__).parent), exclude=["*", "!capacity", "!capacity/*.py"], ignore_mode=IgnoreMode.GIT
            ),
            memory_size=256,
            timeout=Duration.minutes(10),
            log_group=log_group,
            role=role,
        )
        for statement in _statements(Stack.of(self), instance_type, quota_code, spends=spends):
            self.function.add_to_role_policy(statement)
        self._provider = cr.Provider(
            self,
            "Provider",
            on_event_handler=self.function,
            log_group=log_group,
            framework_on_event_role=framework_role.without_policy_updates(),
        )
        # Exactly this function and this log group: the CDK's own grant is for any version of the function.
        write = iam.PolicyStatement(
            actions=["logs:CreateLogStream", "logs:PutLogEvents"], resources=[log_group.log_group_arn]
        )
        call = iam.PolicyStatement(
            actions=["lambda:InvokeFunction", "lambda:GetFunction"], resources=[self.function.function_arn]
        )
        self._may_write = iam.Policy(self, "WriteLogs", roles=[role, framework_role], statements=[write])
        may_call = iam.Policy(self, "CallFunction", roles=[framework_role], statements=[call])
        framework = self._provider.node.find_child("framework-onEvent")
        # Not the custom resources alone: a permission takes some seconds until it is known everywhere.
        framework.node.add_dependency(may_call)
        suppress(self.function, "capacity-function")
        suppress(role, "capacity-function")
        suppress(framework, "capacity-framework")

    def resource(self, id: str, resource_type: str, properties: dict[str, Any]) -> CustomResource:
        """A custom resource beside the handler; CloudFormation gives up waiting when the framework would."""
        made = CustomResource(
            self._owner,
            id,
            resource_type=resource_type,
            service_token=self._provider.service_token,
            service_timeout=Duration.minutes(16),
            properties=properties,
        )
        made.node.add_dependency(self._may_write)
        return made


def _statements(stack: Stack, instance_type: str, quota_code: str, *, spends: bool) -> list[iam.PolicyStatement]:
    """As narrow as EC2 allows: Describe calls know no resources; what costs money is bound to type, terms and our tag.

    https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
    """
    here = {"StringEquals": {"ec2:Region": stack.region}}
    ours = {"StringEquals": {"ec2:Region": stack.region, f"aws:ResourceTag/{TAG_STACK}": Aws.STACK_ID}}
    reservations = stack.format_arn(service="ec2", resource="capacity-reservation", resource_name="*")
    describes = ("AvailabilityZones", "InstanceTypeOfferings", "InstanceTypes", "Instances", "CapacityReservations")
    quota = stack.format_arn(service="servicequotas", resource="ec2", resource_name=quota_code)

    def allow(actions: Sequence[str], resource: str, conditions: dict[str, Any] | None = None) -> iam.PolicyStatement:
        return iam.PolicyStatement(actions=list(actions), resources=[resource], conditions=conditions or {})

    statements = [
        allow([f"ec2:Describe{what}" for what in describes], "*", here),
        allow(["servicequotas:GetServiceQuota"], quota),
        allow(["servicequotas:GetAWSDefaultServiceQuota"], "*"),
        allow(["cloudformation:DescribeStacks"], Aws.STACK_ID),
        # Always: a hold is deleted after the update that stopped using it has narrowed this policy.
        allow(["ec2:CancelCapacityReservation"], reservations, ours),
    ]
    if spends:
        terms = {
            "ec2:Region": stack.region,
            "ec2:InstanceType": instance_type,
            "ec2:InstanceMatchCriteria": "targeted",
            "ec2:EndDateType": "limited",
            f"aws:RequestTag/{TAG_STACK}": Aws.STACK_ID,
        }
        statements += [
            allow(["ec2:CreateCapacityReservation"], reservations, {"StringEquals": terms}),
            allow(
                ["ec2:CreateTags"],
                reservations,
                {"StringEquals": {"ec2:CreateAction": "CreateCapacityReservation"}},
            ),
            allow(["ec2:ModifyCapacityReservation"], reservations, ours),
        ]
    return statements
