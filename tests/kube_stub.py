"""A Kubernetes API with a whole training cluster in it (two g6.12xlarge, as deployed); tests take parts of it away.

Shapes as Kubernetes 1.36, the EKS AMI, both device plugins' charts and KubeRay 1.7 give them; exec by its WebSocket protocol.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

IMAGE = "public.ecr.aws/deep-learning-containers/ray:train-ml-cuda-v1.1"
DIGEST = "sha256:" + "ab" * 32
POD_IMAGE_ID = IMAGE.rpartition(":")[0] + "@" + DIGEST
NAMESPACE = "ray-train"


def node(
    name: str, *, role: str = "gpu", zone: str = "us-east-1a", gpus: int = 4, efa: int = 1, ready: bool = True
) -> dict[str, Any]:
    """A node; ``role`` gpu or system."""
    labels = {
        "eks-ray-train/role": role, "topology.kubernetes.io/zone": zone,
        "node.kubernetes.io/instance-type": "g6.12xlarge" if role == "gpu" else "m7i.xlarge",
    }  # fmt: skip
    allocatable = {"cpu": "47810m", "memory": "183228392Ki", "pods": "234"}
    if role == "gpu" and gpus:
        allocatable["nvidia.com/gpu"] = str(gpus)
    if role == "gpu" and efa:
        allocatable["vpc.amazonaws.com/efa"] = str(efa)
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
    }
    if not ready:
        condition = {
            "type": "Ready",
            "status": "False",
            "reason": "KubeletNotReady",
            "message": "cni plugin not initialized",
        }
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {"allocatable": allocatable, "conditions": [condition], "images": [{"sizeBytes": 1}]},
    }


def worker_pod(
    number: int, *, ready: bool = True, unschedulable: str = "", waiting: tuple[str, str] | None = None
) -> dict[str, Any]:
    """A worker; not ready for the given reason."""
    status: dict[str, Any] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    state: dict[str, Any] = {"running": {"startedAt": "2026-11-29T20:00:00Z"}}
    if unschedulable:
        scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unschedulable}
        status = {"phase": "Pending", "conditions": [scheduled]}
    elif waiting:
        state = {"waiting": {"reason": waiting[0], "message": waiting[1]}}
        status = {
            "phase": "Pending",
            "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}],
        }
    elif not ready:
        status["conditions"] = [
            {
                "type": "Ready",
                "status": "False",
                "reason": "ContainersNotReady",
                "message": "containers with unready status",
            }
        ]
    if not unschedulable:
        status["containerStatuses"] = [
            {"name": "ray-worker", "state": state, "imageID": "" if waiting else POD_IMAGE_ID}
        ]
    return {
        "metadata": {
            "name": f"ray-train-gpu-worker-{number}", "creationTimestamp": "2026-11-29T20:00:00Z",
            "labels": {"ray.io/cluster": "ray-train", "ray.io/node-type": "worker"},
        },
        "spec": {"nodeName": f"gpu-{number}", "containers": [{"name": "ray-worker", "image": IMAGE}]},
        "status": status,
    }  # fmt: skip


def daemon_set(name: str, *, wanted: int = 2, ready: int | None = None) -> dict[str, Any]:
    """A device plugin's DaemonSet."""
    return {
        "metadata": {"name": name},
        "status": {"desiredNumberScheduled": wanted, "numberReady": wanted if ready is None else ready},
    }


def warning(kind: str, name: str, reason: str, message: str, *, at: str = "2026-11-29T21:00:00Z") -> dict[str, Any]:
    """A Warning event."""
    return {
        "metadata": {"name": f"{name}.1"}, "type": "Warning", "reason": reason, "message": message, "count": 3,
        "lastTimestamp": at, "involvedObject": {"kind": kind, "name": name},
    }  # fmt: skip


# What the probe in a pod prints where all is well; keys as eks_ray_train.cli.doctor_pod reads them.
GOOD_POD: dict[str, Any] = {
    "ray": "2.58.0", "torch": "2.13.0", "python": "3.12.3",
    "driver": "580.95.05", "efa_module": "2.17.2g",
    "fi_info": {"code": 0, "domains": ["rdmap0s6-rdm"], "providers": ["efa"], "rma": True},
    "storage": {"path": "s3://bucket/runs", "ok": True},
}  # fmt: skip


