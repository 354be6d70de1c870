"""Pod templates of the Ray head and of a worker group.

Nothing here may vary by deploy (no checksum, tag, time or job hash): under ``upgradeStrategy: Recreate`` KubeRay replaces
all pods, the head included, when a pod template changes (seen with KubeRay 1.7.0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from eks_ray_train.instances import PodSize

from . import names
from .start_command import drain_hook, start_command
from .transport_env import transport_env

TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]

# The pod-security level that these pods bear (https://kubernetes.io/docs/concepts/security/pod-security-standards/):
# the image runs as root, which "restricted" forbids; everything else of it is met.
POD_SECURITY_LEVEL = "baseline"


# Who runs what is not told to others. Ray: https://docs.ray.io/en/latest/cluster/usage-stats.html. Hugging Face:
# https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables. The image's shells: its own documentation.
NO_REPORTS = {"RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_DISABLE_TELEMETRY": "1", "OPT_OUT_TRACKING": "true"}


@dataclass(frozen=True, kw_only=True)
class Taint:
    """A taint of a node group, in Kubernetes' own words; each one becomes a toleration of the group's pods."""

    key: str
    value: str = "true"
    effect: TaintEffect = "NoSchedule"

    def toleration(self) -> dict[str, str]:
        """The toleration of exactly this taint."""
        return {"key": self.key, "operator": "Equal", "value": self.value, "effect": self.effect}


GPU_TAINT = Taint(key=names.GPU_RESOURCE)


@dataclass(frozen=True, kw_only=True)
class PodParts:
    """What head and workers of one cluster share. ``label`` is the value of our own label on every pod."""

    label: str
    image: str
    job_config_map: str
    job_items: Mapping[str, str]
    job_further_items: Mapping[str, Mapping[str, str]]
    facts_config_map: str
    service_account: str | None = None
    storage_path: str | None = None
    region: str | None = None
    hf_secret_name: str | None = None
    hf_secret_key: str = "token"
    fsx_claim: str | None = None
    extra_env: Mapping[str, str] = field(default_factory=dict)


def head_pod(
    parts: PodParts,
    *,
    size: PodSize,
    node_selector: Mapping[str, str],
    taints: Sequence[Taint],
) -> dict[str, Any]:
    """The head's pod template: driver and Ray's own services, no accelerator, and nothing that depends on the workers, so that
    one more worker group does not change it.

    ``NVIDIA_VISIBLE_DEVICES=void`` since the image says ``all``: where the default container runtime is NVIDIA's, a pod
    without a GPU request would see every GPU of a GPU node, and fail to start on a node without any.
    """
    env = {"NVIDIA_VISIBLE_DEVICES": "void"}
    ports = (
        ("gcs", names.GCS_PORT),
        ("dashboard", names.DASHBOARD_PORT),
        ("client", names.CLIENT_PORT),
        ("metrics", names.METRICS_PORT),
    )
    container = _container("ray-head", parts, size, env)
    container["ports"] = [{"name": name, "containerPort": port} for name, port in ports]
    return _template(parts, container, size, node_selector, taints)


def worker_pod(
    parts: PodParts,
    *,
    size: PodSize,
    node_selector: Mapping[str, str],
    taints: Sequence[Taint],
    worker_facts: Mapping[str, str],
    socket_ifname: str | None,
    host_network: bool,
    grace_period_seconds: int,
    hf_cache_claim: str | None = None,
) -> dict[str, Any]:
    """A worker's pod template: one pod takes a whole node's GPUs and EFA interfaces. Devices come only from the resource
    request: a hostPath of /dev/infiniband would also show devices that are not EFA. ``hf_cache_claim`` absent: what the hub's
    libraries download goes with the pod."""
    env = {**transport_env(socket_ifname=socket_ifname, host_network=host_network), **worker_facts}
    if size.gpus == 0:
        env["NVIDIA_VISIBLE_DEVICES"] = "void"
    container = _container("ray-worker", parts, size, env)
    container["ports"] = [{"name": "metrics", "containerPort": names.METRICS_PORT}]
    container["lifecycle"] = {"preStop": {"exec": {"command": drain_hook(grace_period_seconds=grace_period_seconds)}}}
    template = _template(parts, container, size, node_selector, taints, hf_cache_claim=hf_cache_claim)
    template["spec"]["terminationGracePeriodSeconds"] = grace_period_seconds
    if host_network:
        template["spec"]["hostNetwork"] = True
        template["spec"]["dnsPolicy"] = "ClusterFirstWithHostNet"
    return template


def container_security() -> dict[str, Any]:
    """No privilege at all: the devices come from device plugins, and neither Ray, NCCL nor EFA needs a capability (the root
    filesystem stays writable: the job and its libraries keep caches there)."""
    return {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def resources_of(size: PodSize) -> dict[str, dict[str, str]]:
    """Requests equal to limits: Guaranteed quality of service, and Ray sizes its object store from the same number."""
    amounts = {"cpu": str(size.cpu), "memory": f"{size.memory_gib}Gi"}
    if size.gpus:
        amounts[names.GPU_RESOURCE] = str(size.gpus)
    if size.efa_interfaces:
        amounts[names.EFA_RESOURCE] = str(size.efa_interfaces)
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _container(name: str, parts: PodParts, size: PodSize, env: Mapping[str, str]) -> dict[str, Any]:
    command, args = start_command()
    mounts = [
        {"name": "job", "mountPath": names.JOB_DIR, "readOnly": True},
        {"name": "cluster-facts", "mountPath": names.CLUSTER_FACTS_DIR, "readOnly": True},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
        {"name": "ray-tmp", "mountPath": names.RAY_TMP},
        {"name": "hf-cache", "mountPath": names.HF_CACHE_DIR},
    ]
    if parts.fsx_claim is not None:
        mounts.append({"name": "fsx", "mountPath": names.FSX_MOUNT})
    return {
        "name": name,
        "image": parts.image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "args": args,
        "env": _environment(parts, env),
        "resources": resources_of(size),
        "securityContext": container_security(),
        "volumeMounts": mounts,
    }


def _environment(parts: PodParts, env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Plain variables first, ``extra_env`` over them, then the one that refers to a secret."""
    plain = {**env, **NO_REPORTS}
    # Not the number: in the template, another node count would restart every pod, and a variable that refers to the
    # ConfigMap would keep its first value for the pod's life. The kubelet refreshes the file.
    plain[names.ENV_EXPECTED_GPUS_FILE] = names.EXPECTED_GPUS_FILE
    plain[names.ENV_CHECKPOINTED_FILE] = names.CHECKPOINTED_FILE
    plain["HF_HOME"] = names.HF_CACHE_DIR
    if parts.storage_path is not None:
        plain[names.ENV_STORAGE_PATH] = parts.storage_path
    if parts.region is not None:
        plain["AWS_REGION"] = parts.region
    plain.update(parts.extra_env)
    entries: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in plain.items()]
    if parts.hf_secret_name is not None:
        secret = {"name": parts.hf_secret_name, "key": parts.hf_secret_key}
        entries.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}})
    return entries


