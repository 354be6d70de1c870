"""RunOutputs: what a user needs after the deploy: where, how much an hour, until when, and the commands to type."""

from __future__ import annotations

from aws_cdk import CfnOutput
from constructs import Construct

from .capacity_probe import CapacityClaim
from .efa_gpu_node_group import EfaGpuNodeGroup
from .ray_train_cluster import RayTrainCluster
from .storage import Storage


class RunOutputs(Construct):
    """Stack outputs with stable names, which the command line reads too."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        ray: RayTrainCluster,
        nodes: EfaGpuNodeGroup,
        claim: CapacityClaim | None = None,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(scope, id)
        each = nodes.instance.usd_per_hour
        price = "unknown" if each is None else f"{each * nodes.node_count:.2f}"
        self._put("ClusterName", "EKS cluster", nodes.cluster.cluster_name)
        self._put("Namespace", "Namespace of the Ray cluster", ray.spec.namespace)
        self._put("RayClusterName", "RayCluster", ray.spec.name)
        self._put("NodeGroupName", "EKS node group of the GPU nodes", nodes.node_group_name)
        self._put(
            "GpuNodesUsdPerHour",
            f"{nodes.node_count} x {nodes.instance.name}, on demand, us-east-1 list price; without cluster, NAT and disks",
            price,
        )
        self._put("SubmitCommand", "Starts a run", "eks-ray-train submit -- --steps 10")
        self._put("ScaleDownCommand", "Stops paying for the GPU nodes", "eks-ray-train scale 0")
        if claim is not None:
            self._put("GpuZone", "Availability zone of the GPU nodes", claim.zone)
            self._put("CapacityNote", "What the capacity claim found", claim.note)
            if claim.has_limit:
                self._put("SpendingLimitAt", "UTC; then the GPU nodes go to zero", claim.limit_at)
        if storage is not None:
            self._put("StoragePath", "Default --storage-path of a run", storage.storage_path)

    def _put(self, name: str, description: str, value: str) -> None:
        CfnOutput(self, name, description=description, value=value).override_logical_id(name)
