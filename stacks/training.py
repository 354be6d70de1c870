"""TrainingStack: capacity, GPU nodes and the Ray cluster; a launch that fails rolls back nothing else."""

from __future__ import annotations

from pathlib import Path

from aws_cdk import CrossStackReferences, Environment, ReferenceStrength, Stack
from constructs import Construct

from eks_ray_train import (
    CapacityClaim,
    EfaGpuNodeGroup,
    RayTrainCluster,
    RunOutputs,
    Settings,
    SpendingLimit,
    get_instance_type,
)
from eks_ray_train.arm_key import arm_key
from eks_ray_train.storage import make_storage

from .eks import EksStack


class TrainingStack(Stack):
    """CapacityClaim -> EfaGpuNodeGroup -> RayTrainCluster, with storage, spending limit and what a user needs to know."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        settings: Settings,
        eks: EksStack,
        job_dir: Path,
        env: Environment,
    ) -> None:
        super().__init__(scope, id, env=env, description="eks-ray-train: GPU nodes and Ray cluster")
        CrossStackReferences.of(self).consume(ReferenceStrength.WEAK)
        gpu = get_instance_type(settings.gpu_instance_type, accept_unverified_layout=settings.accept_unverified_layout)
        claim = CapacityClaim(
            self,
            "Capacity",
            instance_type=gpu.name,
            vcpus_per_node=gpu.vcpus,
            quota_code=gpu.quota_code,
            node_count=settings.gpu_node_count,
            subnets=eks.cluster.vpc.private_subnets,
            capacity=settings.capacity,
            reservation_id=settings.capacity_reservation_id,
            preferred_zone=settings.gpu_zone,
            max_hours=settings.max_hours,
            arm_key=arm_key(self),
        )
        self.nodes = EfaGpuNodeGroup(
            self,
            "GpuNodes",
            cluster=eks.cluster,
            instance_type=gpu.name,
            node_count=settings.gpu_node_count,
            desired_count=claim.desired_nodes,
            subnet_id=claim.subnet_id,
            capacity=settings.capacity,
            capacity_reservation_id=claim.reservation_id or None,
            ami_family=settings.ami_family,
            placement_group=settings.placement_group,
            node_repair=settings.node_repair,
            role=eks.system_nodes.role,
            accept_unverified_layout=settings.accept_unverified_layout,
        )
        storage = make_storage(
            self,
            "Storage",
            kind=settings.storage,
            keep=settings.keep_storage,
            name=settings.ray_cluster_name,
            cluster=eks.cluster,
            subnet_id=claim.subnet_id,
        )
        if claim.has_limit:
            SpendingLimit(self, "SpendingLimit", nodes=self.nodes, limit_at=claim.limit_at, drain_at=claim.drain_at)
        self.ray = RayTrainCluster(
            self,
            "Ray",
            cluster=eks.cluster,
            operator=eks.operator,
            nodes=self.nodes,
            job_dir=job_dir,
            name=settings.ray_cluster_name,
            namespace=settings.namespace,
            image=settings.dlc_image,
            ray_version=settings.ray_version,
            storage=storage,
            data_buckets=settings.data_buckets,
            hf_token_secret_arn=settings.hf_token_secret_arn,
            container_mirror=settings.container_mirror,
            queue_name=settings.queue_name,
        )
        RunOutputs(self, "Outputs", ray=self.ray, nodes=self.nodes, claim=claim, storage=storage)
