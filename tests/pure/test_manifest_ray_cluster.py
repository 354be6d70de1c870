"""What the RayCluster promises, claim by claim."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from eks_ray_train.errors import SettingsError
from eks_ray_train.instances import CATALOGUE, get_system_instance_type
from eks_ray_train.manifests import names
from eks_ray_train.manifests.pod_rules import quantity
from eks_ray_train.manifests.ray_cluster import GPU_TAINT, Taint, cluster_facts, ray_cluster
from eks_ray_train.manifests.ray_pods import NO_REPORTS
from tests.pure.manifest_support import IMAGE, cluster_spec, env_of, gpu_workers, head_of, workers_of

SNAPSHOT = Path(__file__).parent / "snapshots" / "ray_cluster.yaml"
# A token string and a token number as CDK 2.275 writes them.
TOKEN = "${Token[TOKEN.123]}"
TOKEN_NUMBER = -1.8881545897088104e289


def _pods(**changes: Any) -> list[dict[str, Any]]:
    manifest = ray_cluster(cluster_spec(**changes))
    return [head_of(manifest), *workers_of(manifest)]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _leaves(entry, f"{path}.{key}")
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _leaves(entry, f"{path}[{index}]")
    else:
        yield path, value


def test_the_default_manifest_equals_its_snapshot() -> None:
    """Set UPDATE_SNAPSHOTS=1 to write it anew, and read the diff: a changed pod template restarts every pod."""
    spec = cluster_spec()
    rendered = yaml.safe_dump_all([cluster_facts(spec), ray_cluster(spec)], sort_keys=False, width=120)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.parent.mkdir(exist_ok=True)
        SNAPSHOT.write_text(rendered, encoding="utf-8")
    assert rendered == SNAPSHOT.read_text(encoding="utf-8")


def test_head_and_workers_run_the_published_image_as_it_is() -> None:
    for pod in _pods():
        assert [container["image"] for container in pod["spec"]["containers"]] == [IMAGE]
        assert "initContainers" not in pod["spec"]


def test_requests_equal_limits_in_every_ray_container() -> None:
    for pod in _pods():
        resources = pod["spec"]["containers"][0]["resources"]
        assert resources["requests"] == resources["limits"]
        assert {"cpu", "memory"} <= resources["limits"].keys()


@pytest.mark.parametrize("instance_type", sorted(CATALOGUE))
def test_no_worker_asks_for_more_than_its_node_allocates(instance_type: str) -> None:
    row = CATALOGUE[instance_type]
    (worker,) = workers_of(ray_cluster(cluster_spec(workers=(gpu_workers(instance_type),))))
    limits = worker["spec"]["containers"][0]["resources"]["limits"]
    cpu, memory = quantity(limits["cpu"]), quantity(limits["memory"])
    assert cpu is not None
    assert memory is not None
    # KubeRay's init container runs before Ray's, so the pod needs the larger of both, which is Ray's.
    assert 0.2 <= cpu <= row.allocatable_cpu_millis / 1000
    assert 256 * 2**20 <= memory <= row.allocatable_memory_mib * 2**20
    assert limits[names.GPU_RESOURCE] == str(row.gpus)
    assert limits[names.EFA_RESOURCE] == str(row.efa_interfaces)


def test_the_head_fits_the_default_system_node_beside_operator_and_submitter() -> None:
    limits = head_of(ray_cluster(cluster_spec()))["spec"]["containers"][0]["resources"]["limits"]
    node = get_system_instance_type("m7i.xlarge")
    cpu, memory = quantity(limits["cpu"]), quantity(limits["memory"])
    assert cpu is not None
    assert memory is not None
    assert cpu + 0.1 + 0.5 <= node.allocatable_cpu_millis / 1000
    assert memory + (512 + 1024) * 2**20 <= node.allocatable_memory_mib * 2**20


@pytest.mark.parametrize("instance_type", ["g6.12xlarge", "g6.48xlarge", "p5.48xlarge", "p5.4xlarge"])
def test_num_gpus_and_the_gpu_limit_come_from_the_instance_type(instance_type: str) -> None:
    """kuberay-num-gpus-mismatch: the sample keeps both by hand."""
    group = ray_cluster(cluster_spec(workers=(gpu_workers(instance_type),)))["spec"]["workerGroupSpecs"][0]
    limit = group["template"]["spec"]["containers"][0]["resources"]["limits"][names.GPU_RESOURCE]
    assert group["rayStartParams"]["num-gpus"] == limit == str(CATALOGUE[instance_type].gpus)


def test_a_gpu_count_by_hand_that_differs_from_the_instance_type_is_an_error_naming_both() -> None:
    """kuberay-num-gpus-mismatch: half the GPUs would idle, or the pods stay Pending."""
    pod = CATALOGUE["g6.48xlarge"].worker_pod
    for gpus in (4, 16):
        with pytest.raises(SettingsError, match=rf"asks for {gpus} GPUs a pod, but g6\.48xlarge has 8"):
            gpu_workers("g6.48xlarge", pod=dataclasses.replace(pod, gpus=gpus))
    with pytest.raises(SettingsError, match=r"asks for 4 EFA interfaces a pod, but g6\.48xlarge has 1"):
        gpu_workers("g6.48xlarge", pod=dataclasses.replace(pod, efa_interfaces=4))


def test_a_pod_larger_than_its_node_is_an_error() -> None:
    pod = CATALOGUE["g6.12xlarge"].worker_pod
    for change in ({"cpu": 48}, {"memory_gib": 192}):
        with pytest.raises(SettingsError, match=r"a g6\.12xlarge offers pods 47\.\d CPUs"):
            gpu_workers(pod=dataclasses.replace(pod, **change))


def test_the_head_offers_ray_neither_cpus_nor_gpus_and_sees_no_gpu() -> None:
    manifest = ray_cluster(cluster_spec())
    params = manifest["spec"]["headGroupSpec"]["rayStartParams"]
    assert (params["num-cpus"], params["num-gpus"]) == ("0", "0")
    assert env_of(head_of(manifest))["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert names.GPU_RESOURCE not in head_of(manifest)["spec"]["containers"][0]["resources"]["limits"]


def test_the_head_goes_to_the_system_nodes_and_tolerates_no_gpu_taint() -> None:
    spec = head_of(ray_cluster(cluster_spec()))["spec"]
    assert spec["nodeSelector"] == {"role": "system"}
    assert spec["tolerations"] == []


def test_every_taint_of_the_node_group_is_tolerated_by_the_workers() -> None:
    """kuberay-gpu-taint."""
    taints = (GPU_TAINT, Taint(key="team", value="a"), Taint(key="spot", value="yes", effect="NoExecute"))
    (worker,) = workers_of(ray_cluster(cluster_spec(workers=(gpu_workers(taints=taints),))))
    assert worker["spec"]["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
        {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Equal", "value": "yes", "effect": "NoExecute"},
    ]


@pytest.mark.parametrize("instance_type", sorted(CATALOGUE))
def test_shared_memory_is_several_gib_in_memory_and_inside_the_limit(instance_type: str) -> None:
    """kuberay-shm."""
    for pod in _pods(workers=(gpu_workers(instance_type),)):
        container = pod["spec"]["containers"][0]
        (mount,) = [m for m in container["volumeMounts"] if m["mountPath"] == "/dev/shm"]
        (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == mount["name"]]
        assert volume["emptyDir"]["medium"] == "Memory"
        size, memory = quantity(volume["emptyDir"]["sizeLimit"]), quantity(container["resources"]["limits"]["memory"])
        assert size is not None
        assert memory is not None
        assert 4 * 2**30 <= size <= memory


def test_ray_sessions_outlive_a_container_restart() -> None:
    for pod in _pods():
        (mount,) = [m for m in pod["spec"]["containers"][0]["volumeMounts"] if m["mountPath"] == "/tmp/ray"]
        assert {"name": mount["name"], "emptyDir": {}} in pod["spec"]["volumes"]


def test_all_ray_start_params_and_variables_are_strings() -> None:
    """kuberay-requests-not-limits, second half."""
    manifest = ray_cluster(cluster_spec())
    groups = [manifest["spec"]["headGroupSpec"], *manifest["spec"]["workerGroupSpecs"]]
    for group in groups:
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        for entry in group["template"]["spec"]["containers"][0]["env"]:
            assert isinstance(entry.get("value", ""), str)


def test_token_authentication_is_on_and_upgrades_recreate() -> None:
    spec = ray_cluster(cluster_spec())["spec"]
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["upgradeStrategy"] == {"type": "Recreate"}
    assert spec["rayVersion"] == "2.58.0"


def test_another_node_count_leaves_every_pod_template_as_it_is() -> None:
    two, three = cluster_spec(workers=(gpu_workers(replicas=2),)), cluster_spec(workers=(gpu_workers(replicas=3),))
    assert cluster_facts(two)["data"] == {"expected_gpus": "8"}
    assert cluster_facts(three)["data"] == {"expected_gpus": "12"}
    before, after = ray_cluster(two), ray_cluster(three)
    different = [path for (path, old), (_, new) in zip(_leaves(before), _leaves(after), strict=True) if old != new]
    assert different == [".spec.workerGroupSpecs[0].replicas"]


def test_allowing_an_interrupt_changes_an_annotation_of_the_object_and_no_pod() -> None:
    before, after = ray_cluster(cluster_spec()), ray_cluster(cluster_spec(allow_interrupt=True))
    assert before["spec"] == after["spec"]
    assert after["metadata"]["annotations"][names.ALLOW_INTERRUPT_ANNOTATION] == "true"
    assert names.ALLOW_INTERRUPT_ANNOTATION not in before["metadata"]["annotations"]


def test_rendering_twice_gives_the_same_manifest_and_shares_no_object() -> None:
    first, second = ray_cluster(cluster_spec()), ray_cluster(cluster_spec())
    assert first == second
    first["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["securityContext"]["privileged"] = True
    assert ray_cluster(cluster_spec()) == second


def test_the_declared_gpu_count_reaches_the_pods_as_a_file_that_the_kubelet_refreshes() -> None:
    for pod in _pods():
        env = env_of(pod)
        assert env["EKS_RAY_TRAIN_EXPECTED_GPUS_FILE"] == "/opt/eks-ray-train/cluster/expected_gpus"
        assert "EKS_RAY_TRAIN_EXPECTED_GPUS" not in env  # a variable would keep its first value when the node count changes
        (mount,) = [m for m in pod["spec"]["containers"][0]["volumeMounts"] if m["mountPath"] == "/opt/eks-ray-train/cluster"]
        assert "subPath" not in mount  # the kubelet never refreshes a subPath
        assert {"name": mount["name"], "configMap": {"name": "ray-train-facts"}} in pod["spec"]["volumes"]


def test_several_groups_add_their_gpus() -> None:
    groups = (gpu_workers(), gpu_workers("p5.48xlarge", name="large", replicas=3))
    assert cluster_facts(cluster_spec(workers=groups))["data"] == {"expected_gpus": str(2 * 4 + 3 * 8)}


def test_a_worker_knows_its_instance_type_and_gpus_and_the_head_stays_independent_of_the_workers() -> None:
    groups = (gpu_workers(), gpu_workers("p5.48xlarge", name="large"))
    head, *workers = _pods(workers=groups)
    facts = [(env_of(pod)["EKS_RAY_TRAIN_INSTANCE_TYPE"], env_of(pod)["EKS_RAY_TRAIN_GPUS_PER_NODE"]) for pod in workers]
    assert facts == [("g6.12xlarge", "4"), ("p5.48xlarge", "8")]
    assert head == _pods()[0]


def test_all_pods_know_the_default_storage_and_the_region() -> None:
    for pod in _pods():
        env = env_of(pod)
        assert env["EKS_RAY_TRAIN_STORAGE_PATH"] == "s3://bucket/ray-train"
        assert env["AWS_REGION"] == "us-east-2"


def test_what_is_not_given_is_not_rendered() -> None:
    for pod in _pods(storage_path=None, region=None, service_account=None):
        env = env_of(pod)
        assert not {"EKS_RAY_TRAIN_STORAGE_PATH", "AWS_REGION", "HF_TOKEN"} & env.keys()
        assert "serviceAccountName" not in pod["spec"]
        assert "persistentVolumeClaim" not in json.dumps(pod)


def test_the_job_folder_is_mounted_with_its_sub_folders_on_head_and_workers() -> None:
    for pod in _pods():
        (mount,) = [m for m in pod["spec"]["containers"][0]["volumeMounts"] if m["mountPath"] == "/opt/eks-ray-train/job"]
        (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == mount["name"]]
        assert volume["configMap"] == {
            "name": "ray-train-job",
            "items": [{"key": "fsdp_job--loop.py", "path": "fsdp_job/loop.py"}, {"key": "train.py", "path": "train.py"}],
        }


def test_the_hugging_face_token_comes_from_a_secret_and_is_in_no_manifest() -> None:
    for pod in _pods(hf_secret_name="hub", hf_secret_key="hf"):
        assert env_of(pod)["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "hf"}}


def test_a_file_system_claim_appears_at_fsx_in_every_pod() -> None:
    for pod in _pods(fsx_claim="lustre"):
        assert {"name": "fsx", "persistentVolumeClaim": {"claimName": "lustre"}} in pod["spec"]["volumes"]
        assert {"name": "fsx", "mountPath": "/fsx"} in pod["spec"]["containers"][0]["volumeMounts"]


def test_no_pod_has_a_privilege_a_host_path_or_a_service_account_token() -> None:
    """efa-hostpath-infiniband, and more."""
    for pod in _pods():
        assert "hostPath" not in json.dumps(pod)
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert not {"hostPID", "hostIPC", "hostNetwork"} & pod["spec"].keys()
        for container in pod["spec"]["containers"]:
            assert container["securityContext"] == {
                "privileged": False,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            }


def test_our_own_label_is_on_the_object_and_on_every_pod() -> None:
    manifest = ray_cluster(cluster_spec(name="alpha"))
    for labelled in (manifest, head_of(manifest), *workers_of(manifest)):
        assert labelled["metadata"]["labels"]["eks-ray-train/cluster"] == "alpha"


def test_the_longest_name_makes_no_label_value_over_63_characters() -> None:
    """cdk-cluster-name-as-label."""
    manifest = ray_cluster(cluster_spec(name="a" * 53))
    labels = [value for path, value in _leaves(manifest) if ".labels." in path]
    assert labels
    assert max(map(len, labels)) <= 63


@pytest.mark.parametrize("variable", ["LD_LIBRARY_PATH"])
def test_no_pod_replaces_the_images_library_path(variable: str) -> None:
    for pod in _pods():
        assert variable not in env_of(pod)
    with pytest.raises(SettingsError, match=r"LD_LIBRARY_PATH.*lose the EFA plugin"):
        ray_cluster(cluster_spec(extra_env={variable: "/opt/x"}))


def test_extra_variables_go_over_ours() -> None:
    for pod in _pods(extra_env={"NCCL_DEBUG": "WARN", "NCCL_NET": "Libfabric"}):
        env = env_of(pod)
        assert env["NCCL_DEBUG"] == "WARN"
        assert env["NCCL_NET"] == "Libfabric"


def test_no_pod_reports_its_use_to_anybody_unless_it_is_asked_to() -> None:
    for pod in _pods(extra_env={"HF_HUB_DISABLE_TELEMETRY": "0"}):
        env = env_of(pod)
        assert (env["RAY_USAGE_STATS_ENABLED"], env["OPT_OUT_TRACKING"], env["HF_HUB_DISABLE_TELEMETRY"]) == ("0", "true", "0")


def test_ray_and_the_hub_client_understand_the_variables_that_switch_their_reports_off(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = pytest.importorskip("ray._common.usage.usage_lib", reason="needs Ray (requirements.txt)")
    for name, value in NO_REPORTS.items():
        monkeypatch.setenv(name, value)
    assert not usage.usage_stats_enabled()
    code = "from huggingface_hub import constants; print(constants.HF_HUB_DISABLE_TELEMETRY)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"


def test_tokens_pass_through_untouched() -> None:
    spec = cluster_spec(
        storage_path=f"s3://{TOKEN}/run", service_account=TOKEN, workers=(gpu_workers(replicas=TOKEN_NUMBER),), expected_gpus=TOKEN
    )
    manifest = ray_cluster(spec)
    assert manifest["spec"]["workerGroupSpecs"][0]["replicas"] == TOKEN_NUMBER
    assert env_of(head_of(manifest))["EKS_RAY_TRAIN_STORAGE_PATH"] == f"s3://{TOKEN}/run"
    assert cluster_facts(spec)["data"] == {"expected_gpus": TOKEN}


def test_replicas_known_only_at_deploy_time_need_a_declared_gpu_count() -> None:
    with pytest.raises(SettingsError, match="give expected_gpus"):
        cluster_spec(workers=(gpu_workers(replicas=TOKEN_NUMBER),))


def test_all_nonsense_is_reported_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        cluster_spec(workers=(), job_items={}, grace_period_seconds=5)
    assert len(caught.value.problems) == 3
