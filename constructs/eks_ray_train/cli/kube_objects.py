"""Objects of the deployed cluster as its API gives them (plain JSON), and programs run inside its pods."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .kube_errors import within

if TYPE_CHECKING:
    from .kube import KubeCluster

CLOSE_S = 5.0  # closing a WebSocket takes up to 3 s


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a program in a pod answered. ``code`` None: it did not end in the time that it was given."""

    code: int | None
    out: str
    err: str


class KubeObjects:
    """Questions to one cluster's API. Every call raises ClusterNotReadyError (NotThere where there is no such object)."""

    def __init__(self, kube: KubeCluster) -> None:
        self.kube = kube
        self.namespace, self.ray_cluster_name = kube.namespace, kube.ray_cluster

    def _ask(self, what: str, method: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The answer's JSON. Raw, since the client's own models refuse some real objects that lack an optional field."""
        found: dict[str, Any] = self._ask_and_read(what, _object, method, *args, **kwargs)
        return found

    def _list(self, what: str, method: Any, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        """The objects of an answer that is a list."""
        found: list[dict[str, Any]] = self._ask_and_read(what, _items, method, *args, **kwargs)
        return found

    def _ask_and_read(self, what: str, read: Callable[[Any], Any], method: Any, *args: Any, **kwargs: Any) -> Any:
        from kubernetes.client.exceptions import ApiException

        def raw(*given: Any, **named: Any) -> Any:
            answer = method(*given, _preload_content=False, **named)
            if answer.status >= 400:
                raise ApiException(status=answer.status, reason=answer.reason)
            return read(json.loads(answer.data))

        return self.kube.call(what, raw, *args, **kwargs)

    def version(self) -> str:
        """The API server's version: it answers whoever can reach it with a token that it knows."""
        from kubernetes import client

        return str(self._ask("read its version", client.VersionApi(self.kube.api()).get_code).get("gitVersion", "?"))

    def nodes(self) -> list[dict[str, Any]]:
        """All nodes."""
        from kubernetes import client

        return self._list("list nodes", client.CoreV1Api(self.kube.api()).list_node)

    def ray_pods(self) -> list[dict[str, Any]]:
        """Head and workers of the RayCluster."""
        from kubernetes import client

        core = client.CoreV1Api(self.kube.api())
        labels = f"ray.io/cluster={self.ray_cluster_name}"
        return self._list("list pods", core.list_namespaced_pod, self.namespace, label_selector=labels)

    def ray_cluster(self) -> dict[str, Any]:
        """The RayCluster object."""
        from kubernetes import client

        from .kube import RAY_GROUP, RAY_PLURAL, RAY_VERSION

        custom = client.CustomObjectsApi(self.kube.api())
        return self._ask(
            "read rayclusters", custom.get_namespaced_custom_object,
            RAY_GROUP, RAY_VERSION, self.namespace, RAY_PLURAL, self.ray_cluster_name,
        )  # fmt: skip

    def warnings(self) -> list[dict[str, Any]]:
        """Warning events in the cluster's namespace, newest first (Kubernetes keeps them for an hour)."""
        from kubernetes import client

        core = client.CoreV1Api(self.kube.api())
        found = self._list(
            "list events", core.list_namespaced_event, self.namespace, field_selector="type=Warning", limit=500
        )
        return sorted(found, key=event_time, reverse=True)

    def daemon_sets(self, namespace: str) -> list[dict[str, Any]]:
        """DaemonSets of a namespace."""
        from kubernetes import client

        apps = client.AppsV1Api(self.kube.api())
        return self._list(f"list DaemonSets of {namespace}", apps.list_namespaced_daemon_set, namespace)

    def deployment(self, namespace: str, name: str) -> dict[str, Any]:
        """One Deployment."""
        from kubernetes import client

        apps = client.AppsV1Api(self.kube.api())
        return self._ask(f"read the Deployment {namespace}/{name}", apps.read_namespaced_deployment, name, namespace)

    def run_in_pod(self, pod: str, container: str, command: Sequence[str], *, timeout_s: float) -> Ran:
        """Run a program in a pod and wait for it, at most ``timeout_s`` seconds. NoAnswer where that many pass without a word."""
        from kubernetes import client
        from kubernetes.stream import stream

        until = time.monotonic() + timeout_s

        def begin(*, _request_timeout: Any) -> Any:
            return stream(
                client.CoreV1Api(self.kube.api()).connect_get_namespaced_pod_exec, pod, self.namespace,
                container=container, command=list(command), stdin=False, stdout=True, stderr=True, tty=False,
                _preload_content=False, _request_timeout=_request_timeout,
            )  # fmt: skip

        def run() -> Ran:
            channel = self.kube.call(f"run a program in pod {pod}", begin)
            try:
                channel.run_forever(timeout=max(0.0, until - time.monotonic()))
                out, err = channel.read_stdout(timeout=0) or "", channel.read_stderr(timeout=0) or ""
                return Ran(code=None if channel.is_open() else channel.returncode, out=out, err=err)
            finally:
                channel.close()

        return within(timeout_s + CLOSE_S, f"running a program in pod {pod}", run)


def _object(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise TypeError(f"no object: {str(answer)[:80]}")
    return answer


def _items(answer: Any) -> list[dict[str, Any]]:
    items = _object(answer).get("items")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise TypeError(f'"items" is no list of objects: {str(items)[:80]}')
    return items


def event_time(event: dict[str, Any]) -> str:
    """When an event was last seen (RFC 3339, sorts as text)."""
    series = event.get("series") or {}
    metadata = event.get("metadata") or {}
    return str(
        event.get("lastTimestamp")
        or series.get("lastObservedTime")
        or event.get("eventTime")
        or metadata.get("creationTimestamp")
        or ""
    )
