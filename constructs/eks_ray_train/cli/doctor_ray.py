"""The later checks of ``doctor``: operator, RayCluster, pods, and what a program inside a worker sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eks_ray_train.versions import TORCH_VERSION

from .cluster_state import event_line, events_about, not_seen_by_operator, replicas_of
from .doctor_report import Finding, ok, unknown, wrong

if TYPE_CHECKING:
    from .doctor_checks import ClusterFacts

# First driver branch of CUDA 13.0, which the Ray Train image holds; older ones work by its compatibility libraries only.
# https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/index.html
CUDA13_DRIVER = 580


def operator(facts: ClusterFacts) -> Finding:
    """KubeRay's operator runs, in the version that the settings name."""
    from eks_ray_train.helm import kuberay_operator_release

    from .kube_errors import NotThere

    release = kuberay_operator_release(facts.settings.kuberay_version)
    look = f"kubectl -n {release.namespace} describe pods; kubectl -n {release.namespace} logs deployment/{release.release}"
    try:
        found = facts.objects.deployment(release.namespace, release.release)
    except NotThere:
        return wrong(f"there is no KubeRay operator in {release.namespace}", "deploy the cluster's stack")
    wanted = int((found.get("spec") or {}).get("replicas") or 0)
    available = int((found.get("status") or {}).get("availableReplicas") or 0)
    image = str(found["spec"]["template"]["spec"]["containers"][0].get("image", ""))
    if available < max(wanted, 1):
        return wrong(f"{available} of {max(wanted, 1)} operator pods are available", look)
    running = image.rpartition(":")[2].lstrip("v")
    if running != facts.settings.kuberay_version.lstrip("v") and "@" not in image:
        return wrong(
            f"the operator is {running}, the settings say {facts.settings.kuberay_version}",
            "deploy the cluster's stack",
        )
    return ok(f"KubeRay {running} runs")


def ray_cluster(facts: ClusterFacts) -> Finding:
    """The RayCluster is there, asks for the declared workers, and the operator has taken it up."""
    from .kube_errors import NotThere

    name, settings = facts.objects.ray_cluster_name, facts.settings
    try:
        found = facts.objects.ray_cluster()
    except NotThere:
        return wrong(f"there is no RayCluster {settings.namespace}/{name}", "deploy the training stack")
    said = [event_line(e) for e in facts.warnings if (e.get("involvedObject") or {}).get("kind") == "RayCluster"
            and (e.get("involvedObject") or {}).get("name") == name]  # fmt: skip
    if not_seen_by_operator(found):
        lines = ["the operator has not taken up the RayCluster's newest specification", *said[:3]]
        return wrong(
            "\n".join(lines), "the API server accepts what the operator refuses: correct what its Warning event names"
        )
    if replicas_of(found) != settings.gpu_node_count:
        return wrong(
            f"it asks for {replicas_of(found)} workers, the settings say {settings.gpu_node_count}",
            f"deploy, or eks-ray-train scale {settings.gpu_node_count}",
        )
    run = (found["metadata"].get("annotations") or {}).get("eks-ray-train/active-run")
    busy = f"; run {run} is active" if run else "; no run is active"
    older = f"; {len(said)} Warning events in the last hour, the newest: {said[0]}" if said else ""
    return ok(f"{settings.namespace}/{name} with {replicas_of(found)} workers{busy}{older}")


def pods(facts: ClusterFacts) -> Finding:
    """Head and all workers are ready."""
    heads = [pod for pod in facts.pods if pod.kind == "head" and pod.ready]
    ready = [pod for pod in facts.workers if pod.ready]
    want = facts.settings.gpu_node_count
    if heads and len(ready) >= want:
        return ok(f"head and {len(ready)} workers are ready")
    bad = [pod for pod in facts.pods if not pod.ready]
    lines = [
        f"{'head' if heads else 'no head'}, {len(ready)} of {want} workers ready",
        *(f"{pod.name}: {pod.why}" for pod in bad),
    ]
    lines += events_about(facts.warnings, [pod.name for pod in bad])[:4]
    return wrong("\n".join(lines), f"kubectl -n {facts.settings.namespace} get pods; the checks above may say why")


def drivers(facts: ClusterFacts) -> Finding:
    """NVIDIA's driver and the EFA kernel module, the same on every node."""
    asked = facts.pod_facts
    driver = sorted({pod.driver for pod in asked if pod.driver})
    module = sorted({pod.efa_module for pod in asked if pod.efa_module})
    if len(driver) > 1 or len(module) > 1:
        each = "\n".join(f"{pod.pod}: driver {pod.driver}, EFA module {pod.efa_module}" for pod in asked)
        return wrong(f"nodes differ\n{each}", "deploy: the node group replaces nodes with an older image")
    text = f"driver {driver[0] if driver else 'not readable'}, EFA module {module[0] if module else 'not readable'}"
    old = driver and int(driver[0].partition(".")[0]) < CUDA13_DRIVER
    if not driver or not module:
        return unknown(f"{text} from inside a worker")
    if old:
        return ok(f"{text}; older than CUDA 13's own ({CUDA13_DRIVER}): the image's compatibility libraries are used")
    return ok(text)


