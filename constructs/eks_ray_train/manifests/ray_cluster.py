"""RayCluster (ray.io/v1) and the ConfigMap that says how many GPUs it is declared to have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eks_ray_train.errors import SettingsError
from eks_ray_train.instances import CATALOGUE, PodSize
from eks_ray_train.system_sizing import HEAD_POD

from . import names
from .ray_pods import GPU_TAINT, POD_SECURITY_LEVEL, PodParts, Taint, head_pod, worker_pod
from .tokens import is_token
from .validate import validate

__all__ = [
    "GPU_TAINT", "POD_SECURITY_LEVEL", "RayClusterSpec", "Taint", "WorkerGroup", "cluster_facts", "ray_cluster", "ray_cluster_spec",
]  # fmt: skip

# The CRD's own default: no autoscaler runs, ``replicas`` alone decides, also after ``scale``.
_NO_UPPER_LIMIT = 2_147_483_647


@dataclass(frozen=True, kw_only=True)
class WorkerGroup:
    """Workers of one kind, one pod a node.

    ``replicas`` is a plain number or a CDK token. ``taints`` are those of the node group: each becomes a toleration.
    ``instance_type`` (absent: nothing is known of the nodes) reaches the pods as EKS_RAY_TRAIN_INSTANCE_TYPE; a pod size that a
    node of that type cannot hold, or that leaves GPUs idle, is a SettingsError. ``cache_dir``: folder on the nodes' local disks
    that outlives pods, for the Hugging Face cache; absent: the cache lives on the node's disk as long as its pod.
    """

    name: str
    replicas: int | Any
    pod: PodSize
    node_selector: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = (GPU_TAINT,)
    instance_type: str | None = None
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        row = CATALOGUE.get(self.instance_type or "")
        if row is None:  # unknown, a token, or none given
            return
        problems = []
        for what, got, has in (("GPUs", self.pod.gpus, row.gpus), ("EFA interfaces", self.pod.efa_interfaces, row.efa_interfaces)):
            if got != has:
                problems.append(
                    f"worker group {self.name!r} asks for {got} {what} a pod, but {row.name} has {has}: fewer would idle, more stay "
                    f"Pending; leave the pod size to the instance type (get_instance_type({row.name!r}).worker_pod)"
                )
        cpus, gib = row.allocatable_cpu_millis / 1000, row.allocatable_memory_mib / 1024
        if self.pod.cpu > cpus or self.pod.memory_gib > gib:
            problems.append(
                f"worker group {self.name!r} asks for {self.pod.cpu} CPUs and {self.pod.memory_gib} GiB a pod, but a {row.name} offers "
                f"pods {cpus:.1f} CPUs and {gib:.1f} GiB; ask for less"
            )
        if problems:
            raise SettingsError(problems)


@dataclass(frozen=True, kw_only=True)
class RayClusterSpec:
    """Everything that a RayCluster, or the cluster inside a RayJob, is made of.

    ``job_items`` maps the job ConfigMap's keys to paths (``JobFiles.items``), ``job_further_items`` those of further
    ConfigMaps by their name (``JobFiles.further_items``; absent: there are none). Where absent: ``service_account`` the
    namespace's default (without a token); ``storage_path`` no default for the job's ``--storage-path``; ``region`` AWS
    libraries find it by themselves; ``hf_secret_name`` no ``HF_TOKEN``; ``fsx_claim`` nothing at /fsx; ``socket_ifname``
    eth0 (with ``host_network``: everything but unreachable interfaces); ``expected_gpus`` replicas × GPUs (must be given
    where replicas is a token). ``extra_env`` goes over ours; setting LD_LIBRARY_PATH there is an error.
    ``grace_period_seconds``: time from the drain to the kill of a worker, in which the job writes a checkpoint; below the
    15 minutes that a managed node group waits for evictions. ``allow_interrupt`` lets a deploy restart pods under an active run.
    """

    name: str
    namespace: str
    image: str
    ray_version: str
    workers: tuple[WorkerGroup, ...]
    job_config_map: str
    job_items: Mapping[str, str]
    job_further_items: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    head: PodSize = HEAD_POD
    head_node_selector: Mapping[str, str] = field(default_factory=dict)
    head_taints: tuple[Taint, ...] = ()
    service_account: str | None = None
    storage_path: str | None = None
    region: str | None = None
    hf_secret_name: str | None = None
    hf_secret_key: str = "token"
    fsx_claim: str | None = None
    socket_ifname: str | None = None
    host_network: bool = False
    expected_gpus: int | str | None = None
    extra_env: Mapping[str, str] = field(default_factory=dict)
    grace_period_seconds: int = 600
    allow_interrupt: bool = False

    def __post_init__(self) -> None:
        problems = []
        if self.grace_period_seconds < 30:
            problems.append(
                f"grace_period_seconds must be at least 30 (Ray's shutdown and a checkpoint), got {self.grace_period_seconds}"
            )
        if not self.workers:
            problems.append(f"RayCluster {self.name} has no worker group; give at least one")
        if not self.job_items:
            problems.append(f"RayCluster {self.name}: job_items is empty; pass JobFiles.items of job_config_map()")
        if self.expected_gpus is None and any(is_token(group.replicas) for group in self.workers):
            problems.append(
                "a worker group's replicas is known only at deploy time, so replicas x GPUs cannot be computed; give expected_gpus"
            )
        folders = sorted({group.cache_dir for group in self.workers if group.cache_dir})
        if len(folders) > 1:
            problems.append(
                f"RayCluster {self.name}: the worker groups keep the Hugging Face cache in {' and '.join(folders)}; one claim serves "
                "them all, so give one cache_dir, or none for some groups"
            )
        if problems:
            raise SettingsError(problems)

    @property
    def cache_dir(self) -> str | None:
        """The nodes' folder for the Hugging Face cache, of the groups that have one."""
        return next((group.cache_dir for group in self.workers if group.cache_dir), None)

    @property
    def gpus(self) -> int | str:
        """GPUs that the job waits for: declared, or replicas × GPUs a pod over all groups."""
        if self.expected_gpus is not None:
            return self.expected_gpus
        return sum(int(group.replicas) * group.pod.gpus for group in self.workers)


