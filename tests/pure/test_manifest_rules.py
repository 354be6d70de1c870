"""The operator's rules (and what even the operator does not notice) are errors at synth time."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from eks_ray_train.errors import ExitCode, SettingsError
from eks_ray_train.manifests.ray_cluster import ray_cluster
from eks_ray_train.manifests.ray_job import RayJobSpec, ray_job
from eks_ray_train.manifests.validate import problems, validate
from tests.pure.manifest_support import cluster_spec, gpu_workers

HEAD = ["spec", "headGroupSpec"]
WORKER = ["spec", "workerGroupSpecs", 0]
CONTAINER = ["template", "spec", "containers", 0]
GPU = "nvidia.com/gpu"


def changed(manifest: dict[str, Any], path: list[Any], value: Any) -> dict[str, Any]:
    """A copy of ``manifest`` with the entry at ``path`` set (or, for a callable, replaced by its result)."""
    result = copy.deepcopy(manifest)
    target = result
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value(target[path[-1]]) if callable(value) else value
    return result


def cluster() -> dict[str, Any]:
    return ray_cluster(cluster_spec())


def job(**changes: Any) -> dict[str, Any]:
    return ray_job(RayJobSpec(cluster=cluster_spec(), job_digest="0", **changes))


@pytest.mark.parametrize("length", [1, 53])
def test_a_raycluster_name_of_up_to_53_characters_is_accepted(length: int) -> None:
    assert ray_cluster(cluster_spec(name="a" * length))["metadata"]["name"] == "a" * length


@pytest.mark.parametrize(
    ("name", "got"),
    [("a" * 54, "got 54 characters"), ("1ray", "got 4"), ("Ray", "got 3"), ("ray-", "got 4"), ("ray_train", "got 9"), ("", "got 0")],
)
def test_a_raycluster_name_that_kuberay_ignores_is_an_error_with_its_length(name: str, got: str) -> None:
    """kuberay-name-54."""
    with pytest.raises(SettingsError, match=f"RayCluster name must be 1 to 53 .*{got}"):
        ray_cluster(cluster_spec(name=name))


def test_a_rayjob_name_of_48_characters_is_an_error_with_its_length() -> None:
    """kuberay-name-54, second half."""
    assert len(job()["metadata"]["name"]) <= 47
    assert problems(changed(job(), ["metadata", "name"], "j" * 47)) == []
    (problem,) = problems(changed(job(), ["metadata", "name"], "j" * 48))
    assert "RayJob name must be 1 to 47" in problem
    assert "got 48 characters" in problem


def test_two_worker_groups_of_one_name_are_an_error() -> None:
    """Accepted by the API server and the operator, which starts the workers of one of them only."""
    with pytest.raises(SettingsError, match="two worker groups are named 'gpu-workers'"):
        ray_cluster(cluster_spec(workers=(gpu_workers(), gpu_workers("p5.48xlarge"))))


CLUSTER_CASES: list[tuple[str, list[Any], Any, str]] = [
    ("negative maxReplicas", [*WORKER, "maxReplicas"], -1, "maxReplicas must be a whole number of at least 0, got -1"),
    ("replicas over maxReplicas", [*WORKER, "maxReplicas"], 1, "replicas 2 is outside minReplicas 0 and maxReplicas 1"),
    ("min over max", [*WORKER, "minReplicas"], 2**31, "minReplicas 2147483648 exceeds maxReplicas 2147483647"),
    ("fraction of a replica", [*WORKER, "replicas"], 1.5, "replicas must be a whole number of at least 0, got 1.5"),
    ("head's group name", [*WORKER, "groupName"], "headgroup", "KubeRay's own name"),
    ("upper-case group name", [*WORKER, "groupName"], "GPU", "groupName must be 1 to 63 lower-case letters"),
    ("group name of 64 characters", [*WORKER, "groupName"], "g" * 64, "groupName must be 1 to 63"),
    ("number in rayStartParams", [*HEAD, "rayStartParams", "num-cpus"], 0, "rayStartParams num-cpus must be a string, got 0"),
    ("num-gpus unlike the limit", [*WORKER, "rayStartParams", "num-gpus"], "8", "num-gpus 8 differs from the limit 4"),
    ("num-gpus also as a resource", [*WORKER, "resources"], {"GPU": "4"}, "num-gpus is given in rayStartParams and in resources"),
    ("no container", [*WORKER, "template", "spec", "containers"], [], "has no container"),
    ("no container in the head", [*HEAD, "template", "spec", "containers"], [], "head group has no container"),
    ("no head", HEAD, None, "no headGroupSpec"),
    ("GPU request unlike limit", [*WORKER, *CONTAINER, "resources", "requests", GPU], "3", f"request 3 of {GPU} differs from the limit 4"),
    (
        "memory request over limit",
        [*WORKER, *CONTAINER, "resources", "requests", "memory"],
        "500Gi",
        "request 500Gi of memory exceeds the limit 166Gi",
    ),
    (
        "CPU request over limit by suffix",
        [*HEAD, *CONTAINER, "resources", "requests", "cpu"],
        "2001m",
        "request 2001m of cpu exceeds the limit 2",
    ),
    ("no quantity", [*HEAD, *CONTAINER, "resources", "limits", "memory"], "8 GB", "limit memory must be a quantity"),
    ("negative CPU limit", [*HEAD, *CONTAINER, "resources", "limits", "cpu"], -1, "limit cpu must be a quantity"),
    ("mount without a volume", [*WORKER, *CONTAINER, "volumeMounts", 0, "name"], "nothing", "the pod has no such volume"),
    ("two mounts of one path", [*WORKER, *CONTAINER, "volumeMounts", 0, "mountPath"], "/dev/shm", "mounts two volumes at /dev/shm"),
    ("number as a variable", [*WORKER, *CONTAINER, "env", 0, "value"], 1, "variable FI_PROVIDER must be a string, got 1"),
    ("variable without a value", [*WORKER, *CONTAINER, "env", 0], {"name": "X"}, "variable X must be a string, got None"),
    ("variable without a name", [*WORKER, *CONTAINER, "env", 0], {"name": "", "value": "x"}, "no name of an environment variable"),
    ("one variable twice", [*WORKER, *CONTAINER, "env", 0, "name"], "NCCL_DEBUG", "sets the variable NCCL_DEBUG twice"),
    ("privileged", [*WORKER, *CONTAINER, "securityContext", "privileged"], True, "is privileged"),
    (
        "hostPath of the devices",
        [*WORKER, "template", "spec", "volumes", 0],
        {"name": "job", "hostPath": {"path": "/dev/infiniband"}},
        "is a hostPath",
    ),
    (
        "shared memory over the limit",
        [*WORKER, "template", "spec", "volumes", 2, "emptyDir", "sizeLimit"],
        "167Gi",
        "may grow to 167Gi, over the container's memory limit 166Gi",
    ),
    ("two volumes of one name", [*WORKER, "template", "spec", "volumes", 0, "name"], "ray-tmp", "two volumes named 'ray-tmp'"),
    ("label value too long", [*WORKER, "template", "metadata", "labels", "team"], "x" * 64, "got 64 characters"),
    ("label value with a slash", ["metadata", "labels", "team"], "a/b", "label team must be"),
    ("token authentication with an old Ray", ["spec", "rayVersion"], "2.51.9", "needs rayVersion 2.52.0 or newer, got 2.51.9"),
    ("no Ray version", ["spec", "rayVersion"], "nightly", "ray_version must look like"),
    ("unknown upgrade strategy", ["spec", "upgradeStrategy", "type"], "Rolling", "upgradeStrategy must be None or Recreate"),
    (
        "Redis without options",
        [*HEAD, *CONTAINER, "env", 0],
        {"name": "RAY_REDIS_ADDRESS", "value": "r:1"},
        "without gcsFaultToleranceOptions",
    ),
    ("Redis user in the environment", [*HEAD, *CONTAINER, "env", 0], {"name": "REDIS_USERNAME", "value": "u"}, "redisUsername"),
]


@pytest.mark.parametrize(
    ("path", "value", "message"), [case[1:] for case in CLUSTER_CASES], ids=[case[0] for case in CLUSTER_CASES]
)
def test_each_rule_of_a_raycluster_is_an_error(path: list[Any], value: Any, message: str) -> None:
    manifest = cluster()
    if path[-1] == "resources" and "containers" not in path:
        manifest["spec"]["workerGroupSpecs"][0]["resources"] = {}
    manifest["metadata"]["labels"].setdefault("team", "x")
    manifest["spec"]["workerGroupSpecs"][0]["template"]["metadata"]["labels"].setdefault("team", "x")
    found = problems(changed(manifest, path, value))
    assert [problem for problem in found if message in problem], found


def test_the_same_resource_of_redis_in_options_and_environment_is_an_error() -> None:
    manifest = changed(cluster(), ["spec"], lambda spec: {**spec, "gcsFaultToleranceOptions": {"redisAddress": "r:6379"}})
    manifest["metadata"]["annotations"]["ray.io/ft-enabled"] = "true"
    manifest["metadata"]["annotations"]["ray.io/external-storage-namespace"] = "x"
    manifest["spec"]["headGroupSpec"]["rayStartParams"]["redis-password"] = "x"
    env = manifest["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["env"]
    env += [{"name": "RAY_REDIS_ADDRESS", "value": "r:1"}, {"name": "REDIS_PASSWORD", "value": "x"}]
    assert len(problems(manifest)) == 5


def test_labels_twice_and_a_suspended_group_under_the_autoscaler_are_errors() -> None:
    manifest = cluster()
    group = manifest["spec"]["workerGroupSpecs"][0]
    group["rayStartParams"]["labels"] = "a=b"
    group["labels"] = {"a": "b"}
    group["suspend"] = True
    manifest["spec"]["enableInTreeAutoscaling"] = True
    found = problems(manifest)
    assert any("labels are given in rayStartParams and in labels" in problem for problem in found)
    assert any("suspended while the autoscaler is on" in problem for problem in found)


JOB_CASES: list[tuple[str, dict[str, Any], list[str], str]] = [
    ("neither cluster nor selector", {}, ["rayClusterSpec"], "exactly one of rayClusterSpec and clusterSelector"),
    ("cluster and selector", {"clusterSelector": {"ray.io/cluster": "x"}}, [], "exactly one of rayClusterSpec and clusterSelector"),
    ("suspended without shutdown", {"suspend": True}, ["shutdownAfterJobFinishes"], "can be suspended (Kueue) only with"),
    ("time to live without shutdown", {}, ["shutdownAfterJobFinishes"], "ttlSecondsAfterFinished has no effect without"),
    ("selector with retries", {"clusterSelector": {"a": "b"}, "backoffLimit": 1}, ["rayClusterSpec"], "nor be retried"),
    ("deletion strategy and shutdown", {"deletionStrategy": {"deletionRules": [{}]}}, [], "deletionStrategy cannot be"),
    ("interactive with retries", {"submissionMode": "InteractiveMode", "backoffLimit": 2}, [], "InteractiveMode cannot be retried"),
    ("sidecar with a submitter pod", {"submissionMode": "SidecarMode"}, [], "SidecarMode has no submitter pod"),
    ("no entrypoint", {}, ["entrypoint"], "has no entrypoint"),
    ("deadline of zero", {"activeDeadlineSeconds": 0}, [], "activeDeadlineSeconds must be a whole number of at least 1, got 0"),
    ("start deadline below zero", {"preRunningDeadlineSeconds": -5}, [], "preRunningDeadlineSeconds must be"),
    ("negative retries", {"backoffLimit": -1}, [], "backoffLimit must be a whole number of at least 0, got -1"),
]


@pytest.mark.parametrize(("update", "remove", "message"), [case[1:] for case in JOB_CASES], ids=[case[0] for case in JOB_CASES])
def test_each_rule_of_a_rayjob_is_an_error(update: dict[str, Any], remove: list[str], message: str) -> None:
    manifest = copy.deepcopy(job())
    manifest["spec"].update(update)
    for key in remove:
        del manifest["spec"][key]
    found = problems(manifest)
    assert [problem for problem in found if message in problem], found


def test_a_rayjob_checks_its_cluster_and_its_submitter_too() -> None:
    manifest = copy.deepcopy(job())
    manifest["spec"]["rayClusterSpec"]["upgradeStrategy"] = {"type": "Recreate"}
    manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["minReplicas"] = -1
    manifest["spec"]["rayClusterSpec"]["authOptions"]["enableK8sTokenAuth"] = True
    manifest["spec"]["submitterPodTemplate"]["spec"]["containers"][0]["env"][0]["value"] = 1
    found = "\n".join(problems(manifest))
    for part in ("upgradeStrategy is not allowed", "minReplicas must be", "Kubernetes token authentication", "submitter pod"):
        assert part in found


def test_a_valid_manifest_has_no_problem() -> None:
    assert problems(cluster()) == []
    assert problems(job(queue_name="q")) == []


def test_all_problems_come_in_one_error_with_exit_code_2() -> None:
    manifest = changed(cluster(), ["spec", "rayVersion"], "2.0.0")
    manifest["spec"]["workerGroupSpecs"][0]["groupName"] = "GPU"
    manifest["metadata"]["name"] = "x" * 60
    with pytest.raises(SettingsError) as caught:
        validate(manifest)
    assert len(caught.value.problems) == 3
    assert caught.value.exit_code is ExitCode.USAGE


def test_rules_step_round_tokens() -> None:
    token, number = "${Token[TOKEN.9]}", -1.8881545897088104e289
    manifest = changed(cluster(), ["metadata", "name"], token)
    group = manifest["spec"]["workerGroupSpecs"][0]
    group.update(groupName=token, replicas=number, minReplicas=number, maxReplicas=number)
    group["rayStartParams"]["num-gpus"] = token
    group["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] = token
    group["template"]["metadata"]["labels"]["long"] = "x" * 60 + token
    manifest["spec"]["rayVersion"] = token
    assert problems(manifest) == []
