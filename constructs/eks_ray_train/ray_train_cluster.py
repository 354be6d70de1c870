"""RayTrainCluster: namespace, job files, network policy and RayCluster on GPU nodes, in an order that deletes cleanly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from constructs import Construct, IDependable

from .cluster_type import AnyCluster
from .efa_gpu_node_group import EfaGpuNodeGroup
from .kuberay_operator import KubeRayOperator
from .manifests.busy_policy import busy_policy
from .manifests.names import QUEUE_LABEL
from .manifests.ray_cluster import WorkerGroup, ray_cluster
from .ray_workload import RayWorkload, workload_spec
from .storage import Storage
from .versions import DLC_IMAGE, RAY_VERSION


class RayTrainCluster(RayWorkload):
    """A Ray cluster for training: a head on the system nodes and one worker a GPU node, locked down, with the job's files.

    Raises SettingsError before any resource exists for a name KubeRay would ignore, a job folder too large, no workers, or a
    namespace or name that another workload on ``cluster`` has.

    :param nodes: node groups of this library; each becomes one worker group, and is deleted after the RayCluster.
    :param worker_groups: worker groups on nodes that this library did not make (labels and taints are theirs to state).
    :param job_dir: the job's folder with ``train.py`` at its top.
    :param operator: the cluster's operator; absent: one is there already, and nothing waits for it.
    :param storage: default ``--storage-path`` of the job and the role to reach it; absent: the job has none.
    :param data_buckets: ``s3://bucket/prefix`` or S3 ARNs that the job may read besides; absent: its storage's prefix only.
    :param hf_token_secret_arn: Secrets Manager secret with the Hugging Face token: the pods may read it, and find the ARN in
        ``HF_TOKEN_SECRET_ARN``, which the job turns into ``HF_TOKEN``; the value is in no template. Absent: no token.
    :param container_mirror: registry and optional prefix that replaces ``public.ecr.aws``; absent: the public registry.
    :param queue_name: Kueue's LocalQueue; absent: not queued.
    :param metrics_namespace: namespace that may scrape Ray's metrics; absent: none.
    :param allow_interrupt: let a deploy restart pods under an active run.
    :param create_namespace: false where somebody else makes (and deletes) ``namespace``.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        cluster: AnyCluster,
        job_dir: Path,
        nodes: EfaGpuNodeGroup | Sequence[EfaGpuNodeGroup] = (),
        worker_groups: Sequence[WorkerGroup] = (),
        name: str = "ray-train",
        namespace: str = "ray-train",
        image: str = DLC_IMAGE,
        ray_version: str = RAY_VERSION,
        operator: KubeRayOperator | None = None,
        storage: Storage | None = None,
        data_buckets: Sequence[str] = (),
        hf_token_secret_arn: str | None = None,
        container_mirror: str | None = None,
        queue_name: str | None = None,
        metrics_namespace: str | None = None,
        head_node_selector: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        allow_interrupt: bool = False,
        create_namespace: bool = True,
    ) -> None:
        groups = [nodes] if isinstance(nodes, EfaGpuNodeGroup) else list(nodes)
        spec, job = workload_spec(
            scope,
            name=name,
            namespace=namespace,
            job_dir=job_dir,
            nodes=groups,
            worker_groups=worker_groups,
            image=image,
            ray_version=ray_version,
            storage=storage,
            hf_token_secret_arn=hf_token_secret_arn,
            container_mirror=container_mirror,
            head_node_selector=head_node_selector,
            env=env,
            allow_interrupt=allow_interrupt,
        )
        ray = ray_cluster(spec)
        if queue_name:
            ray["metadata"]["labels"][QUEUE_LABEL] = queue_name
        super().__init__(
            scope,
            id,
            cluster=cluster,
            spec=spec,
            job=job,
            operator=operator,
            storage=storage,
            data_buckets=data_buckets,
            hf_token_secret_arn=hf_token_secret_arn,
            metrics_namespace=metrics_namespace,
            create_namespace=create_namespace,
            policies=busy_policy(ray_cluster_name=name, namespace=namespace),
        )
        self.ray_cluster = self._manifest("RayCluster", [ray], after=self._before_ray)

    @property
    def ready(self) -> IDependable:
        return self.ray_cluster
