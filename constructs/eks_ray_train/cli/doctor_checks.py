"""The checks of ``doctor`` on the deployed cluster, in the order in which one rests on the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from eks_ray_train.errors import ClusterNotReadyError
from eks_ray_train.instances import get_instance_type

from .cluster_state import Node, Pod, read_node, read_pod
from .doctor_report import Check, Finding, ok, wrong

if TYPE_CHECKING:
    from eks_ray_train.settings import Settings

    from .doctor_pod import PodFacts
    from .kube_objects import KubeObjects


class ClusterFacts:
    """What the checks look at, each asked for once. ``open_session`` gives (session, region), ``open_objects`` the API of the
    cluster that was described (closed by whoever gave it)."""

    def __init__(
        self,
        settings: Settings,
        open_session: Callable[[], tuple[Any, str]],
        open_objects: Callable[[Any, Any], KubeObjects],
    ) -> None:
        self.settings = settings
        self._open_session = open_session
        self.instance = get_instance_type(
            settings.gpu_instance_type, accept_unverified_layout=settings.accept_unverified_layout
        )
        self._open_objects = open_objects

    @cached_property
    def _session_and_region(self) -> tuple[Any, str]:
        return self._open_session()

    @property
    def session(self) -> Any:
        return self._session_and_region[0]

    @property
    def region(self) -> str:
        return self._session_and_region[1]

    @property
    def cluster_name(self) -> str:
        return str(self.settings.existing_cluster.get("name") or self.settings.cluster_name)

    @cached_property
    def eks(self) -> Any:
        from .eks_access import describe_cluster

        return describe_cluster(self.session, name=self.cluster_name, region=self.region)

    @cached_property
    def objects(self) -> KubeObjects:
        return self._open_objects(self.eks, self.session)

    @cached_property
    def nodes(self) -> list[Node]:
        return [read_node(node) for node in self.objects.nodes()]

    @property
    def gpu_nodes(self) -> list[Node]:
        return [node for node in self.nodes if node.is_gpu]

    @cached_property
    def pods(self) -> list[Pod]:
        return [read_pod(pod) for pod in self.objects.ray_pods()]

    @property
    def workers(self) -> list[Pod]:
        return [pod for pod in self.pods if pod.kind == "worker"]

    @cached_property
    def warnings(self) -> list[dict[str, Any]]:
        return self.objects.warnings()

    @property
    def pod_facts(self) -> list[PodFacts]:
        """Answers of every worker that runs; raises ClusterNotReadyError where none can be asked."""
        found = self._pod_facts
        if isinstance(found, Exception):
            raise found
        return found

    @cached_property
    def _pod_facts(self) -> list[PodFacts] | Exception:
        """Kept also where it failed: each of the checks that need it would wait as long again."""
        from .doctor_pod import ask_pod

        running = [pod for pod in self.workers if pod.ready]
        if not running:
            return ClusterNotReadyError("no worker pod is ready, so nothing can be asked inside one; see to the pods first")
        try:
            return [ask_pod(self.objects, pod) for pod in running]
        except Exception as error:
            return error


def who(facts: ClusterFacts) -> Finding:
    """Credentials: a region and a profile to ask with, and STS knows them."""
    from .eks_access import who_is_calling

    return ok(who_is_calling(facts.session, name=facts.cluster_name, region=facts.region))


def cluster(facts: ClusterFacts) -> Finding:
    """The EKS API describes the cluster, and it is ACTIVE, or UPDATING, during which its API answers too."""
    eks = facts.eks
    access = f"public for {', '.join(eks.public_cidrs) or 'all'}" if eks.public else "private: only from inside the VPC"
    return ok(f"{eks.name} in {eks.region} is {eks.status}; endpoint {access}")


def endpoint(facts: ClusterFacts) -> Finding:
    """Its Kubernetes API answers this machine, whoever it takes us for."""
    from .kube_errors import Forbidden, UnknownCaller

    try:
        return ok(f"Kubernetes {facts.objects.version()} answers")
    except (Forbidden, UnknownCaller):
        return ok("the Kubernetes API answers")


def access(facts: ClusterFacts) -> Finding:
    """The cluster knows this identity, and lets it see what a run needs."""
    facts.pods  # noqa: B018 (asking is the check)
    return ok(f"this identity may see the pods in namespace {facts.settings.namespace}")


def nodes(facts: ClusterFacts) -> Finding:
    """All GPU nodes are ready, of the declared type, in one zone."""
    from .node_groups import launch_problems

    settings, have = facts.settings, facts.gpu_nodes
    ready = [node for node in have if node.ready]
    problems = [f"{node.name}: {node.why}" for node in have if not node.ready]
    zones = sorted({node.zone for node in have})
    if len(have) < settings.gpu_node_count:
        problems += launch_problems(
            facts.session, cluster=facts.cluster_name, region=facts.region, wanted=settings.gpu_node_count
        )
    if len(ready) < settings.gpu_node_count:
        lines = [f"{len(ready)} of {settings.gpu_node_count} GPU nodes are ready", *problems]
        return wrong(
            "\n".join(lines),
            "eks-ray-train capacity find shows where there is capacity; eks-ray-train scale starts nodes again",
        )
    other = sorted({node.instance_type for node in have} - {settings.gpu_instance_type})
    if other:
        return wrong(
            f"GPU nodes of type {', '.join(other)}, the settings say {settings.gpu_instance_type}",
            "deploy, or correct cdk.json",
        )
    if len(zones) > 1:
        return wrong(
            f"GPU nodes in {', '.join(zones)}: EFA does not cross zones", "set gpu_zone in cdk.json and deploy"
        )
    if settings.gpu_zone and zones != [settings.gpu_zone]:
        return wrong(
            f"GPU nodes in {zones[0]}, the settings say {settings.gpu_zone}", "deploy, or correct gpu_zone in cdk.json"
        )
    system = [node for node in facts.nodes if node.role == "system" and not node.ready]
    if system:
        return wrong(
            "\n".join(f"system node {node.name}: {node.why}" for node in system), "the head and the operator run there"
        )
    return ok(f"{len(ready)} {settings.gpu_instance_type} in {zones[0]}")


def device_plugins(facts: ClusterFacts) -> Finding:
    """Both device plugins run on every GPU node."""
    from eks_ray_train.helm import efa_device_plugin_release, nvidia_device_plugin_release

    settings = facts.settings
    releases = [efa_device_plugin_release(settings.efa_device_plugin_version)]
    if settings.ami_family != "bottlerocket":  # it brings NVIDIA's plugin itself
        releases.insert(0, nvidia_device_plugin_release(settings.nvidia_device_plugin_version))
    good, bad = [], []
    want = len(facts.gpu_nodes)
    for release in releases:
        found = [s for s in facts.objects.daemon_sets(release.namespace) if release.release in s["metadata"]["name"]]
        status = found[0].get("status", {}) if found else {}
        wanted, ready = int(status.get("desiredNumberScheduled") or 0), int(status.get("numberReady") or 0)
        text = f"{release.release} {ready}/{wanted}"
        if not found:
            bad.append(f"there is no DaemonSet {release.release} in {release.namespace}")
        elif wanted < want:
            bad.append(
                f"{text} ready: it wants {wanted} of {want} GPU nodes, so a taint or a label keeps it away from the others"
            )
        elif ready < wanted:
            bad.append(
                f"{text} ready: kubectl -n {release.namespace} describe daemonset {found[0]['metadata']['name']}"
            )
        else:
            good.append(text)
    if bad:
        return wrong("\n".join(bad), "deploy the cluster's stack again; without both, no pod gets a GPU or EFA")
    return ok(", ".join(good))


def allocatable(facts: ClusterFacts) -> Finding:
    """Every GPU node offers what its type has."""
    row = facts.instance
    bad = [
        f"{node.name} offers {have} of {want} {what}"
        for node in facts.gpu_nodes
        for what, have, want in (("GPUs", node.gpus, row.gpus), ("EFA interfaces", node.efa, row.efa_interfaces))
        if have != want
    ]
    if bad:
        return wrong(
            "\n".join(bad),
            "missing EFA: the launch template's interfaces or the EFA plugin; missing GPUs: the driver or NVIDIA's plugin",
        )
    return ok(f"{row.gpus} GPUs and {row.efa_interfaces} EFA interfaces on each of {len(facts.gpu_nodes)} nodes")


def checks() -> Sequence[Check[ClusterFacts]]:
    """All checks in order."""
    from . import doctor_ray as ray

    api, pods = ("access entry",), ("access entry", "pods")
    return (
        Check(name="credentials", look=who, error_is_wrong=True),
        Check(name="cluster", look=cluster, needs=("credentials",), error_is_wrong=True),
        Check(name="endpoint", look=endpoint, needs=("cluster",), error_is_wrong=True),
        Check(name="access entry", look=access, needs=("endpoint",), error_is_wrong=True),
        Check(name="nodes and zones", look=nodes, needs=api),
        Check(name="device plugins", look=device_plugins, needs=api),
        Check(name="allocatable", look=allocatable, needs=api),
        Check(name="operator", look=ray.operator, needs=api),
        Check(name="RayCluster", look=ray.ray_cluster, needs=api),
        Check(name="pods", look=ray.pods, needs=api),
        Check(name="driver and EFA", look=ray.drivers, needs=pods),
        Check(name="fi_info", look=ray.fabric, needs=pods),
        Check(name="versions", look=ray.versions, needs=pods),
        Check(name="storage", look=ray.storage, needs=pods),
        Check(name="image", look=ray.image, needs=api),
    )
