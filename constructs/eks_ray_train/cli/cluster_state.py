"""What the API's objects say about nodes, pods and what keeps them from being ready. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eks_ray_train.manifests.names import EFA_RESOURCE, GPU_RESOURCE
from eks_ray_train.node_labels import GPU_ROLE, ROLE_LABEL

INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
ZONE_LABEL = "topology.kubernetes.io/zone"


@dataclass(frozen=True, kw_only=True)
class Node:
    """One Kubernetes node. ``gpus`` and ``efa``: what pods may ask for, 0 where no device plugin offers any."""

    name: str
    role: str
    instance_type: str
    zone: str
    ready: bool
    gpus: int
    efa: int
    why: str

    @property
    def is_gpu(self) -> bool:
        return self.role == GPU_ROLE


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One Ray pod. ``kind``: head or worker; ``image_id``: what the tag meant when it was pulled, empty before that."""

    name: str
    kind: str
    node: str
    container: str
    image: str
    image_id: str
    ready: bool
    why: str
    created: str = ""


def read_node(node: Mapping[str, Any]) -> Node:
    """A node of the API."""
    metadata, status = node.get("metadata") or {}, node.get("status") or {}
    labels = metadata.get("labels") or {}
    allocatable = status.get("allocatable") or {}
    state: dict[str, Any] = next((c for c in status.get("conditions") or [] if c.get("type") == "Ready"), {})
    cordoned = bool((node.get("spec") or {}).get("unschedulable"))
    why = ""
    if state.get("status") != "True":
        why = f"{state.get('reason', 'NotReady')}: {state.get('message', 'the kubelet has not reported yet')}"
    elif cordoned:
        why = "cordoned: no new pod is placed there (an update, a repair, the spending limit, or kubectl cordon)"
    return Node(
        name=str(metadata.get("name", "?")),
        role=str(labels.get(ROLE_LABEL, "")),
        instance_type=str(labels.get(INSTANCE_TYPE_LABEL, "?")),
        zone=str(labels.get(ZONE_LABEL, "?")),
        ready=not why,
        gpus=_count(allocatable.get(GPU_RESOURCE)),
        efa=_count(allocatable.get(EFA_RESOURCE)),
        why=why,
    )


def read_pod(pod: Mapping[str, Any]) -> Pod:
    """A Ray pod of the API."""
    metadata, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    container = (spec.get("containers") or [{}])[0]
    name = str(container.get("name", ""))
    state: dict[str, Any] = next((s for s in status.get("containerStatuses") or [] if s.get("name") == name), {})
    why = why_not_ready(pod)
    return Pod(
        name=str(metadata.get("name", "?")),
        kind=str((metadata.get("labels") or {}).get("ray.io/node-type", "?")),
        node=str(spec.get("nodeName") or ""),
        container=name,
        image=str(container.get("image", "")),
        image_id=str(state.get("imageID") or ""),
        ready=not why,
        why=why,
        created=str(metadata.get("creationTimestamp") or ""),
    )


def why_not_ready(pod: Mapping[str, Any]) -> str:
    """Why a pod is not ready, in the scheduler's or the kubelet's words; empty where it is."""
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return "it is being deleted"
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    if status.get("phase") == "Running" and (conditions.get("Ready") or {}).get("status") == "True":
        return ""
    for entry in status.get("containerStatuses") or []:
        waiting = (entry.get("state") or {}).get("waiting")
        # PodInitializing only says that an init container is still at work: that one knows more.
        if waiting and waiting.get("reason") not in ("PodInitializing", "ContainerCreating"):
            return f"{waiting.get('reason')}: {waiting.get('message', '')}".rstrip(": ")
    for entry in status.get("initContainerStatuses") or []:
        waiting, running = ((entry.get("state") or {}).get(kind) for kind in ("waiting", "running"))
        if waiting and waiting.get("reason") != "PodInitializing":
            return f"init container {entry.get('name')}: {waiting.get('reason')}: {waiting.get('message', '')}".rstrip(
                ": "
            )
        if running is not None:
            return f"init container {entry.get('name')} is running" + (
                " (it waits for the head)" if entry.get("name") == "wait-gcs-ready" else ""
            )
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason')}: {scheduled.get('message', '')}".rstrip(": ")
    if any((e.get("state") or {}).get("waiting") for e in status.get("containerStatuses") or []):
        return "its container is being created (the first pull of the image takes minutes)"
    for condition in conditions.values():
        if condition.get("status") != "True" and condition.get("message"):
            return f"{condition.get('reason')}: {condition['message']}"
    return f"phase {status.get('phase', 'unknown')}"


def replicas_of(ray_cluster: Mapping[str, Any]) -> int:
    """Worker pods that the RayCluster object asks for."""
    return sum(
        int(group.get("replicas") or 0) for group in (ray_cluster.get("spec") or {}).get("workerGroupSpecs") or []
    )


def not_seen_by_operator(ray_cluster: Mapping[str, Any]) -> bool:
    """Whether the operator has not (or never) acted on the object's newest specification: it refuses some that the API accepts."""
    generation = (ray_cluster.get("metadata") or {}).get("generation")
    observed = (ray_cluster.get("status") or {}).get("observedGeneration")
    return generation is not None and observed != generation


def event_line(event: Mapping[str, Any]) -> str:
    """``Pod ray-train-worker-x: FailedScheduling: 0/3 nodes …`` with how often it came."""
    about = event.get("involvedObject") or {}
    count = (event.get("series") or {}).get("count") or event.get("count") or 1
    text = " ".join(str(event.get("message", "")).split())[:240]
    return f"{about.get('kind', '?')} {about.get('name', '?')}: {event.get('reason', '?')}: {text}" + (
        f" (x{count})" if count > 1 else ""
    )


def events_about(events: Iterable[Mapping[str, Any]], names: Iterable[str]) -> list[str]:
    """Lines of the events about these objects, the newest first, each reason once an object."""
    wanted = set(names)
    seen: set[tuple[str, str]] = set()
    lines = []
    for event in events:
        name = str((event.get("involvedObject") or {}).get("name"))
        key = (name, str(event.get("reason")))
        if name in wanted and key not in seen:
            seen.add(key)
            lines.append(event_line(event))
    return lines


def _count(value: Any) -> int:
    text = str(value or "0")
    return int(text) if text.isdigit() else 0
