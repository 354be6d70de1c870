"""Rules for one pod template: what the API server or the operator would refuse, or nobody would notice, said at synth time.

Each rule yields sentences; values that are CDK tokens are stepped round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import names
from .tokens import is_token

LABEL_VALUE_LIMIT = 63
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_ENV_NAME = re.compile(r"[^=\s]+")
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?")
_FACTORS = {
    "m": 1e-3, None: 1.0, "k": 1e3, "Ki": 2.0**10, "M": 1e6, "Mi": 2.0**20, "G": 1e9, "Gi": 2.0**30, "T": 1e12, "Ti": 2.0**40,
    "P": 1e15, "Pi": 2.0**50,
}  # fmt: skip


def pod_template_problems(where: str, template: Mapping[str, Any]) -> Iterator[str]:
    """All problems of one pod template; ``where`` says which one in the messages."""
    spec = template.get("spec") or {}
    containers = spec.get("containers") or []
    if not containers:
        yield f"{where} has no container; KubeRay takes the first one as Ray's"
    yield from label_problems(where, (template.get("metadata") or {}).get("labels") or {})
    for kind, entries in (("container", containers), ("volume", spec.get("volumes") or [])):
        for name in _repeated([entry.get("name") for entry in entries]):
            yield f"{where} has two {kind}s named {name!r}; rename one"
    for volume in spec.get("volumes") or []:
        if "hostPath" in volume:
            yield (
                f"{where}: volume {volume.get('name')!r} is a hostPath; mounting the host's /dev/infiniband shows devices that are "
                f"not EFA, and NCCL falls back to TCP. Devices come from the resource {names.EFA_RESOURCE}; remove the volume"
            )
    for container in [*(spec.get("initContainers") or []), *containers]:
        for rule in _CONTAINER_RULES:
            yield from rule(f"{where}, container {container.get('name')!r}", container, spec)


def label_problems(where: str, labels: Mapping[str, Any]) -> Iterator[str]:
    """Label values that Kubernetes refuses."""
    for key, value in labels.items():
        if is_token(value):
            continue
        if not isinstance(value, str) or len(value) > LABEL_VALUE_LIMIT or not _LABEL_VALUE.fullmatch(value):
            length = len(value) if isinstance(value, str) else 0
            yield (
                f"{where}: label {key} must be a string of at most {LABEL_VALUE_LIMIT} letters, digits, '-', '_' or '.', got "
                f"{length} characters: {value!r}; shorten the name it comes from"
            )


def quantity(value: Any) -> float | None:
    """``"160Gi"`` -> bytes, ``"500m"`` -> 0.5; None where it is a token, negative or no quantity."""
    if isinstance(value, bool) or is_token(value):
        return None
    if isinstance(value, (int, float)):
        return float(value) if value >= 0 else None
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    return float(match.group(1)) * _FACTORS[match.group(2)] if match else None


def _repeated(values: list[Any]) -> list[Any]:
    return sorted({value for value in values if values.count(value) > 1 and value is not None})


def _resources(where: str, container: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for kind, amounts in (("request", requests), ("limit", limits)):
        for key, value in amounts.items():
            if quantity(value) is None and not is_token(value):
                yield f"{where}: {kind} {key} must be a quantity such as 4, 500m or 160Gi, got {value!r}"
    for key in sorted({*requests, *limits}):
        extended = "/" in key
        request, limit = quantity(requests.get(key)), quantity(limits.get(key))
        if extended and key in requests and key not in limits:
            yield f"{where}: {key} has a request of {requests[key]} and no limit; Kubernetes wants both, equal"
        elif request is None or limit is None:
            continue
        elif extended and request != limit:
            yield f"{where}: request {requests[key]} of {key} differs from the limit {limits[key]}; make them equal"
        elif request > limit:
            yield f"{where}: request {requests[key]} of {key} exceeds the limit {limits[key]}; requests must not exceed limits"


def _mounts(where: str, container: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    volumes = {volume.get("name"): volume for volume in spec.get("volumes") or []}
    mounts = container.get("volumeMounts") or []
    for path in _repeated([mount.get("mountPath") for mount in mounts]):
        yield f"{where} mounts two volumes at {path}; remove one"
    memory = quantity(((container.get("resources") or {}).get("limits") or {}).get("memory"))
    for mount in mounts:
        volume = volumes.get(mount.get("name"))
        if volume is None:
            yield f"{where} mounts {mount.get('name')!r} at {mount.get('mountPath')}, but the pod has no such volume; add it"
            continue
        in_memory = (volume.get("emptyDir") or {}).get("medium") == "Memory"
        size = quantity((volume.get("emptyDir") or {}).get("sizeLimit"))
        if in_memory and size is not None and memory is not None and size > memory:
            yield (
                f"{where}: the memory volume {mount['name']!r} may grow to {volume['emptyDir']['sizeLimit']}, over the container's "
                f"memory limit {container['resources']['limits']['memory']}; lower its sizeLimit"
            )


def _environment(where: str, container: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    entries = container.get("env") or []
    for name in _repeated([entry.get("name") for entry in entries]):
        yield f"{where} sets the variable {name} twice; remove one"
    for entry in entries:
        name, value = entry.get("name"), entry.get("value")
        if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
            yield f"{where}: {name!r} is no name of an environment variable"
        elif "valueFrom" not in entry and not isinstance(value, str):
            yield f"{where}: variable {name} must be a string, got {value!r}; quote it"
        elif name == "LD_LIBRARY_PATH":
            yield (
                f"{where} sets LD_LIBRARY_PATH, which replaces the image's own value: NCCL would lose the EFA plugin and use TCP; "
                f"extend it inside the command instead"
            )
        elif name == "GLOO_SOCKET_IFNAME" and isinstance(value, str) and not is_token(value) and re.search(r"[\^=,]", value):
            yield f"{where}: GLOO_SOCKET_IFNAME must be one interface's name, got {value!r} (gloo crashes on patterns)"


def _security(where: str, container: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    context = container.get("securityContext") or {}
    if context.get("privileged"):
        yield (
            f"{where} is privileged; it would see all devices of the host, EFA or not. GPUs and EFA interfaces come from resource "
            f"requests; set privileged to false"
        )


_CONTAINER_RULES: tuple[Callable[[str, Mapping[str, Any], Mapping[str, Any]], Iterator[str]], ...] = (
    _resources, _mounts, _environment, _security,
)  # fmt: skip
