"""Who reaches Ray's ports, judged by a small evaluation of the policy as Kubernetes defines it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from eks_ray_train.manifests.network_policy import NetworkPolicySpec, namespace, network_policy
from eks_ray_train.manifests.ray_cluster import ray_cluster
from eks_ray_train.manifests.ray_job import RayJobSpec, ray_job
from tests.pure.manifest_support import cluster_spec, head_of, workers_of


@dataclass(frozen=True)
class Pod:
    namespace: str
    labels: dict[str, str] = field(default_factory=dict)


RAY = Pod("ray-train", {"eks-ray-train/cluster": "ray-train"})
OPERATOR = Pod("kuberay", {"app.kubernetes.io/component": "kuberay-operator", "app.kubernetes.io/name": "kuberay-operator"})
PROMETHEUS = Pod("monitoring")


def _policy(**changes: Any) -> dict[str, Any]:
    return network_policy(NetworkPolicySpec(cluster="ray-train", namespace="ray-train", operator_namespace="kuberay", **changes))


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert set(selector) == {"matchLabels"}
    assert selector["matchLabels"]
    return all(labels.get(key) == value for key, value in selector["matchLabels"].items())


def _allows(policy: dict[str, Any], source: Pod, port: int, target: Pod = RAY) -> bool:
    if target.namespace != policy["metadata"]["namespace"] or not _selects(policy["spec"]["podSelector"], target.labels):
        return True  # the policy does not isolate this pod
    for rule in policy["spec"]["ingress"]:
        if "ports" in rule and port not in [entry["port"] for entry in rule["ports"]]:
            continue
        for peer in rule["from"]:
            namespaces = peer.get("namespaceSelector")
            same = source.namespace == policy["metadata"]["namespace"]
            if namespaces is None and not same:
                continue
            if namespaces is not None and not _selects(namespaces, {"kubernetes.io/metadata.name": source.namespace}):
                continue
            if "podSelector" not in peer or _selects(peer["podSelector"], source.labels):
                return True
    return False


@pytest.mark.parametrize("port", [6379, 8265, 10001, 8080, 52365, 33333])
def test_pods_of_the_cluster_reach_each_other_on_every_port(port: int) -> None:
    assert _allows(_policy(), RAY, port)


@pytest.mark.parametrize(
    "stranger",
    [
        Pod("ray-train"),
        Pod("ray-train", {"eks-ray-train/cluster": "other"}),
        Pod("default", {"eks-ray-train/cluster": "ray-train"}),
        Pod("kuberay"),
        Pod("default", OPERATOR.labels),
        PROMETHEUS,
    ],
    ids=["same namespace", "another cluster", "same label elsewhere", "operator's namespace only", "operator's label only", "metrics"],
)
@pytest.mark.parametrize("port", [6379, 8265, 10001, 8080, 52365])
def test_nobody_else_reaches_any_port(stranger: Pod, port: int) -> None:
    assert not _allows(_policy(), stranger, port)


def test_the_operator_reaches_the_dashboard_alone() -> None:
    assert _allows(_policy(), OPERATOR, 8265)
    assert not any(_allows(_policy(), OPERATOR, port) for port in (6379, 8080, 10001, 52365))


def test_a_named_namespace_scrapes_the_metrics_port_alone() -> None:
    policy = _policy(metrics_namespace="monitoring")
    assert _allows(policy, PROMETHEUS, 8080)
    assert not any(_allows(policy, PROMETHEUS, port) for port in (6379, 8265, 10001))
    assert not _allows(policy, Pod("default"), 8080)


def test_outgoing_traffic_stays_open() -> None:
    spec = _policy()["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    assert "egress" not in spec


def test_the_policy_selects_head_workers_and_the_submitter_of_raycluster_and_rayjob() -> None:
    job = ray_job(RayJobSpec(cluster=cluster_spec(), job_digest="0"))
    cluster = ray_cluster(cluster_spec())
    selector = _policy()["spec"]["podSelector"]
    for template in (head_of(job), *workers_of(job), job["spec"]["submitterPodTemplate"], head_of(cluster), *workers_of(cluster)):
        assert _selects(selector, template["metadata"]["labels"])


def test_the_namespace_enforces_the_level_that_the_pods_bear() -> None:
    labels = namespace("ray-train")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "baseline"
    assert namespace("x", host_network=True)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"


def test_the_pods_meet_the_baseline_level() -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#baseline"""
    job = ray_job(RayJobSpec(cluster=cluster_spec(), job_digest="0"))
    for template in (head_of(job), *workers_of(job), job["spec"]["submitterPodTemplate"]):
        spec = template["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert not any("hostPath" in volume for volume in spec.get("volumes", []))
        for container in spec["containers"]:
            assert not container["securityContext"]["privileged"]
            assert "add" not in container["securityContext"]["capabilities"]
            assert not any("hostPort" in port for port in container.get("ports", []))
