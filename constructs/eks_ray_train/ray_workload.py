"""RayWorkload: what RayTrainCluster and RayTrainJob both stand on: namespace, identity, network policy and the job's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aws_cdk import Stack
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct, IDependable

from .cluster_type import AnyCluster, as_icluster, check_cluster
from .efa_gpu_node_group import EfaGpuNodeGroup
from .errors import SettingsError
from .job_identity import JobIdentity
from .kuberay_operator import KubeRayOperator
from .manifests.job_files import JobFiles, job_config_map
from .manifests.names import CLUSTER_LABEL, MANAGED_BY
from .manifests.network_policy import NetworkPolicySpec, network_policy
from .manifests.network_policy import namespace as namespace_manifest
from .manifests.node_cache import node_cache
from .manifests.ray_cluster import RayClusterSpec, WorkerGroup, cluster_facts
from .manifests.ray_cluster import Taint as PodTaint
from .node_labels import GPU_NODE_SELECTOR, SYSTEM_NODE_SELECTOR
from .storage import Storage

HF_SECRET_ENV = "HF_TOKEN_SECRET_ARN"
_PUBLIC_REGISTRY = "public.ecr.aws/"
# Where the operator is expected when another team installed it.
OPERATOR_NAMESPACE = "kuberay-system"
# Each is a resource of its own: on an update the handler's event holds the old and the new text.
_JOB_CONFIG_MAPS = 2


class RayWorkload(Construct):
    """Base of the two workloads; makes everything that must be there before Ray's own object, in an order that deletes cleanly.

    Raises SettingsError where another workload on the same cluster object has the same namespace or name.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        cluster: AnyCluster,
        spec: RayClusterSpec,
        job: JobFiles,
        operator: KubeRayOperator | None,
        storage: Storage | None,
        data_buckets: Sequence[str],
        hf_token_secret_arn: str | None,
        metrics_namespace: str | None,
        create_namespace: bool,
        policies: Sequence[dict[str, Any]] = (),
    ) -> None:
        check_cluster(cluster)
        _claim(cluster, f"{scope.node.path}/{id}", spec, create_namespace=create_namespace)
        super().__init__(scope, id)
        self.cluster = cluster
        self.spec = spec
        account = str(spec.service_account)
        self.identity = JobIdentity(
            self,
            "Identity",
            cluster=cluster,
            namespace=spec.namespace,
            service_account=account,
            statements=storage.statements() if storage else (),
            data_buckets=data_buckets,
            secret_arn=hf_token_secret_arn,
        )
        base = self._manifest(
            "Base",
            [
                *([namespace_manifest(spec.namespace)] if create_namespace else []),
                _service_account(account, spec.namespace, spec.name),
                *(storage.manifests(namespace=spec.namespace) if storage else []),
                *node_cache(spec),
            ],
        )
        network = NetworkPolicySpec(
            cluster=spec.name,
            namespace=spec.namespace,
            operator_namespace=operator.namespace if operator else OPERATOR_NAMESPACE,
            metrics_namespace=metrics_namespace,
        )
        allowed = self._manifest("Policies", [network_policy(network), *policies], after=[base])
        files = self._manifest("JobFiles", [job.manifest, cluster_facts(spec)], after=[base])
        further = [self._manifest(f"JobFiles{n}", [more], after=[base]) for n, more in enumerate(job.manifests[1:], 2)]
        # What Ray's own object waits for: created last and deleted first, while the operator (which clears its finalizers) and
        # the nodes are still there. (The nodes: by their group's name in the pods' node selector, worker_groups_of.)
        self._before_ray: list[IDependable] = [allowed, files, *further, self.identity.ready]
        if operator is not None:
            self._before_ray.append(operator.ready)

    def _manifest(
        self, id: str, manifest: list[dict[str, Any]], *, after: Sequence[IDependable] = ()
    ) -> eks.KubernetesManifest:
        # overwrite: a deploy that repeats after half a failure finds its own objects there.
        made = eks.KubernetesManifest(self, id, cluster=as_icluster(self.cluster), manifest=manifest, overwrite=True)
        for dependency in after:
            made.node.add_dependency(dependency)
        return made

    @property
    def total_gpus(self) -> int | str:
        """GPUs that the job waits for."""
        return self.spec.gpus


