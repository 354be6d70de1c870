"""A small change changes only what it must: nothing replaces the cluster, needs twice the GPUs, or restarts pods for nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.synth.template_reading import MANIFEST, launch_template_of, manifests, of_type, only, text_of

Templates = dict[str, dict[str, Any]]
# Properties whose change makes CloudFormation replace the resource (resource provider schemas, createOnlyProperties).
CREATE_ONLY = {
    "AWS::EKS::Cluster": {"Name", "RoleArn", "EncryptionConfig", "BootstrapSelfManagedAddons", "OutpostConfig"},
    "AWS::EKS::Nodegroup": {
        "AmiType", "CapacityType", "ClusterName", "DiskSize", "InstanceTypes", "NodeRole", "NodegroupName", "RemoteAccess", "Subnets",
    },
    "AWS::EC2::LaunchTemplate": {"LaunchTemplateName"},
    "AWS::EC2::SecurityGroup": {"GroupDescription", "GroupName", "VpcId"},
    "AWS::S3::Bucket": {"BucketName"},
    "AWS::EKS::PodIdentityAssociation": {"ClusterName", "Namespace", "ServiceAccount"},
    "AWS::FSx::FileSystem": {"SubnetIds", "StorageType", "SecurityGroupIds", "FileSystemType"},
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    settings: dict[str, Any]
    kinds: set[str]  # of resources that may differ
    objects: set[str]  # kinds of Kubernetes objects that may differ
    pods: set[str]  # Ray groups whose pods KubeRay replaces


CHANGES = {
    "image": Change(
        {"dlc_image": "public.ecr.aws/deep-learning-containers/ray:train-ml-cuda-v1.1.0"}, {MANIFEST}, {"RayCluster"}, {"head", "gpu"}
    ),
    "more nodes": Change(
        {"gpu_node_count": 3},
        {"Custom::CapacityClaim", "Custom::SpendingLimit", "AWS::EKS::Nodegroup", MANIFEST},
        {"RayCluster", "ConfigMap"},
        set(),
    ),
    "fewer nodes": Change(
        {"gpu_node_count": 1},
        {"Custom::CapacityClaim", "Custom::SpendingLimit", "AWS::EKS::Nodegroup", MANIFEST},
        {"RayCluster", "ConfigMap"},
        set(),
    ),
    "instance type": Change(
        {"gpu_instance_type": "g6.24xlarge"},
        {"Custom::CapacityClaim", "AWS::IAM::Policy", "AWS::EC2::LaunchTemplate", MANIFEST},
        {"RayCluster"},
        {"gpu"},
    ),
    "instance type with other interfaces and quota": Change(
        {"gpu_instance_type": "p5.48xlarge"},
        {"Custom::CapacityClaim", "AWS::IAM::Policy", "AWS::EC2::LaunchTemplate", MANIFEST},
        {"RayCluster", "ConfigMap"},
        {"gpu"},
    ),
}  # fmt: skip


def _objects(template: dict[str, Any]) -> dict[tuple[str, str], Any]:
    return {(o["kind"], o["metadata"]["name"]): o for o in manifests(template)}


def _pods(template: dict[str, Any]) -> dict[str, Any]:
    (ray,) = manifests(template, "RayCluster")
    groups = {"head": ray["spec"]["headGroupSpec"], **{g["groupName"]: g for g in ray["spec"]["workerGroupSpecs"]}}
    # What KubeRay compares under upgradeStrategy Recreate: everything of a group but its counts.
    counts = ("replicas", "minReplicas", "maxReplicas")
    return {name: {k: v for k, v in group.items() if k not in counts} for name, group in groups.items()}


def _replaced(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Resources that CloudFormation would replace or remove."""
    found = [name for name in before["Resources"] if name not in after["Resources"]]
    for name, old in before["Resources"].items():
        new = after["Resources"].get(name, old)
        for key in CREATE_ONLY.get(old["Type"], set()):
            if old.get("Properties", {}).get(key) != new.get("Properties", {}).get(key):
                found.append(f"{name}.{key}")
    return found


