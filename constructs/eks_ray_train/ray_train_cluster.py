"""RayTrainCluster: namespace, job files, network policy and RayCluster on GPU nodes, in an order that deletes cleanly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aws_cdk import Stack
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct, IDependable

from .cluster_type import AnyCluster, as_icluster
from .efa_gpu_node_group import EfaGpuNodeGroup
from .errors import SettingsError
from .job_identity import JobIdentity
from .kuberay_operator import KubeRayOperator
from .manifests.busy_policy import busy_policy
from .manifests.job_files import job_config_map
from .manifests.names import CLUSTER_LABEL, MANAGED_BY, QUEUE_LABEL
from .manifests.network_policy import NetworkPolicySpec, network_policy
from .manifests.network_policy import namespace as namespace_manifest
from .manifests.ray_cluster import RayClusterSpec, WorkerGroup, cluster_facts, ray_cluster
from .manifests.ray_cluster import Taint as PodTaint
from .node_labels import GPU_NODE_SELECTOR, SYSTEM_NODE_SELECTOR
from .storage import Storage
from .versions import DLC_IMAGE, RAY_VERSION

HF_SECRET_ENV = "HF_TOKEN_SECRET_ARN"
_PUBLIC_REGISTRY = "public.ecr.aws/"
# Where the operator is expected when another team installed it.
OPERATOR_NAMESPACE = "kuberay-system"
# Each is a resource of its own: on an update the handler's event holds the old and the new text.
_JOB_CONFIG_MAPS = 2


class RayTrainCluster(Construct):
    """A Ray cluster for training: a head on the system nodes and one worker a GPU node, locked down, with the job's files.

    Raises SettingsError before any resource exists for a name KubeRay would ignore, a job folder too large, or no workers.

    :param nodes: node groups of this library; each becomes one worker group, and is deleted after the RayCluster.
    :param worker_groups: worker groups on nodes that this library did not make (labels and taints are theirs to state).
    :param job_dir: the job's folder with ``train.py`` at its top.
    :param operator: the cluster's operator; absent: one is there already, and nothing waits for it.
    :param storage: default ``--storage-path`` of the job and the role to reach it; absent: the job has none.
    :param hf_token_secret_arn: Secrets Manager secret with the Hugging Face token: the pods may read it, and find the ARN in
        ``HF_TOKEN_SECRET_ARN``; the value is in no template. Absent: no token.
    :param container_mirror: registry and optional prefix that replaces ``public.ecr.aws``; absent: the public registry.
    :param queue_name: Kueue's LocalQueue; absent: not queued.
    :param metrics_namespace: namespace that may scrape Ray's metrics; absent: none.
    :param allow_interrupt: let a deploy restart pods under an active run.
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
        hf_token_secret_arn: str | None = None,
        container_mirror: str | None = None,
        queue_name: str | None = None,
        metrics_namespace: str | None = None,
        head_node_selector: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        allow_interrupt: bool = False,
    ) -> None:
        groups = [nodes] if isinstance(nodes, EfaGpuNodeGroup) else list(nodes)
        if not groups and not worker_groups:
            raise SettingsError("a RayTrainCluster needs nodes=EfaGpuNodeGroup or worker_groups, got neither")
        job = job_config_map(
            Path(job_dir), name=f"{name}-job", namespace=namespace, labels=_labels(name), max_objects=_JOB_CONFIG_MAPS
        )
        extra_env = dict(env or {})
        if hf_token_secret_arn:
            extra_env[HF_SECRET_ENV] = hf_token_secret_arn
        service_account = f"{name}-job"
        self.spec = RayClusterSpec(
            name=name,
            namespace=namespace,
            image=mirrored(image, container_mirror),
            ray_version=ray_version,
            workers=(*_worker_groups(groups), *worker_groups),
            job_config_map=f"{name}-job",
            job_items=job.items,
            job_further_items=job.further_items,
            head_node_selector=dict(SYSTEM_NODE_SELECTOR if head_node_selector is None else head_node_selector),
            service_account=service_account,
            storage_path=storage.storage_path if storage else None,
            region=Stack.of(scope).region,
            fsx_claim=storage.lustre_claim if storage else None,
            extra_env=extra_env,
            allow_interrupt=allow_interrupt,
        )
        ray = ray_cluster(self.spec)
        if queue_name:
            ray["metadata"]["labels"][QUEUE_LABEL] = queue_name
        super().__init__(scope, id)
        self.cluster = cluster
        self.identity = JobIdentity(
            self,
            "Identity",
            cluster=cluster,
            namespace=namespace,
            service_account=service_account,
            statements=storage.statements() if storage else (),
            secret_arn=hf_token_secret_arn,
        )
        base = self._manifest(
            "Base",
            [
                namespace_manifest(namespace),
                _service_account(service_account, namespace, name),
                *(storage.manifests(namespace=namespace) if storage else []),
            ],
        )
        policies = self._manifest(
            "Policies",
            [
                network_policy(
                    NetworkPolicySpec(
                        cluster=name,
                        namespace=namespace,
                        operator_namespace=operator.namespace if operator else OPERATOR_NAMESPACE,
                        metrics_namespace=metrics_namespace,
                    )
                ),
                *busy_policy(ray_cluster_name=name, namespace=namespace),
            ],
            after=[base],
        )
        files = self._manifest("JobFiles", [job.manifest, cluster_facts(self.spec)], after=[base])
        further = [self._manifest(f"JobFiles{n}", [more], after=[base]) for n, more in enumerate(job.manifests[1:], 2)]
        # Created last and deleted first, while the operator (which clears its finalizers) and the nodes are still there.
        after: list[IDependable] = [policies, files, *further, self.identity.ready, *(group.ready for group in groups)]
        if operator is not None:
            after.append(operator.ready)
        self.ray_cluster = self._manifest("RayCluster", [ray], after=after)

    def _manifest(
        self, id: str, manifest: list[dict[str, Any]], *, after: Sequence[IDependable] = ()
    ) -> eks.KubernetesManifest:
        # overwrite: a deploy that repeats after half a failure finds its own objects there.
        made = eks.KubernetesManifest(self, id, cluster=as_icluster(self.cluster), manifest=manifest, overwrite=True)
        for dependency in after:
            made.node.add_dependency(dependency)
        return made

    @property
    def ready(self) -> IDependable:
        return self.ray_cluster

    @property
    def total_gpus(self) -> int | str:
        """GPUs that the job waits for."""
        return self.spec.gpus


