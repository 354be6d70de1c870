"""GPU nodes in a Capacity Block: claimed, launched into, and at zero before the block ends.

    cdk synth --app "python examples/capacity_block.py"

While the block has not started, the claim answers zero nodes and the deploy is green all the same; the output CapacityNote
says when to deploy again. Before the end the nodes are drained, so that the run writes a checkpoint.
"""

from aws_cdk import App, Stack
from existing_cluster import CPU_NODES, JOB, their_cluster  # the example beside this one

from eks_ray_train import CapacityClaim, EfaGpuNodeGroup, RayTrainCluster, RunOutputs, SpendingLimit, get_instance_type

BLOCK = "cr-0123456789abcdef0"  # eks-ray-train capacity check ID says whether it fits


def build(app: App) -> None:
    stack = Stack(app, "CapacityBlock")
    cluster = their_cluster(stack)
    p5en = get_instance_type("p5en.48xlarge")
    claim = CapacityClaim(
        stack,
        "Capacity",
        instance_type=p5en.name,
        vcpus_per_node=p5en.vcpus,
        quota_code=p5en.quota_code,
        node_count=2,
        subnets=cluster.vpc.private_subnets,
        capacity="block",
        reservation_id=BLOCK,
    )
    nodes = EfaGpuNodeGroup(
        stack,
        "GpuNodes",
        cluster=cluster,
        instance_type=p5en.name,
        node_count=2,
        desired_count=claim.desired_nodes,
        subnet_id=claim.subnet_id,
        capacity="block",
        capacity_reservation_id=claim.reservation_id,
    )
    SpendingLimit(stack, "Limit", nodes=nodes, limit_at=claim.limit_at, drain_at=claim.drain_at)
    ray = RayTrainCluster(stack, "Ray", cluster=cluster, nodes=nodes, job_dir=JOB, head_node_selector=CPU_NODES)
    RunOutputs(stack, "Outputs", ray=ray, nodes=nodes, claim=claim)


if __name__ == "__main__":
    app = App()
    build(app)
    app.synth()
