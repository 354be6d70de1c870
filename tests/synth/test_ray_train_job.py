"""RayTrainJob: a declared run, replaced when anything that it runs changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import Duration

from eks_ray_train import (
    CheckpointBucket,
    EfaGpuNodeGroup,
    KubeRayOperator,
    RayTrainCluster,
    RayTrainJob,
    SettingsError,
)
from tests.synth.template_reading import MANIFEST, depends_on, manifest_resource, manifests, of_type, only

Isolated = Callable[[Callable[[Any, Any], Any]], dict[str, Any]]


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print(1)\n")
    return tmp_path


@pytest.fixture
def declared(isolated: Isolated, job_dir: Path) -> Callable[..., dict[str, Any]]:
    """``declared(retries=2)`` -> template with operator, two GPU nodes, a bucket and one RayTrainJob."""

    def make(**changes: Any) -> dict[str, Any]:
        def build(stack: Any, cluster: Any) -> None:
            nodes = EfaGpuNodeGroup(
                stack, "Gpu", cluster=cluster, instance_type="g6.12xlarge", node_count=2, subnets=cluster.vpc.private_subnets[:1]
            )
            told: dict[str, Any] = {
                "operator": KubeRayOperator(stack, "Operator", cluster=cluster),
                "storage": CheckpointBucket(stack, "Storage", prefix="train"),
                "arguments": ["--steps", "10"],
            }
            RayTrainJob(stack, "Job", cluster=cluster, job_dir=job_dir, nodes=nodes, **{**told, **changes})

        return isolated(build)

    return make


def test_a_deploy_applies_one_rayjob_after_its_files_policy_identity_operator_and_nodes(
    declared: Callable[..., dict[str, Any]],
) -> None:
    template = declared()
    name, _ = manifest_resource(template, "RayJob")
    waits = depends_on(template, name)
    for kind in ("AWS::EKS::Nodegroup", "AWS::EKS::PodIdentityAssociation", "Custom::AWSCDK-EKS-HelmChart"):
        assert set(of_type(template, kind)) <= waits, kind
    assert set(of_type(template, MANIFEST)) - {name} <= waits
    assert not any(name in depends_on(template, other) for other in template["Resources"])


def test_deadline_retries_and_keep_time_reach_the_rayjob(declared: Callable[..., dict[str, Any]]) -> None:
    template = declared(deadline=Duration.hours(3), start_deadline=Duration.minutes(20), retries=2, keep=Duration.minutes(5))
    spec = manifests(template, "RayJob")[0]["spec"]
    found = {key: spec[key] for key in ("activeDeadlineSeconds", "preRunningDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished")}
    assert list(found.values()) == [10_800, 1_200, 2, 300]
    assert spec["shutdownAfterJobFinishes"] is True


def test_without_further_properties_a_run_ends_after_a_day_and_waits_an_hour_for_its_nodes(
    declared: Callable[..., dict[str, Any]],
) -> None:
    spec = manifests(declared(), "RayJob")[0]["spec"]
    assert (spec["activeDeadlineSeconds"], spec["preRunningDeadlineSeconds"], spec["backoffLimit"]) == (86_400, 3_600, 0)


def test_the_network_policy_selects_head_workers_and_submitter_by_the_base_name(
    declared: Callable[..., dict[str, Any]],
) -> None:
    template = declared(name="nightly")
    (policy,) = manifests(template, "NetworkPolicy")
    (job,) = manifests(template, "RayJob")
    selected = policy["spec"]["podSelector"]["matchLabels"]
    cluster = job["spec"]["rayClusterSpec"]
    pods = [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    for pod in [*pods, job["spec"]["submitterPodTemplate"]]:
        assert selected.items() <= pod["metadata"]["labels"].items()
    assert selected == {"eks-ray-train/cluster": "nightly"}
    assert policy["metadata"]["namespace"] == job["metadata"]["namespace"]


def test_the_submitter_runs_on_the_system_nodes(declared: Callable[..., dict[str, Any]]) -> None:
    submitter = manifests(declared(), "RayJob")[0]["spec"]["submitterPodTemplate"]["spec"]
    assert submitter["nodeSelector"] == {"eks-ray-train/role": "system"}


def test_a_queued_job_is_created_suspended_for_kueue(declared: Callable[..., dict[str, Any]]) -> None:
    (job,) = manifests(declared(queue_name="gpus"), "RayJob")
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"


def test_the_run_writes_below_its_own_prefix_with_a_role_of_its_own(declared: Callable[..., dict[str, Any]]) -> None:
    template = declared()
    association = only(template, "AWS::EKS::PodIdentityAssociation")["Properties"]
    (job,) = manifests(template, "RayJob")
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert association["ServiceAccount"] == head["serviceAccountName"] == "train-job"
    env = {entry["name"]: entry.get("value") for entry in head["containers"][0]["env"]}
    assert env["EKS_RAY_TRAIN_STORAGE_PATH"] == "s3://<deploy>/train"


@pytest.mark.parametrize(
    "change", [{"arguments": ["--steps", "11"]}, {"image": "public.ecr.aws/deep-learning-containers/ray:other"}, {"retries": 1}],
    ids=["arguments", "image", "retries"],
)  # fmt: skip
def test_a_changed_run_is_another_resource_so_that_the_old_one_is_stopped_and_deleted(
    declared: Callable[..., dict[str, Any]], change: dict[str, Any]
) -> None:
    before, after = declared(), declared(**change)
    old, new = manifest_resource(before, "RayJob")[0], manifest_resource(after, "RayJob")[0]
    assert old != new
    assert manifests(before, "RayJob")[0]["metadata"]["name"] != manifests(after, "RayJob")[0]["metadata"]["name"]
    assert {k: v for k, v in before["Resources"].items() if k != old} == {k: v for k, v in after["Resources"].items() if k != new}


def test_changed_code_is_another_run(declared: Callable[..., dict[str, Any]], job_dir: Path) -> None:
    before = manifest_resource(declared(), "RayJob")[0]
    (job_dir / "train.py").write_text("print(2)\n")
    assert manifest_resource(declared(), "RayJob")[0] != before


def test_the_same_run_is_the_same_template(declared: Callable[..., dict[str, Any]]) -> None:
    assert declared() == declared()


def test_a_name_of_39_characters_is_an_error_before_any_resource_exists(declared: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(SettingsError, match=r"at most 38 characters .* got 39"):
        declared(name="n" * 39)


def test_no_workers_at_all_is_an_error(isolated: Isolated, job_dir: Path) -> None:
    with pytest.raises(SettingsError, match="nodes=EfaGpuNodeGroup or worker_groups, got neither"):
        isolated(lambda stack, cluster: RayTrainJob(stack, "Job", cluster=cluster, job_dir=job_dir))


def _both(job_dir: Path, **job: Any) -> Callable[[Any, Any], None]:
    def build(stack: Any, cluster: Any) -> None:
        nodes = EfaGpuNodeGroup(
            stack, "Gpu", cluster=cluster, instance_type="g6.12xlarge", node_count=2, subnets=cluster.vpc.private_subnets[:1]
        )
        RayTrainCluster(stack, "Ray", cluster=cluster, job_dir=job_dir, nodes=nodes)
        RayTrainJob(stack, "Job", cluster=cluster, job_dir=job_dir, nodes=nodes, **job)

    return build


def test_two_owners_of_one_namespace_are_an_error_that_names_the_first(isolated: Isolated, job_dir: Path) -> None:
    with pytest.raises(SettingsError, match="ray-train on this cluster is already made by Isolated/Ray, Isolated/Job asks"):
        isolated(_both(job_dir, namespace="ray-train"))


def test_two_workloads_of_one_name_in_one_namespace_are_an_error(isolated: Isolated, job_dir: Path) -> None:
    with pytest.raises(SettingsError, match="ray-train/ray-train on this cluster is already made"):
        isolated(_both(job_dir, namespace="ray-train", name="ray-train", create_namespace=False))


def test_a_job_beside_a_cluster_in_its_namespace_leaves_the_namespace_to_it(isolated: Isolated, job_dir: Path) -> None:
    template = isolated(_both(job_dir, namespace="ray-train", create_namespace=False))
    assert [n["metadata"]["name"] for n in manifests(template, "Namespace")] == ["ray-train"]