def mirrored(image: str, container_mirror: str | None) -> str:
    """``image`` from the mirror where it is of ECR's public registry, else as it is."""
    if container_mirror and image.startswith(_PUBLIC_REGISTRY):
        return f"{container_mirror.rstrip('/')}/{image[len(_PUBLIC_REGISTRY) :]}"
    return image


def _worker_groups(groups: Sequence[EfaGpuNodeGroup]) -> list[WorkerGroup]:
    made = []
    for number, group in enumerate(groups):
        selector = dict(GPU_NODE_SELECTOR)
        if len(groups) > 1:
            # Pods of one group must not land on the nodes of another; EKS puts this label on its nodes by itself.
            selector["eks.amazonaws.com/nodegroup"] = group.node_group_name
        made.append(
            WorkerGroup(
                name="gpu" if number == 0 else f"gpu-{number + 1}",
                replicas=group.node_count,
                pod=group.instance.worker_pod,
                node_selector=selector,
                taints=tuple(PodTaint(key=t.key, value=t.value, effect=t.toleration()["effect"]) for t in group.taints),
                instance_type=group.instance.name,
            )
        )
    return made


def _labels(name: str) -> dict[str, str]:
    return {CLUSTER_LABEL: name, **MANAGED_BY}


def _service_account(account: str, namespace: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": account, "namespace": namespace, "labels": _labels(name)},
        "automountServiceAccountToken": False,
    }