def fabric(facts: ClusterFacts) -> Finding:
    """libfabric lists every EFA interface inside every worker."""
    want = facts.instance.efa_interfaces
    missing = [pod for pod in facts.pod_facts if pod.fi_info_code is None]
    if missing:
        return unknown(
            f"{missing[0].pod}: fi_info could not be run ({missing[0].fi_info_error or 'not installed'})",
            "use the Ray Train image",
        )
    bad = []
    for pod in facts.pod_facts:
        if pod.fi_info_code != 0 or not any(name.startswith("efa") for name in pod.providers):
            bad.append(f"{pod.pod}: fi_info -p efa finds no EFA ({pod.fi_info_error or 'no provider'})")
        elif len(pod.domains) < want:
            bad.append(f"{pod.pod}: {len(pod.domains)} of {want} EFA devices ({', '.join(pod.domains)})")
    if bad:
        return wrong("\n".join(bad), "NCCL would use TCP, or fail; see the checks 'allocatable' and 'device plugins'")
    rma = "with" if all(pod.rma for pod in facts.pod_facts) else "without"
    return ok(f"EFA with {want} device{'s' if want != 1 else ''} in each of {len(facts.pod_facts)} workers, {rma} RDMA")


def versions(facts: ClusterFacts) -> Finding:
    """What the pods load is what the settings say."""
    asked, want = facts.pod_facts, facts.settings.ray_version
    bad = [f"{pod.pod}: Ray {pod.ray}, the settings say {want}" for pod in asked if pod.ray and pod.ray != want]
    if bad:
        return wrong(
            "\n".join(bad), "set ray_version in cdk.json to what dlc_image holds, or choose the other image, and deploy"
        )
    if any(pod.ray is None for pod in asked):
        return unknown("the pods' Python has no Ray that says its version")
    torch = sorted({str(pod.torch) for pod in asked})
    note = "" if torch == [TORCH_VERSION] else f" (tested with {TORCH_VERSION})"
    return ok(f"Ray {want}, PyTorch {', '.join(torch)}{note}")


def storage(facts: ClusterFacts) -> Finding:
    """A worker can write where checkpoints go."""
    asked = facts.pod_facts
    bad = [f"{pod.pod}: {pod.storage_path}: {pod.storage_error}" for pod in asked if pod.storage_ok is False]
    if bad:
        return wrong(
            "\n".join(bad),
            "the pods' service account needs its Pod Identity association and the bucket (or /fsx its claim)",
        )
    path = asked[0].storage_path
    if path is None:
        if facts.settings.storage == "none":
            return ok("the settings say none: give the job --storage-path")
        return wrong(
            f"the settings say {facts.settings.storage}, but the pods have no storage path", "deploy the training stack"
        )
    return ok(f"every worker can write to {path}")


def image(facts: ClusterFacts) -> Finding:
    """All pods run one image: a tag that moved between two pulls gives head and workers different ones."""
    running = [pod for pod in facts.pods if pod.image_id]
    if not running:
        return unknown("no Ray pod has pulled its image yet")
    digests = {pod.name: pod.image_id.rpartition("@")[2] for pod in running}
    named = facts.settings.dlc_image
    if len(set(digests.values())) > 1:
        each = "\n".join(f"{name}: {digest}" for name, digest in digests.items())
        return wrong(
            f"the pods run different images under one tag\n{each}", "name a digest in dlc_image (…@sha256:…) and deploy"
        )
    digest = next(iter(digests.values()))
    if "@" in named and named.rpartition("@")[2] != digest:
        return wrong(f"the pods run {digest}, dlc_image says {named.rpartition('@')[2]}", "deploy the training stack")
    asked = {pod.image.rpartition("/")[2].partition("@")[0] for pod in running}
    tag = named.rpartition("/")[2].partition("@")[0]
    if "@" not in named and asked != {tag}:
        return wrong(
            f"the pods' image is {', '.join(sorted(pod.image for pod in running)[:1])}, dlc_image says {named}",
            "deploy the training stack",
        )
    pin = "" if "@" in named else f"; to pin what this tag means today: dlc_image {named.rpartition(':')[0]}@{digest}"
    return ok(f"all {len(running)} pods run {digest[:19]}…{pin}")
