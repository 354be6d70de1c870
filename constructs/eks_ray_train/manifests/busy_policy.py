"""Refuses changes that would restart a RayCluster's pods while a run is active.

``submit`` puts the annotation ``eks-ray-train/active-run`` (the submission id) on the RayCluster and takes it away at the
end. While it is there, the API server itself refuses an update that KubeRay would answer by deleting pods, whoever sends it.
ValidatingAdmissionPolicy is stable since Kubernetes 1.30
(https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/). Deleting the cluster stays possible.
"""

from __future__ import annotations

from typing import Any

from . import names

_ANNOTATIONS = "has({0}.metadata.annotations) && '{1}' in {0}.metadata.annotations"

# What KubeRay recreates pods for under upgradeStrategy Recreate, or deletes pods for: the head's group, Ray's version,
# authentication, a worker group's template or start parameters, fewer replicas, a missing group, suspension.
# Written with has() since absent fields are errors in CEL.
_SAME_FIELD = "has(object.spec.{0}) == has(oldObject.spec.{0}) && (!has(object.spec.{0}) || object.spec.{0} == oldObject.spec.{0})"
_SAME_PARAMS = (
    "has(g.rayStartParams) == has(o.rayStartParams) && (!has(g.rayStartParams) || g.rayStartParams == o.rayStartParams)"
)
_GROUPS_KEPT = (
    "!has(oldObject.spec.workerGroupSpecs) || (has(object.spec.workerGroupSpecs) && "
    "oldObject.spec.workerGroupSpecs.all(o, object.spec.workerGroupSpecs.exists(g, "
    f"g.groupName == o.groupName && g.template == o.template && {_SAME_PARAMS} && "
    "(!has(o.replicas) || (has(g.replicas) && g.replicas >= o.replicas)) && "
    "!(has(g.suspend) && g.suspend))))"
)
_NOT_SUSPENDED = "!has(object.spec.suspend) || !object.spec.suspend"


def _all_of(*expressions: str) -> str:
    return " && ".join(f"({expression})" for expression in expressions)


KEEPS_PODS = _all_of(
    "object.spec.headGroupSpec == oldObject.spec.headGroupSpec",
    _SAME_FIELD.format("rayVersion"),
    _SAME_FIELD.format("authOptions"),
    _GROUPS_KEPT,
    _NOT_SUSPENDED,
)
RUN_IS_ACTIVE = (
    _ANNOTATIONS.format("oldObject", names.ACTIVE_RUN_ANNOTATION)
    + f" && oldObject.metadata.annotations['{names.ACTIVE_RUN_ANNOTATION}'] != ''"
)
MAY_INTERRUPT = (
    _ANNOTATIONS.format("object", names.ALLOW_INTERRUPT_ANNOTATION)
    + f" && object.metadata.annotations['{names.ALLOW_INTERRUPT_ANNOTATION}'] == 'true'"
)


def busy_policy(*, ray_cluster_name: str, namespace: str) -> list[dict[str, Any]]:
    """The policy and its binding, for one RayCluster by name: both are cluster-wide objects, and several training stacks may
    share a cluster. Where the policy itself cannot be evaluated, the update is refused (``failurePolicy: Fail``)."""
    name = f"eks-ray-train-busy-{namespace}-{ray_cluster_name}"
    labels = {names.CLUSTER_LABEL: ray_cluster_name, **names.MANAGED_BY}
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "resourceRules": [
                    {
                        "apiGroups": ["ray.io"],
                        "apiVersions": ["v1"],
                        "operations": ["UPDATE"],
                        "resources": ["rayclusters"],
                        "resourceNames": [ray_cluster_name],
                    }
                ],
            },
            "matchConditions": [
                {"name": "a-run-is-active", "expression": RUN_IS_ACTIVE},
                {"name": "interrupting-is-not-allowed", "expression": f"!({MAY_INTERRUPT})"},
            ],
            "validations": [
                {
                    "expression": KEEPS_PODS,
                    "reason": "Forbidden",
                    "messageExpression": (
                        f"\"run '\" + oldObject.metadata.annotations['{names.ACTIVE_RUN_ANNOTATION}'] + "
                        "\"' is active on this RayCluster and this change would restart or remove its pods; wait for the run, stop "
                        "it with eks-ray-train stop, or deploy with allow_interrupt. If no such run exists any more, remove the "
                        f'annotation {names.ACTIVE_RUN_ANNOTATION}"'
                    ),
                    "message": "a run is active on this RayCluster and this change would restart or remove its pods",
                }
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name, "labels": labels},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    return [policy, binding]
