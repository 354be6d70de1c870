"""EFA GPU nodes and a Ray cluster on an EKS cluster that another team runs, by its attributes: no look-up, no control plane.

    cdk synth --app "python examples/existing_cluster.py"

`kubectl_role_arn`: a role that trusts Lambda, has AWSLambdaVPCAccessExecutionRole and administers the cluster through an
access entry. The cluster needs the Pod Identity agent, and CPU nodes for the Ray head: here they carry the label pool=cpu.
"""

from pathlib import Path

from aws_cdk import App, Stack
from aws_cdk import aws_ec2 as ec2

from eks_ray_train import DevicePlugins, EfaGpuNodeGroup, KubeRayOperator, RayTrainCluster, existing_cluster
from eks_ray_train.cluster_type import AnyCluster

JOB = Path(__file__).resolve().parent.parent / "job"
CPU_NODES = {"pool": "cpu"}


def their_cluster(stack: Stack) -> AnyCluster:
    vpc = ec2.Vpc.from_vpc_attributes(
        stack,
        "Vpc",
        vpc_id="vpc-0123456789abcdef0",
        availability_zones=["us-east-2a", "us-east-2b"],
        private_subnet_ids=["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
    )
    attributes = {
        "name": "platform",
        "security_group_id": "sg-0123456789abcdef0",  # EKS made it: describe-cluster says clusterSecurityGroupId
        "kubectl_role_arn": "arn:aws:iam::123456789012:role/platform-deploy",
    }
    return existing_cluster(stack, "Eks", vpc=vpc, attributes=attributes, kubectl_minor=36)


def build(app: App) -> None:
    stack = Stack(app, "ExistingCluster")
    cluster = their_cluster(stack)
    DevicePlugins(stack, "DevicePlugins", cluster=cluster)  # leave out what the cluster has already
    operator = KubeRayOperator(stack, "KubeRay", cluster=cluster, node_selector=CPU_NODES)
    nodes = EfaGpuNodeGroup(
        stack, "GpuNodes", cluster=cluster, instance_type="p5.48xlarge", node_count=4,
        subnets=cluster.vpc.private_subnets[:1], capacity="reservation", capacity_reservation_id="cr-0123456789abcdef0",
    )  # fmt: skip
    RayTrainCluster(
        stack, "Ray", cluster=cluster, operator=operator, nodes=nodes, job_dir=JOB, head_node_selector=CPU_NODES
    )


if __name__ == "__main__":
    app = App()
    build(app)
    app.synth()
