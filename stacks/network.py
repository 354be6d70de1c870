"""NetworkStack: the VPC, and an early answer whether the GPUs can be had at all."""

from __future__ import annotations

from aws_cdk import Annotations, CrossStackReferences, Environment, ReferenceStrength, Stack
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from eks_ray_train import CapacityProbe, Settings, TrainingNetwork, get_instance_type
from eks_ray_train.network import existing_vpc


class NetworkStack(Stack):
    """VPC (own, or an existing one) and CapacityProbe, which waits for nothing else and whose attributes nobody reads."""

    def __init__(self, scope: Construct, id: str, *, settings: Settings, env: Environment) -> None:
        super().__init__(scope, id, env=env, description="eks-ray-train: network and early capacity check")
        CrossStackReferences.of(self).consume(ReferenceStrength.WEAK)
        for number, warning in enumerate(settings.warnings()):
            Annotations.of(self).add_warning_v2(f"eks-ray-train:setting-{number}", warning)
        self.vpc: ec2.IVpc = (
            existing_vpc(
                self, "ExistingVpc", vpc_id=settings.existing_vpc_id, existing_cluster=settings.existing_cluster
            )
            or TrainingNetwork(self, "Network", availability_zones=settings.availability_zones).vpc
        )
        gpu = get_instance_type(settings.gpu_instance_type, accept_unverified_layout=settings.accept_unverified_layout)
        CapacityProbe(
            self,
            "CapacityProbe",
            instance_type=gpu.name,
            vcpus_per_node=gpu.vcpus,
            quota_code=gpu.quota_code,
            node_count=settings.gpu_node_count,
            zones=[settings.gpu_zone] if settings.gpu_zone else self.vpc.availability_zones,
            reservation_id=settings.capacity_reservation_id,
            capacity=settings.capacity,
        )