def workload_spec(
    scope: Construct,
    *,
    name: str,
    namespace: str,
    job_dir: Path,
    nodes: Sequence[EfaGpuNodeGroup],
    worker_groups: Sequence[WorkerGroup],
    image: str,
    ray_version: str,
    storage: Storage | None,
    hf_token_secret_arn: str | None,
    container_mirror: str | None,
    head_node_selector: Mapping[str, str] | None,
    env: Mapping[str, str] | None,
    allow_interrupt: bool = False,
) -> tuple[RayClusterSpec, JobFiles]:
    """The cluster that the properties describe, and the rendered job folder. Creates nothing.

    Raises SettingsError for no workers, a job folder too large, and what RayClusterSpec refuses.
    """
    if not nodes and not worker_groups:
        raise SettingsError(f"{name}: training needs nodes=EfaGpuNodeGroup or worker_groups, got neither")
    job = job_config_map(
        Path(job_dir), name=f"{name}-job", namespace=namespace, labels=labels_of(name), max_objects=_JOB_CONFIG_MAPS
    )
    extra_env = dict(env or {})
    if hf_token_secret_arn:
        extra_env[HF_SECRET_ENV] = hf_token_secret_arn
    spec = RayClusterSpec(
        name=name,
        namespace=namespace,
        image=mirrored(image, container_mirror),
        ray_version=ray_version,
        workers=(*worker_groups_of(nodes), *worker_groups),
        job_config_map=f"{name}-job",
        job_items=job.items,
        job_further_items=job.further_items,
        head_node_selector=dict(SYSTEM_NODE_SELECTOR if head_node_selector is None else head_node_selector),
        service_account=f"{name}-job",
        storage_path=storage.storage_path if storage else None,
        region=Stack.of(scope).region,
        fsx_claim=storage.lustre_claim if storage else None,
        extra_env=extra_env,
        allow_interrupt=allow_interrupt,
    )
    return spec, job


def mirrored(image: str, container_mirror: str | None) -> str:
    """``image`` from the mirror where it is of ECR's public registry, else as it is."""
    if container_mirror and image.startswith(_PUBLIC_REGISTRY):
        return f"{container_mirror.rstrip('/')}/{image[len(_PUBLIC_REGISTRY) :]}"
    return image


def worker_groups_of(groups: Sequence[EfaGpuNodeGroup]) -> list[WorkerGroup]:
    """One worker group a node group, with its label, taints and size."""
    made = []
    for number, group in enumerate(groups):
        # Pods of one group must not land on the nodes of another, which may be another training's on the same cluster; EKS puts
        # this label on its nodes by itself.
        selector = {**GPU_NODE_SELECTOR, "eks.amazonaws.com/nodegroup": group.node_group_name}
        made.append(
            WorkerGroup(
                name="gpu" if number == 0 else f"gpu-{number + 1}",
                replicas=group.node_count,
                pod=group.instance.worker_pod,
                node_selector=selector,
                taints=tuple(PodTaint(key=t.key, value=t.value, effect=t.toleration()["effect"]) for t in group.taints),
                instance_type=group.instance.name,
                cache_dir=group.cache_dir,
            )
        )
    return made


def labels_of(name: str) -> dict[str, str]:
    """Labels of every object of the workload ``name``."""
    return {CLUSTER_LABEL: name, **MANAGED_BY}


def _service_account(account: str, namespace: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": account, "namespace": namespace, "labels": labels_of(name)},
        "automountServiceAccountToken": False,
    }


def _claim(cluster: AnyCluster, owner: str, spec: RayClusterSpec, *, create_namespace: bool) -> None:
    """Marks name and namespace as taken on ``cluster``: a namespace that two stacks made would go, with everything in it, when
    the first of them is destroyed."""
    # As in claim_release: a construct without resources in the cluster's stack.
    stack = Stack.of(as_icluster(cluster))
    taken = {f"{spec.namespace}/{spec.name}": "choose another name or namespace"}
    if create_namespace:
        taken[spec.namespace] = "choose another namespace, or set create_namespace=False on one of them"
    for what, remedy in taken.items():
        mark_id = f"RayWorkload-{what.replace('/', '.')}-{cluster.node.addr}"
        mark = stack.node.try_find_child(mark_id)
        if mark is not None:
            first = mark.node.try_get_context("owner")
            raise SettingsError(f"{what} on this cluster is already made by {first}, {owner} asks for it again: {remedy}")
        Construct(stack, mark_id).node.set_context("owner", owner)
