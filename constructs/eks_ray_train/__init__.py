# ruff: noqa: F401 (re-exported through _EXPORTS)
"""AWS CDK constructs for distributed PyTorch training with Ray Train on Amazon EKS over EFA.

Names are loaded when first used (PEP 562): importing this package alone loads neither the CDK nor boto3.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS: dict[str, str] = {
    # constructs
    "CapacityClaim": "capacity_probe",
    "CapacityProbe": "capacity_probe",
    "CheckpointBucket": "storage",
    "ClusterAddons": "cluster_addons",
    "DevicePlugins": "device_plugins",
    "EfaGpuNodeGroup": "efa_gpu_node_group",
    "EfaSecurityGroup": "efa_security_group",
    "JobIdentity": "job_identity",
    "KubeRayOperator": "kuberay_operator",
    "LustreStorage": "storage",
    "RayTrainCluster": "ray_train_cluster",
    "RayTrainJob": "ray_train_job",
    "RunOutputs": "run_outputs",
    "SpendingLimit": "spending_limit",
    "SystemNodeGroup": "system_node_group",
    "TrainingCluster": "training_cluster",
    "TrainingNetwork": "network",
    "existing_cluster": "training_cluster",
    "kubectl_layer": "kubectl",
    # data
    "GPU_TAINT": "node_labels",
    "HelmRelease": "helm",
    "InstanceType": "instances",
    "Settings": "settings",
    "Taint": "node_labels",
    "WorkerGroup": "manifests.ray_cluster",
    "get_instance_type": "instances",
    "load_settings": "settings",
    # errors
    "EksRayTrainError": "errors",
    "ExitCode": "errors",
    "SettingsError": "errors",
    "UsageError": "errors",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})


if TYPE_CHECKING:  # for type checkers and editors; the table above decides
    from .capacity_probe import CapacityClaim, CapacityProbe
    from .cluster_addons import ClusterAddons
    from .device_plugins import DevicePlugins
    from .efa_gpu_node_group import EfaGpuNodeGroup
    from .efa_security_group import EfaSecurityGroup
    from .errors import EksRayTrainError, ExitCode, SettingsError, UsageError
    from .helm import HelmRelease
    from .instances import InstanceType, get_instance_type
    from .job_identity import JobIdentity
    from .kubectl import kubectl_layer
    from .kuberay_operator import KubeRayOperator
    from .manifests.ray_cluster import WorkerGroup
    from .network import TrainingNetwork
    from .node_labels import GPU_TAINT, Taint
    from .ray_train_cluster import RayTrainCluster
    from .ray_train_job import RayTrainJob
    from .run_outputs import RunOutputs
    from .settings import Settings, load_settings
    from .spending_limit import SpendingLimit
    from .storage import CheckpointBucket, LustreStorage
    from .system_node_group import SystemNodeGroup
    from .training_cluster import TrainingCluster, existing_cluster
