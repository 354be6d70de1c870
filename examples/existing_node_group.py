"""RayTrainCluster alone, on GPU nodes, device plugins and a KubeRay operator that are there already.

    cdk synth --app "python examples/existing_node_group.py"

`WorkerGroup` says how the nodes are labelled and tainted; `instance_type` lets synth check the pod size against the node.
"""

from aws_cdk import App, Stack
from existing_cluster import CPU_NODES, JOB, their_cluster  # the example beside this one

from eks_ray_train import RayTrainCluster, WorkerGroup, get_instance_type
from eks_ray_train.manifests.ray_cluster import Taint


def build(app: App) -> None:
    stack = Stack(app, "ExistingNodeGroup")
    p4d = get_instance_type("p4d.24xlarge")
    workers = WorkerGroup(
        name="p4d",
        replicas=2,
        pod=p4d.worker_pod,  # one pod a node: all GPUs and EFA interfaces, CPU and memory that DaemonSets leave
        node_selector={"node.kubernetes.io/instance-type": p4d.name},
        taints=(Taint(key="dedicated", value="training"),),
        instance_type=p4d.name,
    )
    RayTrainCluster(
        stack, "Ray", cluster=their_cluster(stack), worker_groups=[workers], job_dir=JOB, head_node_selector=CPU_NODES
    )


if __name__ == "__main__":
    app = App()
    build(app)
    app.synth()
