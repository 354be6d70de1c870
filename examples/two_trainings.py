"""Two training stacks on one cluster: each with GPU nodes, namespace, bucket and role of its own, deployed and destroyed alone.

    cdk synth --app "python examples/two_trainings.py"

What a cluster needs once (device plugins, operator) is in the cluster's stack and handed on.
"""

from pathlib import Path

from aws_cdk import App, Stack

from eks_ray_train import (
    CheckpointBucket,
    ClusterAddons,
    DevicePlugins,
    EfaGpuNodeGroup,
    KubeRayOperator,
    RayTrainCluster,
    SystemNodeGroup,
    TrainingCluster,
    TrainingNetwork,
)

JOB = Path(__file__).resolve().parent.parent / "job"


def build(app: App) -> None:
    shared = Stack(app, "SharedCluster")
    vpc = TrainingNetwork(shared, "Network").vpc
    cluster = TrainingCluster(shared, "Eks", vpc=vpc, cluster_name="shared").cluster
    system_nodes = SystemNodeGroup(
        shared, "SystemNodes", cluster=cluster, subnets=vpc.private_subnets, heads=2
    )  # one Ray head a training
    ClusterAddons(shared, "Addons", cluster=cluster, system_nodes=system_nodes.ready)
    DevicePlugins(shared, "DevicePlugins", cluster=cluster)
    operator = KubeRayOperator(shared, "KubeRay", cluster=cluster, depends_on=system_nodes.ready)

    for name, instance_type in {"vision": "g6.12xlarge", "speech": "g6e.24xlarge"}.items():
        stack = Stack(app, f"Training-{name}")
        nodes = EfaGpuNodeGroup(
            stack, "GpuNodes", cluster=cluster, instance_type=instance_type, node_count=2, subnets=vpc.private_subnets[:1]
        )
        bucket = CheckpointBucket(stack, "Storage", prefix=name)
        RayTrainCluster(
            stack, "Ray", cluster=cluster, operator=operator, nodes=nodes, storage=bucket, job_dir=JOB, name=name, namespace=name
        )  # fmt: skip


if __name__ == "__main__":
    app = App()
    build(app)
    app.synth()
