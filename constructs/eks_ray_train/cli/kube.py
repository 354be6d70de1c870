"""The deployed cluster: its Kubernetes API with an IAM token, the Ray head by its labels, Ray's token, the dashboard's port."""

from __future__ import annotations

import base64
import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eks_ray_train.errors import ClusterNotReadyError
from eks_ray_train.instances import get_instance_type
from eks_ray_train.manifests.names import ACTIVE_RUN_ANNOTATION, DASHBOARD_PORT
from eks_ray_train.settings import Settings, load_settings

from .connect import Target
from .eks_access import EksCluster, NoAnswer, OddAnswer, TokenSource, caller_arn, describe_cluster, make_session
from .jobs_api import JobsClient, Unreachable
from .kube_errors import Forbidden, NotThere, UnknownCaller, status_of, within
from .kube_objects import KubeObjects
from .node_groups import launch_problems
from .port_forward import PortForward
from .waiting import ClusterWait

ENDPOINT_VARIABLE = "EKS_RAY_TRAIN_ENDPOINT"
TIMEOUTS = (3, 6)  # seconds to connect, to read
FORWARD_S = 20.0  # for a forwarded connection to come about; the client does not limit it
RAY_GROUP, RAY_VERSION, RAY_PLURAL = "ray.io", "v1", "rayclusters"
# KubeRay's name for the key, and the variable that it gives to the pods (kuberay v1.7, ray-operator/controllers/ray/utils).
TOKEN_KEY, TOKEN_VARIABLE = "auth_token", "RAY_AUTH_TOKEN"


@dataclass(frozen=True, kw_only=True)
class HeadPod:
    """A Ray head that is ready. ``secret``: (name, key) of Ray's token as the pod itself refers to it, None where it does not."""

    name: str
    secret: tuple[str, str] | None


