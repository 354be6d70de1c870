"""NetworkPolicy and Namespace of a Ray cluster.

Ray's ports between its pods are many and random (https://docs.ray.io/en/latest/ray-core/configure.html), so the pods of one
cluster may reach each other on all of them, and nobody else may reach any, but for two named exceptions. Outgoing traffic
stays open (image data, S3, the Hugging Face hub). EFA's OS-bypass traffic is not subject to network policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import names
from .ray_pods import POD_SECURITY_LEVEL

# Set on every namespace by Kubernetes itself.
_NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"
# The operator's chart puts it on its pods (kuberay-operator 1.7.0, templates/deployment.yaml).
OPERATOR_POD_LABELS = {"app.kubernetes.io/component": "kuberay-operator"}


@dataclass(frozen=True, kw_only=True)
class NetworkPolicySpec:
    """``cluster`` is the value of our label ``eks-ray-train/cluster`` on the pods: the RayCluster's name, or the RayJob's
    name without its hash. ``metrics_namespace`` absent: nobody outside scrapes port 8080."""

    cluster: str
    namespace: str
    operator_namespace: str
    operator_pod_labels: Mapping[str, str] = field(default_factory=lambda: dict(OPERATOR_POD_LABELS))
    metrics_namespace: str | None = None


def network_policy(spec: NetworkPolicySpec) -> dict[str, Any]:
    """NetworkPolicy: everything from the cluster's own pods, 8265 from the operator, 8080 from the metrics namespace.

    ``submit`` is not affected: a port-forward enters the pod through the kubelet.
    """
    own = {"podSelector": {"matchLabels": {names.CLUSTER_LABEL: spec.cluster}}}
    operator = {
        "namespaceSelector": {"matchLabels": {_NAMESPACE_NAME_LABEL: spec.operator_namespace}},
        "podSelector": {"matchLabels": dict(spec.operator_pod_labels)},
    }
    ingress: list[dict[str, Any]] = [
        {"from": [own]},
        {"from": [operator], "ports": [{"protocol": "TCP", "port": names.DASHBOARD_PORT}]},
    ]
    if spec.metrics_namespace is not None:
        scraper = {"namespaceSelector": {"matchLabels": {_NAMESPACE_NAME_LABEL: spec.metrics_namespace}}}
        ingress.append({"from": [scraper], "ports": [{"protocol": "TCP", "port": names.METRICS_PORT}]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": f"{spec.cluster}-ray",
            "namespace": spec.namespace,
            "labels": {names.CLUSTER_LABEL: spec.cluster, **names.MANAGED_BY},
        },
        "spec": {**own, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def namespace(name: str, *, host_network: bool = False) -> dict[str, Any]:
    """Namespace with the pod-security level that the pods bear: ``baseline``, which host networking exceeds."""
    level = "privileged" if host_network else POD_SECURITY_LEVEL
    labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "audit", "warn")}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {**labels, **names.MANAGED_BY}}}
