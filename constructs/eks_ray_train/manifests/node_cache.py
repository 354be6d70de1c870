"""The Hugging Face cache on the nodes' own disks: one folder a node, which outlives the pods.

The pods' level of pod security, ``baseline``, forbids hostPath volumes in a pod, since whoever may make a pod could then read any
folder of the node. So the deploy, not a pod, names the one folder: a PersistentVolume of the kind hostPath, reserved for one
claim in one namespace, which pods mount as they mount any claim. It has no node affinity: on each node it is that node's folder
(https://kubernetes.io/docs/concepts/storage/volumes/#hostpath), which is what a cache wants and no other use should.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import names

if TYPE_CHECKING:
    from .ray_cluster import RayClusterSpec

# Kubernetes wants a number and holds nobody to it for this kind of volume: the disk is the limit.
_NOMINAL = {"storage": "1Ti"}


def node_cache(spec: RayClusterSpec) -> list[dict[str, Any]]:
    """Volume and claim of the worker groups whose nodes have a folder for it (``WorkerGroup.cache_dir``); else nothing."""
    folder = spec.cache_dir
    if folder is None:
        return []
    claim = names.hf_cache_claim(spec.name)
    labels = {names.CLUSTER_LABEL: spec.name, **names.MANAGED_BY}
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = f"{spec.namespace}-{claim}"
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume, "labels": labels},
            "spec": {
                **common,
                "capacity": dict(_NOMINAL),
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": spec.namespace, "name": claim},
                # Namespace and name in the path: models that one team downloaded are not loaded by another.
                "hostPath": {
                    "path": f"{folder.rstrip('/')}/eks-ray-train/{spec.namespace}/{spec.name}/hf",
                    "type": "DirectoryOrCreate",
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": spec.namespace, "labels": labels},
            "spec": {**common, "volumeName": volume, "resources": {"requests": dict(_NOMINAL)}},
        },
    ]