class KubeCluster:
    """The Kubernetes API of one EKS cluster, and the RayCluster that the settings name there."""

    def __init__(self, eks: EksCluster, tokens: TokenSource, *, namespace: str, ray_cluster: str, caller: Any, ca_file: str) -> None:
        from kubernetes import client

        self._eks, self._tokens, self._caller = eks, tokens, caller
        self.namespace, self.ray_cluster = namespace, ray_cluster
        configuration = client.Configuration()
        configuration.host = os.environ.get(ENDPOINT_VARIABLE) or eks.endpoint
        configuration.ssl_ca_cert = ca_file
        configuration.retries = False  # an endpoint that does not answer must be told within 10 s
        if configuration.host != eks.endpoint:
            configuration.tls_server_name = eks.host  # through a tunnel the certificate still names the endpoint
        configuration.api_key["BearerToken"] = tokens.token()
        configuration.api_key_prefix["BearerToken"] = "Bearer"
        configuration.refresh_api_key_hook = self._renew  # type: ignore[assignment]
        self._configuration = configuration

    def _renew(self, configuration: Any) -> None:
        configuration.api_key["BearerToken"] = self._tokens.token()

    def api(self) -> Any:
        """A client of its own: port forwarding changes the one it uses while it connects."""
        from kubernetes import client

        return client.ApiClient(self._configuration)

    def call(self, what: str, method: Any, *args: Any, **kwargs: Any) -> Any:
        """``method`` of the kubernetes client, within short time limits; its errors become ones that say what to do."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return method(*args, _request_timeout=TIMEOUTS, **kwargs)
        except ApiException as error:
            status = status_of(error)
            if status == 401:
                raise UnknownCaller(
                    f"cluster {self._eks.name} does not know {self._caller()}; add the IAM role's ARN (for a signed-in role: with "
                    "its path) to admin_principals in cdk.json and deploy, or use the profile that deployed it"
                ) from None
            if status == 403:
                raise Forbidden(
                    f"{self._caller()} may not {what} in namespace {self.namespace} of cluster {self._eks.name}; "
                    "give its access entry a policy that allows it (admin_principals in cdk.json does)"
                ) from None
            if status == 0:
                raise self._eks.unreachable(str(error.reason)) from None
            if status == 404:
                raise NotThere(f"cannot {what}: there is none such in namespace {self.namespace} ({error.reason})") from None
            failed = NoAnswer if status >= 500 or status == 429 else ClusterNotReadyError
            raise failed(
                f"the API of cluster {self._eks.name} failed to {what} (HTTP {status} {error.reason}): {str(error.body)[:300]}; "
                "try again, and see eks-ray-train doctor"
            ) from None
        except (HTTPError, OSError) as error:
            raise self._eks.unreachable(f"{type(error).__name__}: {error}"[:200]) from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OddAnswer(f"the API of cluster {self._eks.name} could not {what}", error) from None

    def head(self) -> HeadPod:
        """The head that is ready. Raises ClusterNotReadyError that says what is missing instead."""
        from kubernetes import client

        labels = f"ray.io/cluster={self.ray_cluster},ray.io/node-type=head"
        core = client.CoreV1Api(self.api())
        pods = self.call("list pods", core.list_namespaced_pod, self.namespace, label_selector=labels).items
        ready = [pod for pod in pods if _is_ready(pod)]
        if not ready:
            if not pods:
                raise ClusterNotReadyError(
                    f"no Ray head in namespace {self.namespace} of cluster {self._eks.name} ({labels}); deploy the training stack, or "
                    f"see why KubeRay made none: kubectl -n {self.namespace} describe raycluster {self.ray_cluster}"
                )
            raise ClusterNotReadyError(
                f"the Ray head {pods[0].metadata.name} is not ready: {_why(pods[0])}; "
                f"kubectl -n {self.namespace} describe pod {pods[0].metadata.name}"
            )
        pod = max(ready, key=lambda p: p.metadata.creation_timestamp)
        return HeadPod(name=pod.metadata.name, secret=_token_reference(pod))

    def ray_token(self, head: HeadPod) -> str | None:
        """Ray's token from the operator's secret; None where the head uses none. Raises ClusterNotReadyError where it is missing."""
        from kubernetes import client

        name, key = head.secret or (self.ray_cluster, TOKEN_KEY)
        try:
            secret = self.call("read secrets", client.CoreV1Api(self.api()).read_namespaced_secret, name, self.namespace)
        except NotThere:
            if head.secret is None:
                return None
            raise ClusterNotReadyError(
                f"the secret {name} with Ray's token is missing in namespace {self.namespace}, though the head {head.name} refers to it; "
                "the KubeRay operator makes it: look at its log, or delete the RayCluster and deploy again"
            ) from None
        if key not in (secret.data or {}):
            raise ClusterNotReadyError(f"the secret {name} in namespace {self.namespace} has no key {key} for Ray's token; delete the secret, and the KubeRay operator makes it anew")
        return base64.b64decode(secret.data[key]).decode().strip()

    def open_dashboard(self) -> Any:
        """One connection to the head's dashboard; finds the head anew, since it may have been replaced."""
        from kubernetes import client
        from kubernetes.stream import portforward

        core, head = client.CoreV1Api(self.api()), self.head().name
        forward = within(
            FORWARD_S,
            f"port forwarding to pod {head}",
            lambda: portforward(core.connect_get_namespaced_pod_portforward, head, self.namespace, ports=str(DASHBOARD_PORT)),
        )
        return forward.socket(DASHBOARD_PORT)

    def active_run(self) -> str | None:
        """The run that the RayCluster is marked with."""
        from kubernetes import client

        found = self.call(
            "read rayclusters", client.CustomObjectsApi(self.api()).get_namespaced_custom_object,
            RAY_GROUP, RAY_VERSION, self.namespace, RAY_PLURAL, self.ray_cluster,
        )  # fmt: skip
        return (found.get("metadata", {}).get("annotations") or {}).get(ACTIVE_RUN_ANNOTATION)

    def mark_busy(self, run: str | None) -> None:
        """Put the run's name on the RayCluster, or take it away (None): updates that restart its pods are refused meanwhile."""
        from kubernetes import client

        body = {"metadata": {"annotations": {ACTIVE_RUN_ANNOTATION: run}}}
        self.call(
            "annotate rayclusters", client.CustomObjectsApi(self.api()).patch_namespaced_custom_object,
            RAY_GROUP, RAY_VERSION, self.namespace, RAY_PLURAL, self.ray_cluster, body,
        )  # fmt: skip

    def clear_busy(self, run: str) -> None:
        """Take ``run``'s mark away; another run's mark stays."""
        if self.active_run() == run:
            self.mark_busy(None)

    def launch_problems(self, wanted_nodes: int) -> list[str]:
        """Why GPU nodes are missing, as the EKS API knows it."""
        session, region = make_session(self._eks.region)
        return launch_problems(session, cluster=self._eks.name, region=region, wanted=wanted_nodes)


