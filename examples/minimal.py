"""The constructs in an app of your own: your VPC, your cluster, two EFA GPU nodes and a Ray cluster on them.

    cdk synth --app "python examples/minimal.py"

What every cluster needs once stands in the middle: CPU nodes for the Ray head, add-ons, device plugins, the operator.
"""

from pathlib import Path

from aws_cdk import App, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks

from eks_ray_train import (
    ClusterAddons,
    DevicePlugins,
    EfaGpuNodeGroup,
    KubeRayOperator,
    RayTrainCluster,
    SystemNodeGroup,
    kubectl_layer,
)

JOB = Path(__file__).resolve().parent.parent / "job"  # a folder with train.py at its top


def build(app: App) -> None:
    stack = Stack(app, "Minimal")
    cluster = eks.Cluster(
        stack,
        "Cluster",
        version=eks.KubernetesVersion.V1_36,
        vpc=ec2.Vpc(stack, "Vpc", nat_gateways=1),
        default_capacity_type=eks.DefaultCapacityType.NODEGROUP,
        default_capacity=0,
        kubectl_provider_options=eks.KubectlProviderOptions(kubectl_layer=kubectl_layer(stack, "Kubectl", minor=36)),
    )
    private = cluster.vpc.private_subnets

    system_nodes = SystemNodeGroup(stack, "SystemNodes", cluster=cluster, subnets=private)
    ClusterAddons(stack, "Addons", cluster=cluster, system_nodes=system_nodes.ready)
    DevicePlugins(stack, "DevicePlugins", cluster=cluster)
    operator = KubeRayOperator(stack, "KubeRay", cluster=cluster, depends_on=system_nodes.ready)

    nodes = EfaGpuNodeGroup(
        stack, "GpuNodes", cluster=cluster, instance_type="g6.12xlarge", node_count=2, subnets=private[:1]
    )
    RayTrainCluster(stack, "Ray", cluster=cluster, operator=operator, nodes=nodes, job_dir=JOB)


if __name__ == "__main__":
    app = App()
    build(app)
    app.synth()