def _template(
    parts: PodParts,
    container: dict[str, Any],
    size: PodSize,
    node_selector: Mapping[str, str],
    taints: Sequence[Taint],
    *,
    hf_cache_claim: str | None = None,
) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [
        {"name": "job", **_job_volume(parts)},
        # A whole volume, not a subPath: only then the kubelet refreshes it when the node count changes.
        {"name": "cluster-facts", "configMap": {"name": parts.facts_config_map}},
        # Counts against the container's memory limit. Half of it: Ray's object store takes 30 %, NCCL and data loaders
        # share memory here too; the default of 64 MB ends in "No space left on device".
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": f"{max(size.memory_gib // 2, 1)}Gi"}},
        {"name": "ray-tmp", "emptyDir": {}},
        {
            "name": "hf-cache",
            **({"persistentVolumeClaim": {"claimName": hf_cache_claim}} if hf_cache_claim else {"emptyDir": {}}),
        },
    ]
    if parts.fsx_claim is not None:
        volumes.append({"name": "fsx", "persistentVolumeClaim": {"claimName": parts.fsx_claim}})
    spec: dict[str, Any] = {
        # Pod Identity brings its own token; Kubernetes' API is not used from these pods.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": dict(node_selector),
        "tolerations": [taint.toleration() for taint in taints],
        "containers": [container],
        "volumes": volumes,
    }
    if parts.service_account is not None:
        spec["serviceAccountName"] = parts.service_account
    return {
        "metadata": {
            "labels": {names.CLUSTER_LABEL: parts.label},
            # KubeRay reads it from the RayCluster and copies it here; stated, since its copy is what decides.
            "annotations": {names.OVERWRITE_COMMAND_ANNOTATION: "true"},
        },
        "spec": spec,
    }


def _job_volume(parts: PodParts) -> dict[str, Any]:
    """The job's folder: one ConfigMap, or several that a projected volume puts together."""
    maps = {parts.job_config_map: parts.job_items, **parts.job_further_items}
    sources = [
        {"configMap": {"name": name, "items": [{"key": key, "path": path} for key, path in sorted(items.items())]}}
        for name, items in maps.items()
    ]
    return sources[0] if len(sources) == 1 else {"projected": {"sources": sources}}
