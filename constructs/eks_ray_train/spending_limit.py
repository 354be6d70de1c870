"""SpendingLimit: at a given time the GPU node group goes to zero nodes, whatever else is broken by then."""

from __future__ import annotations

import json

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_scheduler as scheduler
from constructs import Construct

from .efa_gpu_node_group import EfaGpuNodeGroup


class SpendingLimit(Construct):
    """An EventBridge schedule that calls EKS directly: no function of ours has to work for the nodes to go.

    EKS drains the nodes that it scales away, so that workers get their pods' grace period to write a checkpoint. The group's
    maximum stays: ``eks-ray-train scale N`` brings nodes back and arms the limit again.

    :param limit_at: UTC, ``yyyy-mm-ddThh:mm:ss``, usually the token ``CapacityClaim.limit_at``.
    :param drain_at: the same call this much earlier, so that the drain is over by ``limit_at``; absent: no earlier call.
    """

    def __init__(
        self, scope: Construct, id: str, *, nodes: EfaGpuNodeGroup, limit_at: str, drain_at: str | None = None
    ) -> None:
        super().__init__(scope, id)
        stack = Stack.of(self)
        self.limit_at = limit_at
        self._nodes = nodes
        role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal(
                "scheduler.amazonaws.com", conditions={"StringEquals": {"aws:SourceAccount": stack.account}}
            ),
        )
        # Only the schedules' hour needs it, hours from now: they do not wait for it.
        iam.Policy(
            self,
            "Policy",
            roles=[role],
            statements=[iam.PolicyStatement(actions=["eks:UpdateNodegroupConfig"], resources=[nodes.node_group_arn])],
        )
        self.schedule = self._schedule("Schedule", "scales the GPU nodes to zero", limit_at, role)
        if drain_at is not None:
            self._schedule("Drain", "drains the GPU nodes", drain_at, role)

    def _schedule(self, id: str, what: str, time: str, role: iam.IRole) -> scheduler.CfnSchedule:
        return scheduler.CfnSchedule(
            self,
            id,
            description=f"Spending limit: {what}",
            flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
            schedule_expression=f"at({time})",
            schedule_expression_timezone="UTC",
            target=scheduler.CfnSchedule.TargetProperty(
                # https://docs.aws.amazon.com/scheduler/latest/UserGuide/managing-targets-universal.html
                arn=f"arn:{Stack.of(self).partition}:scheduler:::aws-sdk:eks:updateNodegroupConfig",
                role_arn=role.role_arn,
                input=json.dumps(
                    {
                        "ClusterName": self._nodes.cluster.cluster_name,
                        "NodegroupName": self._nodes.node_group_name,
                        "ScalingConfig": {"MinSize": 0, "DesiredSize": 0},
                    }
                ),
                retry_policy=scheduler.CfnSchedule.RetryPolicyProperty(
                    maximum_retry_attempts=185, maximum_event_age_in_seconds=86_400
                ),
            ),
        )
