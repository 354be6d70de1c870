"""RayJob: one run with its own cluster, from the same parts."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.errors import SettingsError
from eks_ray_train.instances import get_system_instance_type
from eks_ray_train.manifests import names
from eks_ray_train.manifests.pod_rules import quantity
from eks_ray_train.manifests.ray_cluster import Taint, ray_cluster
from eks_ray_train.manifests.ray_job import DEPLOYED_CODE_ENV, RayJobSpec, ray_job
from tests.pure.manifest_support import IMAGE, cluster_spec, gpu_workers, head_of, workers_of


def _job(cluster: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return ray_job(RayJobSpec(**{"cluster": cluster_spec(**(cluster or {})), "job_digest": "d0", **changes}))


def test_a_rayjobs_pods_are_those_of_the_raycluster() -> None:
    job, cluster = _job(), ray_cluster(cluster_spec())
    assert head_of(job) == head_of(cluster)
    assert workers_of(job) == workers_of(cluster)
    assert job["spec"]["rayClusterSpec"] == {key: value for key, value in cluster["spec"].items() if key != "upgradeStrategy"}


def test_kuberay_hands_the_overwrite_annotation_on_from_the_rayjob() -> None:
    assert _job()["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}


def test_a_run_is_bounded_and_its_gpus_are_given_back() -> None:
    spec = _job()["spec"]
    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["activeDeadlineSeconds"] == 24 * 3600
    assert spec["preRunningDeadlineSeconds"] == 3600
    assert spec["backoffLimit"] == 0
    assert spec["ttlSecondsAfterFinished"] == 60


def test_deadline_and_retries_are_the_users() -> None:
    spec = _job(deadline_seconds=7200, start_deadline_seconds=None, retries=3, keep_seconds=0)["spec"]
    assert spec["activeDeadlineSeconds"] == 7200
    assert "preRunningDeadlineSeconds" not in spec
    assert spec["backoffLimit"] == 3
    assert spec["ttlSecondsAfterFinished"] == 0


@pytest.mark.parametrize("changes", [{"deadline_seconds": 0}, {"retries": -1}, {"start_deadline_seconds": -1}, {"keep_seconds": -1}])
def test_a_deadline_or_retry_count_that_kuberay_refuses_is_an_error(changes: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="must be a whole number of at least"):
        _job(**changes)


def test_the_submitter_runs_on_the_system_nodes_with_our_label_and_without_privileges() -> None:
    pod = _job(cluster={"head_taints": (Taint(key="system", value="yes"),)})["spec"]["submitterPodTemplate"]
    spec = pod["spec"]
    assert pod["metadata"]["labels"] == {"eks-ray-train/cluster": "ray-train"}
    assert spec["nodeSelector"] == {"role": "system"}
    assert spec["tolerations"] == [{"key": "system", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}]
    assert spec["automountServiceAccountToken"] is False
    (container,) = spec["containers"]
    assert container["image"] == IMAGE
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["privileged"] is False
    assert "command" not in container  # KubeRay fills in the submission


def test_head_submitter_and_operator_fit_the_default_system_node() -> None:
    job = _job()
    templates = (head_of(job), job["spec"]["submitterPodTemplate"])
    requests = [template["spec"]["containers"][0]["resources"]["requests"] for template in templates]
    node = get_system_instance_type("m7i.xlarge")
    assert sum(quantity(r["cpu"]) or 0 for r in requests) + 0.1 <= node.allocatable_cpu_millis / 1000
    assert sum(quantity(r["memory"]) or 0 for r in requests) + 512 * 2**20 <= node.allocatable_memory_mib * 2**20


def test_the_arguments_reach_the_script_unchanged() -> None:
    arguments = ("--model_id", "Qwen/Qwen2.5-1.5B", "--dataset", "/fsx/my data/*.txt", "--run-name", "a'b$(c)")
    entrypoint = _job(arguments=arguments)["spec"]["entrypoint"]
    assert shlex.split(entrypoint) == ["python", "/opt/eks-ray-train/job/train.py", *arguments]


def test_workers_find_the_jobs_modules_by_the_stable_path(tmp_path: Path) -> None:
    """Python resolves the script's link into the volume's time-stamped folder, which other nodes do not have."""
    stamped, mount = tmp_path / "..2026_11_29", tmp_path
    (stamped / "pkg").mkdir(parents=True)
    (stamped / "train.py").write_text("import pkg, sys; print(sys.path[0]); print(pkg.__path__[0])")
    (stamped / "pkg" / "__init__.py").touch()
    (mount / "train.py").symlink_to(stamped / "train.py")
    (mount / "pkg").symlink_to(stamped / "pkg")
    environment = {**os.environ, "PYTHONPATH": str(mount)}
    done = subprocess.run([sys.executable, str(mount / "train.py")], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == str(stamped)  # what Ray would tell the workers
    runtime_env = json.loads(_job(environment={"A": "b"})["spec"]["runtimeEnvYAML"])
    assert runtime_env == {"env_vars": {"PYTHONPATH": "/opt/eks-ray-train/job", "A": "b"}}
    assert DEPLOYED_CODE_ENV == {"PYTHONPATH": names.JOB_DIR}


def test_with_a_queue_the_job_waits_suspended_for_kueue() -> None:
    queued, plain = _job(queue_name="gpu-queue"), _job()
    assert queued["spec"]["suspend"] is True
    assert queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpu-queue"
    assert "suspend" not in plain["spec"]
    assert "kueue.x-k8s.io/queue-name" not in plain["metadata"]["labels"]


def test_the_name_holds_a_hash_of_everything_that_makes_the_run_another_one() -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"job_digest": "d1"},
        {"arguments": ("--steps", "2")},
        {"retries": 1},
        {"queue_name": "q"},
        {"environment": {"A": "b"}},
        {"cluster": {"image": IMAGE + ".0"}},
        {"cluster": {"workers": (gpu_workers(replicas=3),)}},
    ]
    found = [_job(**variant)["metadata"]["name"] for variant in variants]
    assert len(set(found)) == len(variants)
    assert all(re.fullmatch(r"ray-train-[0-9a-f]{8}", name) for name in found)
    assert _job()["metadata"]["name"] == found[0]


def test_the_hash_does_not_depend_on_how_cdk_numbers_its_tokens() -> None:
    first = _job(cluster={"storage_path": "s3://${Token[TOKEN.12]}/x"})
    second = _job(cluster={"storage_path": "s3://${Token[TOKEN.977]}/x"})
    assert first["metadata"]["name"] == second["metadata"]["name"]


def test_the_longest_base_name_gives_exactly_kuberays_limit() -> None:
    assert len(_job(cluster={"name": "a" * 38})["metadata"]["name"]) == 47
    with pytest.raises(SettingsError, match=r"at most 38 characters .* got 39"):
        _job(cluster={"name": "a" * 39})
