"""KubeRay's own rules, and what even KubeRay does not notice, as errors at synth time.

The API server accepts these objects; the operator then stops with a warning event, or workers never appear (seen with
KubeRay 1.7.0 on Kubernetes 1.36). Sources: KubeRay's validation (ray-operator/controllers/ray/utils/validation.go) and its
CRDs' descriptions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from eks_ray_train.errors import SettingsError
from eks_ray_train.versions import TOKEN_AUTH_MIN_RAY, ray_version_tuple

from . import names
from .pod_rules import label_problems, pod_template_problems, quantity
from .tokens import is_token

RAY_CLUSTER_NAME_LIMIT = 53
RAY_JOB_NAME_LIMIT = 47
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
# rayStartParams that may also be given as resources of the group, and then clash.
_RESOURCE_PARAMS = {"num-cpus": "CPU", "num-gpus": "GPU", "memory": "memory", "resources": None}
_NAME_LIMITS = {"RayCluster": RAY_CLUSTER_NAME_LIMIT, "RayJob": RAY_JOB_NAME_LIMIT}


def validate(manifest: Mapping[str, Any]) -> None:
    """Raises SettingsError with all problems of a RayCluster or RayJob manifest at once."""
    found = problems(manifest)
    if found:
        raise SettingsError(found)


def problems(manifest: Mapping[str, Any]) -> list[str]:
    """All problems of a RayCluster or RayJob manifest, empty when it is valid. Tokens are stepped round."""
    kind = manifest["kind"]
    metadata = manifest.get("metadata") or {}
    spec = manifest.get("spec") or {}
    found = [*_name(kind, metadata.get("name")), *label_problems(kind, metadata.get("labels") or {})]
    annotations = metadata.get("annotations") or {}
    if kind == "RayCluster":
        found += ray_cluster_problems(spec, annotations)
    else:
        found += _ray_job(spec, annotations)
    return found


def _name(kind: str, name: Any) -> Iterator[str]:
    if is_token(name):
        return
    limit = _NAME_LIMITS[kind]
    if not isinstance(name, str) or len(name) > limit or not _DNS_1035.fullmatch(name):
        length = len(name) if isinstance(name, str) else 0
        yield (
            f"{kind} name must be 1 to {limit} lower-case letters, digits or -, starting with a letter (KubeRay ignores others), "
            f"got {length} characters: {name!r}; shorten or rename it"
        )


def ray_cluster_problems(spec: Mapping[str, Any], annotations: Mapping[str, Any]) -> list[str]:
    """Problems of a RayCluster's spec, or of a RayJob's ``rayClusterSpec``."""
    head = spec.get("headGroupSpec")
    if not head:
        return ["RayCluster has no headGroupSpec; it needs exactly one head"]
    found = [*_group("head group", head), *_authentication(spec), *_fault_tolerance(spec, annotations)]
    groups = spec.get("workerGroupSpecs") or []
    names_seen: list[str] = []
    for group in groups:
        name = group.get("groupName")
        where = f"worker group {name!r}"
        found += [*_group_name(where, name, names_seen), *_replicas(where, group), *_group(where, group)]
        names_seen.append(name)
        if group.get("suspend") and spec.get("enableInTreeAutoscaling"):
            found.append(f"{where} is suspended while the autoscaler is on; KubeRay supports only one of them")
    strategy = (spec.get("upgradeStrategy") or {}).get("type", "None")
    if strategy not in ("None", "Recreate"):
        found.append(f"upgradeStrategy must be None or Recreate, got {strategy!r}")
    return found


def _group_name(where: str, name: Any, seen: list[str]) -> Iterator[str]:
    if is_token(name):
        return
    if not isinstance(name, str) or len(name) > 63 or not _DNS_1035.fullmatch(name):
        yield f"{where}: groupName must be 1 to 63 lower-case letters, digits or -, starting with a letter; rename it"
    elif name == "headgroup":
        yield f"{where}: groupName headgroup is KubeRay's own name of the head's group; rename it"
    if name in seen:
        # Accepted by the API server and by KubeRay, which then starts the workers of one group only.
        yield f"two worker groups are named {name!r}; KubeRay would start only one of them: give each its own name"


def _replicas(where: str, group: Mapping[str, Any]) -> Iterator[str]:
    values = {key: group.get(key, default) for key, default in (("minReplicas", 0), ("maxReplicas", 2**31 - 1), ("replicas", 0))}
    plain = {key: value for key, value in values.items() if not is_token(value)}
    for key, value in plain.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            yield f"{where}: {key} must be a whole number of at least 0, got {value!r}"
            return
    if {"minReplicas", "maxReplicas"} <= plain.keys() and plain["minReplicas"] > plain["maxReplicas"]:
        yield f"{where}: minReplicas {plain['minReplicas']} exceeds maxReplicas {plain['maxReplicas']}; KubeRay would do nothing"
    elif len(plain) == 3 and not plain["minReplicas"] <= plain["replicas"] <= plain["maxReplicas"]:
        yield (
            f"{where}: replicas {plain['replicas']} is outside minReplicas {plain['minReplicas']} and maxReplicas "
            f"{plain['maxReplicas']}; KubeRay would silently use the nearer one"
        )


def _group(where: str, group: Mapping[str, Any]) -> Iterator[str]:
    params = group.get("rayStartParams") or {}
    for key, value in params.items():
        if not isinstance(value, str):
            yield f"{where}: rayStartParams {key} must be a string, got {value!r}; quote it"
    resources = group.get("resources") or {}
    for key, resource in _RESOURCE_PARAMS.items():
        if key in params and (resource in resources or (resource is None and resources)):
            yield f"{where}: {key} is given in rayStartParams and in resources; KubeRay refuses both, keep one"
    if "labels" in params and group.get("labels"):
        yield f"{where}: labels are given in rayStartParams and in labels; KubeRay refuses both, keep one"
    template = group.get("template") or {}
    yield from pod_template_problems(where, template)
    containers = (template.get("spec") or {}).get("containers") or [{}]
    limit = ((containers[0].get("resources") or {}).get("limits") or {}).get(names.GPU_RESOURCE, "0")
    declared = params.get("num-gpus")
    if isinstance(declared, str) and not is_token(declared) and quantity(limit) is not None and quantity(declared) != quantity(limit):
        yield (
            f"{where}: rayStartParams num-gpus {declared} differs from the limit {limit} of {names.GPU_RESOURCE}; "
            f"Ray would promise other GPUs than the pod has"
        )


def _authentication(spec: Mapping[str, Any]) -> Iterator[str]:
    version = spec.get("rayVersion")
    if (spec.get("authOptions") or {}).get("mode") != "token" or is_token(version):
        return
    least = ".".join(map(str, TOKEN_AUTH_MIN_RAY))
    try:
        new_enough = ray_version_tuple(str(version)) >= TOKEN_AUTH_MIN_RAY
    except ValueError as error:
        yield str(error)
        return
    if not new_enough:
        yield f"token authentication needs rayVersion {least} or newer, got {version}; use a newer image and ray_version"


def _fault_tolerance(spec: Mapping[str, Any], annotations: Mapping[str, Any]) -> Iterator[str]:
    options = spec.get("gcsFaultToleranceOptions")
    head = spec["headGroupSpec"]
    containers = ((head.get("template") or {}).get("spec") or {}).get("containers") or [{}]
    variables = {entry.get("name") for entry in containers[0].get("env") or []}
    params = head.get("rayStartParams") or {}
    if options is None and annotations.get("ray.io/ft-enabled") != "true" and "RAY_REDIS_ADDRESS" in variables:
        yield "RAY_REDIS_ADDRESS is set on the head without gcsFaultToleranceOptions; set the options instead"
    if options is not None:
        if annotations.get("ray.io/ft-enabled"):
            yield "the annotation ray.io/ft-enabled and gcsFaultToleranceOptions are both set; keep the options"
        if annotations.get("ray.io/external-storage-namespace"):
            yield "the annotation ray.io/external-storage-namespace clashes with gcsFaultToleranceOptions; use its field"
        for name in sorted({"RAY_REDIS_ADDRESS", "REDIS_PASSWORD"} & variables):
            yield f"{name} is set on the head beside gcsFaultToleranceOptions; use the option's field"
        if params.get("redis-password"):
            yield "rayStartParams redis-password clashes with gcsFaultToleranceOptions; use its redisPassword"
    if params.get("redis-username") or "REDIS_USERNAME" in variables:
        yield "a Redis user name belongs into gcsFaultToleranceOptions.redisUsername, not into rayStartParams or the environment"


def _ray_job(spec: Mapping[str, Any], annotations: Mapping[str, Any]) -> list[str]:
    found = []
    cluster, selector = spec.get("rayClusterSpec"), spec.get("clusterSelector") or {}
    if bool(cluster) == bool(selector):
        found.append("RayJob needs exactly one of rayClusterSpec and clusterSelector")
    if cluster:
        found += ray_cluster_problems(cluster, annotations)
        if "upgradeStrategy" in cluster:
            found.append("upgradeStrategy is not allowed in a RayJob's rayClusterSpec; remove it (a new run gets new pods)")
        if (cluster.get("authOptions") or {}).get("enableK8sTokenAuth"):
            found.append("Kubernetes token authentication is not available for a RayJob; use authOptions mode token alone")
    shutdown = bool(spec.get("shutdownAfterJobFinishes"))
    if spec.get("suspend") and not shutdown:
        found.append("a RayJob can be suspended (Kueue) only with shutdownAfterJobFinishes: true")
    if spec.get("ttlSecondsAfterFinished") and not shutdown:
        found.append("ttlSecondsAfterFinished has no effect without shutdownAfterJobFinishes: true")
    if selector and (shutdown or spec.get("suspend") or spec.get("backoffLimit")):
        found.append("with clusterSelector a RayJob can neither shut the cluster down, be suspended, nor be retried")
    if spec.get("deletionStrategy") and (shutdown or "ttlSecondsAfterFinished" in spec):
        found.append("deletionStrategy cannot be combined with shutdownAfterJobFinishes or ttlSecondsAfterFinished")
    mode = spec.get("submissionMode", "K8sJobMode")
    if mode == "InteractiveMode" and spec.get("backoffLimit"):
        found.append("submissionMode InteractiveMode cannot be retried; set backoffLimit to 0")
    if mode == "SidecarMode" and spec.get("submitterPodTemplate"):
        found.append("submissionMode SidecarMode has no submitter pod; remove submitterPodTemplate")
    if mode != "InteractiveMode" and not spec.get("entrypoint"):
        found.append("RayJob has no entrypoint; give the command to run")
    for key, least in (("activeDeadlineSeconds", 1), ("preRunningDeadlineSeconds", 1), ("backoffLimit", 0), ("ttlSecondsAfterFinished", 0)):
        value = spec.get(key)
        if value is not None and not is_token(value) and (not isinstance(value, int) or value < least):
            found.append(f"RayJob {key} must be a whole number of at least {least}, got {value!r}")
    if spec.get("submitterPodTemplate"):
        found += pod_template_problems("submitter pod", spec["submitterPodTemplate"])
    return found
