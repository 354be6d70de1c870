"""One Ray cluster over two node groups: one worker group each, whose pods stay on their own nodes.

    cdk synth --app "python examples/worker_groups.py"

Ranks of one run should have equal GPUs; a second group is for data preparation, evaluation, or a smaller test type.
"""

from aws_cdk import App, Stack
from existing_cluster import CPU_NODES, JOB, their_cluster  # the example beside this one

from eks_ray_train import DevicePlugins, EfaGpuNodeGroup, KubeRayOperator, RayTrainCluster, Taint


def build(app: App) -> None:
    stack = Stack(app, "WorkerGroups")
    cluster = their_cluster(stack)
    subnet = cluster.vpc.private_subnets[:1]
    DevicePlugins(stack, "DevicePlugins", cluster=cluster)
    operator = KubeRayOperator(stack, "KubeRay", cluster=cluster, node_selector=CPU_NODES)
    train = EfaGpuNodeGroup(
        stack, "Train", cluster=cluster, instance_type="p5.48xlarge", node_count=2, subnets=subnet
    )
    evaluate = EfaGpuNodeGroup(
        stack,
        "Evaluate",
        cluster=cluster,
        instance_type="g6.12xlarge",
        node_count=1,
        subnets=subnet,
        taints=[Taint(key="team", value="evaluation")],  # device plugins and workers tolerate it
    )
    RayTrainCluster(
        stack,
        "Ray",
        cluster=cluster,
        operator=operator,
        nodes=[train, evaluate],
        job_dir=JOB,
        head_node_selector=CPU_NODES,
    )


if __name__ == "__main__":
    app = App()
    build(app)
    app.synth()
