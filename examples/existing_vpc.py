"""A training cluster in a VPC that another team made. Nothing of the network is created or changed.

    cdk synth --app "python examples/existing_vpc.py"

The VPC needs private subnets with a way out (NAT, or endpoints for EKS, ECR, S3, STS and CloudWatch Logs) in two zones.
"""

from pathlib import Path

from aws_cdk import App, Stack
from aws_cdk import aws_ec2 as ec2

from eks_ray_train import (
    ClusterAddons,
    DevicePlugins,
    EfaGpuNodeGroup,
    KubeRayOperator,
    RayTrainCluster,
    SystemNodeGroup,
    TrainingCluster,
)

JOB = Path(__file__).resolve().parent.parent / "job"


def build(app: App) -> None:
    stack = Stack(app, "ExistingVpc")
    # Or, with credentials at synth: ec2.Vpc.from_lookup(stack, "Vpc", vpc_id="vpc-…")
    vpc = ec2.Vpc.from_vpc_attributes(
        stack,
        "Vpc",
        vpc_id="vpc-0123456789abcdef0",
        availability_zones=["us-east-2a", "us-east-2b"],
        private_subnet_ids=["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
    )
    cluster = TrainingCluster(stack, "Eks", vpc=vpc, cluster_name="training").cluster
    system_nodes = SystemNodeGroup(stack, "SystemNodes", cluster=cluster, subnets=vpc.private_subnets)
    ClusterAddons(stack, "Addons", cluster=cluster, system_nodes=system_nodes.ready)
    DevicePlugins(stack, "DevicePlugins", cluster=cluster)
    operator = KubeRayOperator(stack, "KubeRay", cluster=cluster, depends_on=system_nodes.ready)

    in_zone_b = vpc.private_subnets[1:2]  # where your capacity is
    nodes = EfaGpuNodeGroup(
        stack, "GpuNodes", cluster=cluster, instance_type="g6e.48xlarge", node_count=2, subnets=in_zone_b
    )
    RayTrainCluster(stack, "Ray", cluster=cluster, operator=operator, nodes=nodes, job_dir=JOB)


if __name__ == "__main__":
    app = App()
    build(app)
    app.synth()
