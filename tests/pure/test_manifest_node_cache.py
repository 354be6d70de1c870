"""The Hugging Face cache: on the node's own disk, kept between pods where that disk is NVMe, within the pods' security level."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eks_ray_train.errors import SettingsError
from eks_ray_train.manifests.node_cache import node_cache
from eks_ray_train.manifests.ray_cluster import RayClusterSpec, ray_cluster
from eks_ray_train.manifests.ray_job import RayJobSpec, ray_job
from tests.pure.manifest_support import cluster_spec, env_of, gpu_workers, head_of, workers_of

FOLDER = "/mnt/k8s-disks/0"


def kept(**changes: Any) -> RayClusterSpec:
    return cluster_spec(workers=(gpu_workers(cache_dir=FOLDER),), **changes)


def cache_of(pod: dict[str, Any]) -> dict[str, Any]:
    """The volume that is mounted where HF_HOME points."""
    place = env_of(pod)["HF_HOME"]
    (mount,) = [m for m in pod["spec"]["containers"][0]["volumeMounts"] if m["mountPath"] == place]
    assert not mount.get("readOnly")
    (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == mount["name"]]
    return dict(volume)


def test_workers_on_nvme_keep_the_cache_in_one_folder_of_their_node() -> None:
    for manifest in (ray_cluster(kept()), ray_job(RayJobSpec(cluster=kept(), job_digest="0"))):
        (pod,) = workers_of(manifest)
        assert cache_of(pod) == {"name": "hf-cache", "persistentVolumeClaim": {"claimName": "ray-train-hf-cache"}}


def test_without_such_a_folder_the_cache_is_on_the_nodes_disk_as_long_as_the_pod() -> None:
    (pod,) = workers_of(ray_cluster(cluster_spec()))
    assert cache_of(pod) == {"name": "hf-cache", "emptyDir": {}}
    assert node_cache(cluster_spec()) == []


def test_the_head_is_the_same_whatever_the_workers_have() -> None:
    assert head_of(ray_cluster(kept())) == head_of(ray_cluster(cluster_spec()))
    assert cache_of(head_of(ray_cluster(kept())))["emptyDir"] == {}


def test_no_pod_names_a_folder_of_the_host_and_the_volume_is_reserved_for_one_claim() -> None:
    """A hostPath in a pod exceeds the level baseline; a claim does not, and nobody else's claim can bind this volume."""
    spec = kept(name="alpha", namespace="team-a")
    volume, claim = node_cache(spec)
    assert "hostPath" not in json.dumps(workers_of(ray_cluster(spec)))
    assert (volume["kind"], claim["kind"]) == ("PersistentVolume", "PersistentVolumeClaim")
    assert volume["spec"]["claimRef"] == {"namespace": "team-a", "name": "alpha-hf-cache"}
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert claim["metadata"] == {**claim["metadata"], "namespace": "team-a", "name": "alpha-hf-cache"}
    # "" and not absent: a default storage class would make a disk of its own for the claim.
    assert volume["spec"]["storageClassName"] == claim["spec"]["storageClassName"] == ""
    assert volume["spec"]["accessModes"] == claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["spec"]["resources"]["requests"] == volume["spec"]["capacity"]
    assert "nodeAffinity" not in volume["spec"]  # on each node that node's own folder


def test_two_clusters_share_neither_volume_nor_folder() -> None:
    made = [node_cache(kept(name=n, namespace=s))[0] for n, s in (("a", "x"), ("b", "x"), ("a", "y"))]
    assert len({v["metadata"]["name"] for v in made}) == 3
    paths = {v["spec"]["hostPath"]["path"] for v in made}
    assert len(paths) == 3 and all(path.startswith(f"{FOLDER}/eks-ray-train/") for path in paths)
    assert all(v["spec"]["hostPath"]["type"] == "DirectoryOrCreate" for v in made)


def test_some_groups_may_have_the_folder_and_others_not_but_not_two_folders() -> None:
    plain = gpu_workers(name="plain")
    spec = cluster_spec(workers=(gpu_workers(cache_dir=FOLDER), plain))
    first, second = workers_of(ray_cluster(spec))
    assert "persistentVolumeClaim" in cache_of(first) and "emptyDir" in cache_of(second)
    with pytest.raises(SettingsError, match=r"/mnt/k8s-disks/0 and /nvme.*give one cache_dir"):
        cluster_spec(workers=(gpu_workers(cache_dir=FOLDER), gpu_workers(name="other", cache_dir="/nvme")))