@pytest.mark.parametrize("name", list(CHANGES))
def test_only_the_resources_that_must_differ_do(name: str, default_app: Templates, synth: Callable[..., Templates]) -> None:
    change, changed = CHANGES[name], synth(**CHANGES[name].settings)
    assert changed["eks"] == default_app["eks"]
    before, after = default_app["training"]["Resources"], changed["training"]["Resources"]
    assert set(before) == set(after)
    assert {r["Type"] for key, r in after.items() if r != before[key]} <= change.kinds


@pytest.mark.parametrize("name", list(CHANGES))
def test_nothing_is_replaced(name: str, default_app: Templates, synth: Callable[..., Templates]) -> None:
    changed = synth(**CHANGES[name].settings)
    for stack in ("network", "eks", "training"):
        assert _replaced(default_app[stack], changed[stack]) == []


@pytest.mark.parametrize("name", list(CHANGES))
def test_only_the_pods_that_must_restart_do(name: str, default_app: Templates, synth: Callable[..., Templates]) -> None:
    before, after = default_app["training"], synth(**CHANGES[name].settings)["training"]
    objects = _objects(after)
    assert set(objects) == set(_objects(before))
    assert {kind for (kind, key), o in objects.items() if o != _objects(before)[kind, key]} == CHANGES[name].objects
    old, new = _pods(before), _pods(after)
    assert {group for group in new if new[group] != old[group]} == CHANGES[name].pods


def test_another_instance_type_is_a_new_version_of_the_same_template_and_never_twice_the_gpus(
    default_app: Templates, synth: Callable[..., Templates]
) -> None:
    """The group stays, so that EKS stops an old node before it starts a new one (strategy MINIMAL)."""
    before, after = default_app["training"], synth(gpu_instance_type="g6.24xlarge")["training"]
    old, new = only(before, "AWS::EKS::Nodegroup"), only(after, "AWS::EKS::Nodegroup")
    assert old == new
    assert new["Properties"]["UpdateConfig"] == {"MaxUnavailable": 1, "UpdateStrategy": "MINIMAL"}
    types = [launch_template_of(t, g)["InstanceType"] for t, g in ((before, old), (after, new))]
    assert types == ["g6.12xlarge", "g6.24xlarge"]


def test_changed_job_files_change_the_job_files_and_nothing_else(
    repo: Path, tmp_path: Path, default_app: Templates
) -> None:
    from aws_cdk import App, Environment

    from eks_ray_train import Settings
    from eks_ray_train.settings import read_cdk_json
    from stacks import EksStack, NetworkStack, TrainingStack

    job = tmp_path / "job"
    shutil.copytree(repo / "job", job, ignore=shutil.ignore_patterns("__pycache__"))
    (job / "train.py").write_text((job / "train.py").read_text() + "# changed\n")
    app = App(context=read_cdk_json(repo / "cdk.json"), analytics_reporting=False, outdir=str(tmp_path / "out"))
    env = Environment()
    network = NetworkStack(app, "EksRayTrainNetwork", settings=Settings(), env=env)
    eks = EksStack(app, "EksRayTrainCluster", settings=Settings(), vpc=network.vpc, env=env)
    TrainingStack(app, "EksRayTrainTraining", settings=Settings(), eks=eks, job_dir=job, env=env)
    app.synth()
    changed = json.loads((tmp_path / "out" / "EksRayTrainTraining.template.json").read_text())
    assert _pods(changed) == _pods(default_app["training"])
    after, before = changed["Resources"], default_app["training"]["Resources"]
    assert set(after) == set(before)
    differing = [name for name, resource in after.items() if resource != before[name]]
    (name,) = differing
    documents = json.loads(text_of(after[name]["Properties"]["Manifest"]))
    assert after[name]["Type"] == MANIFEST and {d["kind"] for d in documents} == {"ConfigMap"}


def test_the_table_of_replacing_properties_names_what_the_templates_have(default_app: Templates) -> None:
    kinds = {r["Type"] for t in default_app.values() for r in t["Resources"].values()}
    assert set(CREATE_ONLY) - kinds == {"AWS::FSx::FileSystem"}
    assert of_type(default_app["eks"], "AWS::EKS::Cluster")
