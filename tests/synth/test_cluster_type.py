"""Constructs refuse a cluster of the older ``aws_eks`` module, whose names are alike enough to go through synthesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from aws_cdk import App, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks as older
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from eks_ray_train import (
    CheckpointBucket,
    ClusterAddons,
    DevicePlugins,
    EfaGpuNodeGroup,
    JobIdentity,
    KubeRayOperator,
    LustreStorage,
    RayTrainCluster,
    RayTrainJob,
    SettingsError,
    SystemNodeGroup,
    WorkerGroup,
    get_instance_type,
    kubectl_layer,
)
from eks_ray_train.cluster_type import cluster_problems

WORKERS = WorkerGroup(name="gpu", replicas=2, pod=get_instance_type("g6.12xlarge").worker_pod)
CONSTRUCTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "EfaGpuNodeGroup": lambda s, c, _: EfaGpuNodeGroup(s, "It", cluster=c, instance_type="g6.12xlarge", node_count=2, subnet_id="subnet-1"),
    "KubeRayOperator": lambda s, c, _: KubeRayOperator(s, "It", cluster=c),
    "DevicePlugins": lambda s, c, _: DevicePlugins(s, "It", cluster=c),
    "ClusterAddons": lambda s, c, _: ClusterAddons(s, "It", cluster=c, system_nodes=s),
    "SystemNodeGroup": lambda s, c, _: SystemNodeGroup(s, "It", cluster=c, subnets=[]),
    "JobIdentity": lambda s, c, _: JobIdentity(s, "It", cluster=c, namespace="n", service_account="a"),
    "RayTrainCluster": lambda s, c, job: RayTrainCluster(s, "It", cluster=c, job_dir=job, worker_groups=[WORKERS]),
    "RayTrainJob": lambda s, c, job: RayTrainJob(s, "It", cluster=c, job_dir=job, worker_groups=[WORKERS]),
    "LustreStorage": lambda s, c, _: LustreStorage(s, "It", cluster=c, subnet_id="subnet-1", bucket=CheckpointBucket(s, "B", prefix="p"), name="n"),
}  # fmt: skip


@pytest.fixture(scope="module")
def clusters() -> dict[str, Any]:
    stack = Stack(App(), "Clusters")
    vpc = ec2.Vpc(stack, "Vpc", nat_gateways=1)
    return {
        "own": older.Cluster(
            stack, "Own", version=older.KubernetesVersion.of("1.36"), vpc=vpc, kubectl_layer=kubectl_layer(stack, "Layer", minor=36)
        ),
        "imported": older.Cluster.from_cluster_attributes(stack, "Imported", cluster_name="theirs"),
        "v2 own": eks.Cluster(stack, "OwnTwo", version=eks.KubernetesVersion.V1_36, vpc=vpc),
        "v2 imported": eks.Cluster.from_cluster_attributes(stack, "ImportedTwo", cluster_name="theirs"),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["own", "imported"])
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_an_older_cluster_is_one_clear_error_before_anything_is_made(
    clusters: dict[str, Any], name: str, kind: str, repo: Any
) -> None:
    stack = Stack(App(), "S")
    with pytest.raises(SettingsError, match=r"cluster must be a cluster of aws_cdk\.aws_eks_v2.*got one of aws_cdk\.aws_eks .*; use") as caught:
        CONSTRUCTS[name](stack, clusters[kind], repo / "job")
    assert len(caught.value.problems) == 1
    assert stack.node.try_find_child("It") is None


@pytest.mark.parametrize("kind", ["v2 own", "v2 imported"])
def test_clusters_of_aws_eks_v2_are_what_is_wanted(clusters: dict[str, Any], kind: str) -> None:
    assert cluster_problems(clusters[kind]) == []


def test_every_construct_that_takes_a_cluster_is_tried_here() -> None:
    import inspect

    import eks_ray_train

    public = {name: getattr(eks_ray_train, name) for name in eks_ray_train.__all__}
    takes = {
        name for name, thing in public.items()
        if isinstance(thing, type) and issubclass(thing, Construct) and "cluster" in inspect.signature(thing.__init__).parameters
    }  # fmt: skip
    assert takes == set(CONSTRUCTS)


def test_the_cluster_is_told_with_everything_else(clusters: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as caught:
        SystemNodeGroup(Stack(App(), "S"), "It", cluster=clusters["own"], subnets=[], instance_type="m7g.xlarge", node_count=-1)
    assert len(caught.value.problems) == 3
