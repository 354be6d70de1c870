"""The policy that protects an active run, its CEL evaluated by a CEL implementation."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from eks_ray_train.manifests import names
from eks_ray_train.manifests.busy_policy import busy_policy
from eks_ray_train.manifests.ray_cluster import ray_cluster
from tests.pure.manifest_support import IMAGE, cluster_spec, gpu_workers


def _policy() -> dict[str, Any]:
    return busy_policy(ray_cluster_name="ray-train", namespace="ray-train")[0]


def _evaluate(expression: str, new: dict[str, Any], old: dict[str, Any]) -> Any:
    celpy = pytest.importorskip("celpy", reason="needs cel-python to evaluate the policy's expressions")
    environment = celpy.Environment()
    program = environment.program(environment.compile(expression))
    return program.evaluate({"object": celpy.json_to_cel(new), "oldObject": celpy.json_to_cel(old)})


def _refusal(new: dict[str, Any], old: dict[str, Any]) -> str | None:
    """The API server's message, or None where the update is admitted."""
    spec = _policy()["spec"]
    if not all(_evaluate(condition["expression"], new, old) for condition in spec["matchConditions"]):
        return None
    (validation,) = spec["validations"]
    return None if _evaluate(validation["expression"], new, old) else str(_evaluate(validation["messageExpression"], new, old))


def _running(run: str = "run-7", **changes: Any) -> dict[str, Any]:
    manifest = copy.deepcopy(ray_cluster(cluster_spec(**changes)))
    manifest["metadata"]["annotations"][names.ACTIVE_RUN_ANNOTATION] = run
    return manifest


RESTARTS: dict[str, dict[str, Any]] = {
    "image": {"image": IMAGE + ".0"},
    "environment": {"extra_env": {"A": "b"}},
    "Ray version": {"ray_version": "2.59.0"},
    "instance type": {"workers": (gpu_workers("p5.48xlarge"),)},
    "another group name": {"workers": (gpu_workers(name="others"),)},
    "fewer nodes": {"workers": (gpu_workers(replicas=1),)},
    "one more job file": {"job_items": {"train.py": "train.py", "new.py": "new.py"}},
}
KEEPS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "more nodes": {"workers": (gpu_workers(replicas=3),)},
    "one more group": {"workers": (gpu_workers(), gpu_workers("p5.48xlarge", name="large"))},
}


@pytest.mark.parametrize("change", RESTARTS.values(), ids=RESTARTS.keys())
def test_a_change_that_restarts_or_removes_pods_is_refused_while_a_run_is_active(change: dict[str, Any]) -> None:
    message = _refusal(ray_cluster(cluster_spec(**change)), _running())
    assert message is not None
    for part in ("run 'run-7' is active", "allow_interrupt", "eks-ray-train stop", names.ACTIVE_RUN_ANNOTATION):
        assert part in message


@pytest.mark.parametrize("change", RESTARTS.values(), ids=RESTARTS.keys())
@pytest.mark.parametrize("idle", ["never annotated", "no annotations at all", "annotation emptied"])
def test_without_an_active_run_every_change_is_admitted(change: dict[str, Any], idle: str) -> None:
    old = _running(run="")
    if idle != "annotation emptied":
        del old["metadata"]["annotations"][names.ACTIVE_RUN_ANNOTATION]
    if idle == "no annotations at all":
        del old["metadata"]["annotations"]
    assert _refusal(ray_cluster(cluster_spec(**change)), old) is None


@pytest.mark.parametrize("change", RESTARTS.values(), ids=RESTARTS.keys())
def test_allow_interrupt_admits_every_change(change: dict[str, Any]) -> None:
    assert _refusal(ray_cluster(cluster_spec(**change, allow_interrupt=True)), _running()) is None


@pytest.mark.parametrize("change", KEEPS.values(), ids=KEEPS.keys())
def test_a_change_that_keeps_all_pods_is_admitted_during_a_run(change: dict[str, Any]) -> None:
    assert _refusal(ray_cluster(cluster_spec(**change)), _running()) is None


def test_the_end_of_a_run_and_the_start_of_the_next_are_admitted() -> None:
    ended = _running()
    del ended["metadata"]["annotations"][names.ACTIVE_RUN_ANNOTATION]
    assert _refusal(ended, _running()) is None
    assert _refusal(_running(), ended) is None


@pytest.mark.parametrize("field", ["authOptions", "rayVersion", "workerGroupSpecs"])
def test_a_field_taken_away_is_refused_and_no_evaluation_error(field: str) -> None:
    new = copy.deepcopy(ray_cluster(cluster_spec()))
    del new["spec"][field]
    assert _refusal(new, _running()) is not None


def test_suspending_is_refused() -> None:
    new = copy.deepcopy(ray_cluster(cluster_spec()))
    new["spec"]["suspend"] = True
    assert _refusal(new, _running()) is not None
    new["spec"]["suspend"] = False
    new["spec"]["workerGroupSpecs"][0]["suspend"] = True
    assert _refusal(new, _running()) is not None


def test_the_policy_watches_updates_of_this_one_raycluster_and_never_a_deletion() -> None:
    policy, binding = busy_policy(ray_cluster_name="ray-train", namespace="ray-train")
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["resources"], rule["resourceNames"]) == (["UPDATE"], ["rayclusters"], ["ray-train"])
    assert policy["spec"]["matchConstraints"]["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "ray-train"}}
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


def test_two_training_stacks_on_one_cluster_have_two_policies() -> None:
    found = {
        busy_policy(ray_cluster_name=name, namespace=space)[0]["metadata"]["name"] for name, space in (("a", "x"), ("a", "y"), ("b", "x"))
    }
    assert len(found) == 3
