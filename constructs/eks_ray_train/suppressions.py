"""The findings of security scanners (cdk-nag's AwsSolutions, checkov) that stay, each on one resource with its reason.

A finding is fixed where that makes the deployment safer; this is the whole list of the others. Both tools find it in the
product itself: cdk-nag as an acknowledgement in the construct tree, checkov as metadata in the template.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from aws_cdk import Acknowledgment, CfnResource, Stack, Validations
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from constructs import IConstruct


@dataclass(frozen=True, kw_only=True)
class Suppression:
    """``nag`` and ``checkov``: ids of the rules that are suppressed on this one resource (with its role, where it is a function)."""

    nag: tuple[str, ...] = ()
    checkov: tuple[str, ...] = ()
    reason: str


# CKV_AWS_115: reserving concurrency fails in accounts whose whole quota is ten. CKV_AWS_116: CloudFormation waits for the answer
# and reports a failure, nothing is lost that a dead letter queue would keep. CKV_AWS_117: in the VPC it would wait for the VPC.
_FUNCTION = ("CKV_AWS_115", "CKV_AWS_116")
_OUTSIDE = ("CKV_AWS_117",)
_CDK_FUNCTION = (*_FUNCTION, "CKV_AWS_173", "CKV_AWS_158")

SUPPRESSIONS: dict[str, Suppression] = {
    "capacity-function": Suppression(
        nag=("AwsSolutions-IAM5",),
        checkov=(*_FUNCTION, *_OUTSIDE),
        reason="EC2's Describe calls know no resources and a reservation has no id before it exists: bound by region, type, terms "
        "and tag instead; runs before the VPC exists, is called by CloudFormation only, and writes its own log",
    ),
    "capacity-framework": Suppression(
        checkov=(*_FUNCTION, *_OUTSIDE, "CKV_AWS_173"),
        reason="CDK's provider framework, called by CloudFormation only: it may call the capacity function and write its log; its "
        "environment holds that function's ARN, no secret",
    ),
    "kubectl-handler": Suppression(
        nag=("AwsSolutions-IAM4", "AwsSolutions-L1"),
        checkov=_CDK_FUNCTION,
        reason="CDK's kubectl handler: runtime, role and log group are chosen by aws-cdk-lib; runs in the private subnets; its "
        "environment holds no secret",
    ),
    "kubectl-framework": Suppression(
        nag=("AwsSolutions-IAM4", "AwsSolutions-IAM5"),
        checkov=_CDK_FUNCTION,
        reason="CDK's provider framework of the kubectl handler: it may call that function (any version) and write its log",
    ),
    "cluster-role": Suppression(
        nag=("AwsSolutions-IAM4",),
        reason="Amazon EKS requires AmazonEKSClusterPolicy, which AWS keeps in step with the service",
    ),
    "node-role": Suppression(
        nag=("AwsSolutions-IAM4", "AwsSolutions-IAM5"),
        reason="the policies that Amazon EKS documents for node roles, which AWS keeps in step with kubelet, CNI, ECR and SSM; with "
        "container_mirror the repositories of that cache, which do not exist before the first pull",
    ),
    "addon-role": Suppression(
        nag=("AwsSolutions-IAM4",),
        reason="the policy that AWS documents for this add-on's own service account and keeps in step with its versions",
    ),
    "job-role": Suppression(
        nag=("AwsSolutions-IAM5",),
        reason="a run chooses its objects' names: the wildcard is everything below this training cluster's own prefix of one bucket "
        "(and, read only, below the prefixes that data_buckets names)",
    ),
    "bucket-cleaner": Suppression(
        checkov=(*_FUNCTION, *_OUTSIDE),
        reason="CDK's function that empties a bucket before its deletion (keep_storage false); one call in a stack's life",
    ),
    "checkpoint-bucket": Suppression(
        nag=("AwsSolutions-S1",),
        checkov=("CKV_AWS_18", "CKV_AWS_21"),
        reason="checkpoints are written once and pruned by the job: versions would keep, and bill, every pruned one; access is "
        "logged by CloudTrail data events where an account wants it, without a second bucket a stack",
    ),
}  # fmt: skip

# The kind of resource that a checkov rule looks at.
_CHECKOV_TYPES = {
    "CKV_AWS_115": "AWS::Lambda::Function",
    "CKV_AWS_116": "AWS::Lambda::Function",
    "CKV_AWS_117": "AWS::Lambda::Function",
    "CKV_AWS_173": "AWS::Lambda::Function",
    "CKV_AWS_158": "AWS::Logs::LogGroup",
    "CKV_AWS_18": "AWS::S3::Bucket",
    "CKV_AWS_21": "AWS::S3::Bucket",
}


def suppress(construct: IConstruct, name: str) -> None:
    """Suppresses what ``SUPPRESSIONS[name]`` says on ``construct`` and on the role that it brings along.

    Call it when the construct's permissions are complete: cdk-nag wants each wildcard and each managed policy named.
    """
    entry = SUPPRESSIONS[name]
    for child in construct.node.find_all():
        if not isinstance(child, CfnResource):
            continue
        rules = [finding for rule in entry.nag for finding in _findings(child, rule)]
        if rules:
            Validations.of(child).acknowledge(
                *[Acknowledgment(id=f"AwsSolutions::{finding}", reason=entry.reason) for finding in rules]
            )
        skipped = [rule for rule in entry.checkov if _CHECKOV_TYPES[rule] == child.cfn_resource_type]
        if skipped:
            child.add_metadata("checkov", {"skip": [{"id": rule, "comment": entry.reason} for rule in skipped]})


def suppress_kubectl_provider(provider: IConstruct) -> None:
    """The same for the two functions of CDK's kubectl provider."""
    suppress(provider.node.find_child("Handler"), "kubectl-handler")
    suppress(provider.node.find_child("Provider").node.find_child("framework-onEvent"), "kubectl-framework")


