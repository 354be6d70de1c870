"""Manifests against the CRDs of KubeRay 1.7.0, unknown fields included."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.instances import CATALOGUE
from eks_ray_train.manifests.ray_cluster import Taint, ray_cluster
from eks_ray_train.manifests.ray_job import RayJobSpec, ray_job
from tests.pure.manifest_support import cluster_spec, crd_schema, gpu_workers, schema_problems


@pytest.fixture(scope="session")
def raycluster_schema(shared_dir: Path) -> dict[str, Any]:
    return crd_schema(shared_dir, "rayclusters")


@pytest.fixture(scope="session")
def rayjob_schema(shared_dir: Path) -> dict[str, Any]:
    return crd_schema(shared_dir, "rayjobs")


FULL = {
    "hf_secret_name": "hf-token",
    "fsx_claim": "fsx",
    "job_further_items": {"ray-train-job-2": {"more.py": "more.py"}},
    "extra_env": {"NCCL_NET": "Libfabric"},
    "allow_interrupt": True,
    "workers": (
        gpu_workers(taints=(Taint(key="nvidia.com/gpu"), Taint(key="team", value="a"))),
        gpu_workers("p5.48xlarge", name="large"),
    ),
}


@pytest.mark.parametrize("changes", [{}, FULL, {"host_network": True}], ids=["default", "everything-set", "host-network"])
def test_the_raycluster_has_no_unknown_field_and_no_wrong_type(raycluster_schema: dict[str, Any], changes: dict[str, Any]) -> None:
    assert schema_problems(ray_cluster(cluster_spec(**changes)), raycluster_schema) == []


@pytest.mark.parametrize("queue_name", [None, "gpu-queue"])
@pytest.mark.parametrize("changes", [{}, FULL], ids=["default", "everything-set"])
def test_the_rayjob_has_no_unknown_field_and_no_wrong_type(
    rayjob_schema: dict[str, Any], changes: dict[str, Any], queue_name: str | None
) -> None:
    job = ray_job(RayJobSpec(cluster=cluster_spec(**changes), job_digest="0", queue_name=queue_name, retries=2))
    assert schema_problems(job, rayjob_schema) == []


@pytest.mark.parametrize("instance_type", sorted(CATALOGUE))
def test_the_raycluster_of_every_instance_type_fits_the_schema(raycluster_schema: dict[str, Any], instance_type: str) -> None:
    assert schema_problems(ray_cluster(cluster_spec(workers=(gpu_workers(instance_type),))), raycluster_schema) == []


def _set(manifest: dict[str, Any], path: list[Any], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(manifest)
    target = changed
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return changed


CONTAINER = ["spec", "headGroupSpec", "template", "spec", "containers", 0]


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ([*CONTAINER, "comand"], ["x"], ".spec.headGroupSpec.template.spec.containers[0].comand is unknown"),
        (["spec", "rayVerson"], "2.58.0", ".spec.rayVerson is unknown"),
        (["spec", "headGroupSpec", "rayStartParams", "num-gpus"], 0, "0 is no string"),
        ([*CONTAINER, "env", 0, "value"], 1, "1 is no string"),
        (["spec", "upgradeStrategy", "type"], "Rolling", "is none of"),
        ([*CONTAINER, "resources", "limits", "memory"], "8 GiB", "does not match"),
        (["spec", "workerGroupSpecs", 0, "replicas"], "2", "'2' is no integer"),
    ],
)
def test_the_validator_sees_what_a_strict_api_server_refuses(
    raycluster_schema: dict[str, Any], path: list[Any], value: Any, expected: str
) -> None:
    found = schema_problems(_set(ray_cluster(cluster_spec()), path, value), raycluster_schema)
    assert len(found) == 1
    assert expected in found[0]


def test_the_validator_misses_no_absent_required_field(raycluster_schema: dict[str, Any]) -> None:
    manifest = copy.deepcopy(ray_cluster(cluster_spec()))
    del manifest["spec"]["headGroupSpec"]
    del manifest["spec"]["workerGroupSpecs"][0]["groupName"]
    found = schema_problems(manifest, raycluster_schema)
    assert found == [".spec.headGroupSpec is missing", ".spec.workerGroupSpecs[0].groupName is missing"]