@dataclass
class StubKubernetes:
    """Objects by kind. ``deny`` maps a path's part to an HTTP status; ``exec_answer`` says what a program in a pod prints."""

    nodes: list[dict[str, Any]] = field(
        default_factory=lambda: [node("system-1", role="system"), node("gpu-1"), node("gpu-2")]
    )
    workers: list[dict[str, Any]] = field(default_factory=lambda: [worker_pod(1), worker_pod(2)])
    daemon_sets: list[dict[str, Any]] = field(
        default_factory=lambda: [
            daemon_set("nvidia-device-plugin"),
            daemon_set("aws-efa-k8s-device-plugin"),
            daemon_set("aws-node", wanted=3),
        ]
    )
    operator: dict[str, Any] | None = field(
        default_factory=lambda: {
            "metadata": {"name": "kuberay-operator"},
            "spec": {
                "replicas": 1,
                "template": {"spec": {"containers": [{"image": "quay.io/kuberay/operator:v1.7.0"}]}},
            },
            "status": {"availableReplicas": 1},
        }
    )
    events: list[dict[str, Any]] = field(default_factory=list)
    replicas: int = 2
    generation: int = 3
    observed: int | None = 3
    has_ray_cluster: bool = True
    deny: dict[str, int] = field(default_factory=dict)
    node_groups: list[dict[str, Any]] = field(
        default_factory=lambda: [
            {"nodegroupName": "gpu", "status": "ACTIVE", "labels": {"eks-ray-train/role": "gpu"}, "scalingConfig": {"desiredSize": 2}, "health": {"issues": []}}
        ]
    )  # fmt: skip
    exec_answer: Callable[[str, list[str]], tuple[str, str, int]] = lambda pod, command: (
        json.dumps(GOOD_POD) + "\n",
        "",
        0,
    )
    on_nodes: Callable[[StubKubernetes], None] | None = None
    """Called at each question for the nodes, so that a test can let things come about."""

    def routes(self, app: web.Application) -> None:
        """Add this API's routes."""
        app.router.add_get("/version/", self._version)
        app.router.add_get("/api/v1/nodes", self._nodes)
        app.router.add_get(f"/api/v1/namespaces/{NAMESPACE}/events", self._events)
        app.router.add_get(f"/api/v1/namespaces/{NAMESPACE}/pods/{{name}}/exec", self._exec)
        app.router.add_get("/apis/apps/v1/namespaces/kube-system/daemonsets", self._daemon_sets)
        app.router.add_get("/apis/apps/v1/namespaces/kuberay-system/deployments/kuberay-operator", self._operator)
        app.router.add_get("/clusters/{name}/node-groups", self._node_groups)
        app.router.add_get("/clusters/{name}/node-groups/{group}", self._node_group)

    def denied(self, path: str) -> int | None:
        """The HTTP status that a question for ``path`` gets instead of an answer."""
        return next((status for part, status in self.deny.items() if part in path), None)

    def ray_cluster(self, annotations: dict[str, str]) -> dict[str, Any]:
        """The RayCluster object."""
        return {
            "metadata": {"name": "ray-train", "annotations": annotations, "generation": self.generation},
            "spec": {"rayVersion": "2.58.0", "workerGroupSpecs": [{"groupName": "gpu", "replicas": self.replicas}]},
            "status": {"state": "ready", "observedGeneration": self.observed} if self.observed is not None else {},
        }

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"major": "1", "minor": "36", "gitVersion": "v1.36.2-eks-1"})

    async def _nodes(self, _: web.Request) -> web.Response:
        if self.on_nodes is not None:
            self.on_nodes(self)
        return web.json_response({"kind": "NodeList", "items": self.nodes})

    async def _events(self, request: web.Request) -> web.Response:
        assert request.query["fieldSelector"] == "type=Warning"
        return web.json_response({"kind": "EventList", "items": self.events})

    async def _daemon_sets(self, _: web.Request) -> web.Response:
        return web.json_response({"kind": "DaemonSetList", "items": self.daemon_sets})

    async def _operator(self, _: web.Request) -> web.Response:
        if self.operator is None:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        return web.json_response(self.operator)

    async def _node_groups(self, _: web.Request) -> web.Response:
        return web.json_response({"nodegroups": [group["nodegroupName"] for group in self.node_groups]})

    async def _node_group(self, request: web.Request) -> web.Response:
        [group] = [g for g in self.node_groups if g["nodegroupName"] == request.match_info["group"]]
        return web.json_response({"nodegroup": group})

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        """Channel 1 is stdout, 2 stderr, 3 how it ended (a Status object)."""
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        out, err, code = self.exec_answer(request.match_info["name"], request.query.getall("command"))
        for channel, text in ((b"\x01", out), (b"\x02", err)):
            if text:
                await socket.send_bytes(channel + text.encode())
        status: dict[str, Any] = {"metadata": {}, "status": "Success"}
        if code:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            status = {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
        await socket.send_bytes(b"\x03" + json.dumps(status).encode())
        await asyncio.sleep(0.05)
        await socket.close()
        return socket