def log_key(scope: IConstruct) -> kms.IKey:
    """The one key of ``scope``'s stack with which CloudWatch Logs encrypts this library's log groups."""
    stack = Stack.of(scope)
    found = stack.node.try_find_child("LogsKey")
    if isinstance(found, kms.Key):
        return found
    from aws_cdk import RemovalPolicy

    key = kms.Key(
        stack,
        "LogsKey",
        description=f"Log groups of the stack {stack.stack_name}",
        enable_key_rotation=True,
        removal_policy=RemovalPolicy.DESTROY,
    )
    allow_logs(key)
    return key


def allow_logs(key: kms.Key) -> None:
    """Lets CloudWatch Logs use ``key`` for log groups of this account and region.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/encrypt-log-data-kms.html
    """
    stack = Stack.of(key)
    groups = stack.format_arn(service="logs", resource="*")
    key.add_to_resource_policy(
        iam.PolicyStatement(
            principals=[iam.ServicePrincipal(f"logs.{stack.region}.amazonaws.com")],
            actions=["kms:Encrypt*", "kms:Decrypt*", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:Describe*"],
            resources=["*"],
            conditions={"ArnLike": {"kms:EncryptionContext:aws:logs:arn": groups}},
        )
    )


def _findings(resource: CfnResource, rule: str) -> list[str]:
    """The rule's findings on ``resource`` as cdk-nag 3 names them, or none where it looks at another kind."""
    stack = Stack.of(resource)
    if rule == "AwsSolutions-IAM4":
        if not isinstance(resource, iam.CfnRole):
            return []
        policies = [_flat(arn) for arn in stack.resolve(resource.managed_policy_arns) or []]
        return [f"{rule}[Policy::{policy}]" for policy in policies if ":iam::aws:" in policy]
    if rule == "AwsSolutions-IAM5":
        if not isinstance(resource, iam.CfnPolicy):
            return []
        found = []
        for statement in stack.resolve(resource.policy_document)["Statement"]:
            for target in _listed(statement["Resource"]):
                if "*" in _flat(target):
                    found.append(f"{rule}[Resource::{_flat(target)}]")
        return list(dict.fromkeys(found))
    kinds: dict[str, Any] = {"AwsSolutions-L1": lambda_.CfnFunction, "AwsSolutions-S1": s3.CfnBucket}
    return [rule] if isinstance(resource, kinds[rule]) else []


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _flat(value: Any) -> str:
    """A template value as cdk-nag writes it into the id of a finding."""
    if isinstance(value, str):
        return value.replace("${", "<").replace("}", ">")
    if isinstance(value, dict) and len(value) == 1:
        ((function, argument),) = value.items()
        if function == "Fn::Join":
            return str(argument[0]).join(_flat(part) for part in argument[1])
        if function == "Fn::GetAtt":
            return f"<{argument[0]}.{argument[1]}>"
        if function == "Ref":
            return f"<{argument}>"
    return json.dumps(value, separators=(",", ":"))


__all__ = ["SUPPRESSIONS", "Suppression", "allow_logs", "log_key", "suppress", "suppress_kubectl_provider"]
