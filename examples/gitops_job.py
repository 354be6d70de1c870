"""A training run as code: merged changes of arguments, code or size start a new run; the old one is stopped and deleted.

    cdk synth --app "python examples/gitops_job.py"

The Ray cluster exists for the run only; the GPU nodes stay until the stack goes (or Kueue lends them to the next run).
"""

from aws_cdk import App, CfnOutput, Duration, Stack
from existing_cluster import CPU_NODES, JOB, their_cluster  # the example beside this one

from eks_ray_train import CheckpointBucket, EfaGpuNodeGroup, RayTrainJob


def build(app: App) -> None:
    stack = Stack(app, "GitOpsJob")
    cluster = their_cluster(stack)
    nodes = EfaGpuNodeGroup(
        stack,
        "GpuNodes",
        cluster=cluster,
        instance_type="g6.12xlarge",
        node_count=2,
        subnets=cluster.vpc.private_subnets[:1],
    )
    job = RayTrainJob(
        stack,
        "Nightly",
        cluster=cluster,
        nodes=nodes,
        job_dir=JOB,
        name="nightly",
        arguments=["--model_id", "Qwen/Qwen2.5-0.5B", "--steps", "1000", "--run-name", "nightly"],
        storage=CheckpointBucket(stack, "Storage", prefix="nightly"),
        deadline=Duration.hours(8),
        retries=2,  # each resumes from the last checkpoint of --run-name
        queue_name="gpus",  # Kueue's LocalQueue in the namespace ray-train-jobs; leave out without Kueue
        head_node_selector=CPU_NODES,
    )
    CfnOutput(stack, "RayJobName", value=job.job_name)


if __name__ == "__main__":
    app = App()
    build(app)
    app.synth()