def _is_ready(pod: Any) -> bool:
    conditions = {c.type: c.status for c in pod.status.conditions or []}
    return pod.metadata.deletion_timestamp is None and pod.status.phase == "Running" and conditions.get("Ready") == "True"


def _why(pod: Any) -> str:
    """Why a pod is not ready, in the scheduler's or the kubelet's words."""
    if pod.metadata.deletion_timestamp is not None:
        return "it is being deleted"
    for status in pod.status.container_statuses or []:
        waiting = status.state.waiting if status.state else None
        if waiting is not None:
            return f"{waiting.reason}: {waiting.message or ''}".rstrip(": ")
    for condition in pod.status.conditions or []:
        if condition.status != "True" and condition.message:
            return f"{condition.reason}: {condition.message}"
    return f"phase {pod.status.phase}"


def _token_reference(pod: Any) -> tuple[str, str] | None:
    for variable in pod.spec.containers[0].env or []:
        reference = variable.value_from.secret_key_ref if variable.value_from else None
        if variable.name == TOKEN_VARIABLE and reference is not None:
            return reference.name, reference.key
    return None


@contextlib.contextmanager
def _quiet_forwarders() -> Iterator[None]:
    """A connection that breaks ends the kubernetes client's forwarding thread with an exception; its traceback is not for the
    user, since the connection is made anew."""
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if not (args.thread and args.thread.name.startswith("Kubernetes port forward proxy")):
            before(args)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before


@contextlib.contextmanager
def open_cluster(settings: Settings) -> Iterator[KubeCluster]:
    """The Kubernetes API of the cluster that the settings name. Raises ClusterNotReadyError."""
    session, region = make_session(settings.region)
    name = str(settings.existing_cluster.get("name") or settings.cluster_name)
    with open_described(settings, describe_cluster(session, name=name, region=region), session) as kube:
        yield kube


@contextlib.contextmanager
def open_described(settings: Settings, eks: EksCluster, session: Any) -> Iterator[KubeCluster]:
    """The same where the EKS API has been asked already."""
    tokens = TokenSource(session, cluster=eks.name, region=eks.region)
    with tempfile.NamedTemporaryFile(suffix=".pem") as ca:
        ca.write(eks.ca)
        ca.flush()
        yield KubeCluster(
            eks, tokens, namespace=settings.namespace, ray_cluster=settings.ray_cluster_name,
            caller=lambda: caller_arn(session, eks.region), ca_file=ca.name,
        )  # fmt: skip


@contextlib.contextmanager
def deployed_target(cdk_json: Path, *, local_port: int = 0, wait: ClusterWait | None = None) -> Iterator[Target]:
    """The dashboard of the deployed RayCluster, forwarded to this machine. ``wait``: first until it has what a run needs.

    Raises ClusterNotReadyError, UsageError.
    """
    settings = load_settings(cdk_json)
    instance = get_instance_type(settings.gpu_instance_type, accept_unverified_layout=settings.accept_unverified_layout)
    with open_cluster(settings) as kube:
        if wait is not None:
            wanted = wait.wanted(declared=settings.gpu_node_count, gpus=instance.gpus, efa=instance.efa_interfaces)
            wait.for_pods(KubeObjects(kube), wanted, lambda: kube.launch_problems(wanted.nodes))
        head = kube.head()
        token = kube.ray_token(head)
        with _quiet_forwarders(), PortForward(kube.open_dashboard, local_port=local_port) as forward:
            client = JobsClient(
                f"http://127.0.0.1:{forward.port}", token=token,
                remedy=f"it is forwarded to the head {head.name} through the Kubernetes API: kubectl -n {kube.namespace} logs {head.name}",
            )  # fmt: skip
            try:
                version = client.version()
            except Unreachable as error:
                raise ClusterNotReadyError(f"{error}; {forward.last_error or 'the head closed the connection'}") from None
            try:
                if wait is not None:
                    wait.for_gpus(client, wanted)
                yield Target(
                    client=client,
                    name=f"RayCluster {kube.namespace}/{kube.ray_cluster} of {settings.cluster_name}",
                    ray_version=version,
                    nodes=settings.gpu_node_count,
                    instance=instance,
                    mark_busy=kube.mark_busy,
                    clear_busy=kube.clear_busy,
                )
            finally:
                client.close()