def cluster_facts(spec: RayClusterSpec) -> dict[str, Any]:
    """ConfigMap with the declared GPU count, mounted in every pod and refreshed there by the kubelet (up to about two
    minutes after a change), so that another node count restarts no pod."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(spec, names.cluster_facts_name(spec.name)),
        "data": {names.EXPECTED_GPUS_KEY: str(spec.gpus)},
    }


def ray_cluster(spec: RayClusterSpec) -> dict[str, Any]:
    """The RayCluster manifest. Raises SettingsError with everything the API server or KubeRay would stumble over.

    Apply it after the ConfigMaps ``spec.job_config_map`` and ``cluster_facts(spec)`` and after the operator's chart.
    """
    metadata = _metadata(spec, spec.name)
    metadata["annotations"] = {names.OVERWRITE_COMMAND_ANNOTATION: "true"}
    if spec.allow_interrupt:
        metadata["annotations"][names.ALLOW_INTERRUPT_ANNOTATION] = "true"
    manifest = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": metadata,
        # Without Recreate a changed image or environment looks applied and changes nothing.
        "spec": {**ray_cluster_spec(spec, label=spec.name), "upgradeStrategy": {"type": "Recreate"}},
    }
    validate(manifest)
    return manifest


def ray_cluster_spec(spec: RayClusterSpec, *, label: str) -> dict[str, Any]:
    """The part that a RayCluster and a RayJob's ``rayClusterSpec`` share; ``label`` is our own label's value on the pods."""
    parts = PodParts(
        label=label,
        image=spec.image,
        job_config_map=spec.job_config_map,
        job_items=spec.job_items,
        job_further_items=spec.job_further_items,
        facts_config_map=names.cluster_facts_name(spec.name),
        service_account=spec.service_account,
        storage_path=spec.storage_path,
        region=spec.region,
        hf_secret_name=spec.hf_secret_name,
        hf_secret_key=spec.hf_secret_key,
        fsx_claim=spec.fsx_claim,
        extra_env=spec.extra_env,
    )
    return {
        "rayVersion": spec.ray_version,
        "authOptions": {"mode": "token"},
        "headGroupSpec": {
            # No task and no Train worker on the head; the job's driver takes no CPU of Ray's.
            "rayStartParams": {"dashboard-host": "0.0.0.0", "num-cpus": "0", "num-gpus": "0"},
            "template": head_pod(
                parts,
                size=spec.head,
                node_selector=spec.head_node_selector,
                taints=spec.head_taints,
            ),
        },
        "workerGroupSpecs": [_worker_group(spec, parts, group) for group in spec.workers],
    }


def _worker_group(spec: RayClusterSpec, parts: PodParts, group: WorkerGroup) -> dict[str, Any]:
    return {
        "groupName": group.name,
        "replicas": group.replicas,
        "minReplicas": 0,
        "maxReplicas": _NO_UPPER_LIMIT,
        "rayStartParams": {"num-gpus": str(group.pod.gpus)},
        "template": worker_pod(
            parts,
            size=group.pod,
            node_selector=group.node_selector,
            taints=group.taints,
            worker_facts=_worker_facts(group),
            socket_ifname=spec.socket_ifname,
            host_network=spec.host_network,
            grace_period_seconds=spec.grace_period_seconds,
            hf_cache_claim=names.hf_cache_claim(spec.name) if group.cache_dir else None,
        ),
    }


def _worker_facts(group: WorkerGroup) -> dict[str, str]:
    facts = {names.ENV_GPUS_PER_NODE: str(group.pod.gpus)}
    if group.instance_type is not None:
        facts[names.ENV_INSTANCE_TYPE] = group.instance_type
    return facts


def _metadata(spec: RayClusterSpec, name: str) -> dict[str, Any]:
    return {"name": name, "namespace": spec.namespace, "labels": {names.CLUSTER_LABEL: spec.name, **names.MANAGED_BY}}
