"""Helpers of the manifest tests: a default cluster, and a validator of manifests against a CRD's structural schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from eks_ray_train.instances import CATALOGUE, InstanceType
from eks_ray_train.manifests.ray_cluster import RayClusterSpec, WorkerGroup

IMAGE = "public.ecr.aws/deep-learning-containers/ray:train-ml-cuda-v1.1"
JOB_ITEMS = {"train.py": "train.py", "fsdp_job--loop.py": "fsdp_job/loop.py"}


def gpu_workers(instance_type: str = "g6.12xlarge", **changes: Any) -> WorkerGroup:
    """One worker group of an instance type, two pods, as TrainingStack makes it."""
    row: InstanceType = CATALOGUE[instance_type]
    values: dict[str, Any] = {
        "name": "gpu-workers",
        "replicas": 2,
        "pod": row.worker_pod,
        "node_selector": {"role": "gpu-worker"},
        "instance_type": row.name,
    }
    return WorkerGroup(**{**values, **changes})


def cluster_spec(**changes: Any) -> RayClusterSpec:
    """The default cluster with some fields changed."""
    values: dict[str, Any] = {
        "name": "ray-train",
        "namespace": "ray-train",
        "image": IMAGE,
        "ray_version": "2.58.0",
        "workers": (gpu_workers(),),
        "job_config_map": "ray-train-job",
        "job_items": JOB_ITEMS,
        "head_node_selector": {"role": "system"},
        "service_account": "ray-train",
        "storage_path": "s3://bucket/ray-train",
        "region": "us-east-2",
    }
    return RayClusterSpec(**{**values, **changes})


def head_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """Pod template of the head of a RayCluster or RayJob."""
    return _cluster(manifest)["headGroupSpec"]["template"]


def workers_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Pod templates of the worker groups of a RayCluster or RayJob."""
    return [group["template"] for group in _cluster(manifest)["workerGroupSpecs"]]


def env_of(template: dict[str, Any]) -> dict[str, Any]:
    """Variables of a template's Ray container: the value, or the reference where it has none."""
    entries = template["spec"]["containers"][0]["env"]
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in entries}


def _cluster(manifest: dict[str, Any]) -> dict[str, Any]:
    spec = manifest["spec"]
    return spec.get("rayClusterSpec", spec)


def crd_schema(shared_dir: Path, plural: str) -> dict[str, Any]:
    """Schema of ``ray.io/v1`` from the CRD file of KubeRay 1.7.0."""
    document = yaml.load((shared_dir / "facts" / "crds" / f"ray.io_{plural}.yaml").read_text(), Loader=yaml.CSafeLoader)
    (schema,) = [v["schema"]["openAPIV3Schema"] for v in document["spec"]["versions"] if v["name"] == "v1"]
    # A CRD's schema says nothing about metadata; the API server knows ObjectMeta by itself.
    schema["properties"]["metadata"] = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "namespace": {"type": "string"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    }
    return schema


_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool}
_QUANTITY_OR_PORT = (int, str)


def schema_problems(value: Any, schema: dict[str, Any], path: str = "") -> list[str]:
    """What a strict API server would refuse: unknown fields (found by walking ``properties``, since structural schemas do
    not close objects), missing required ones, wrong types, enums, patterns, bounds and repeated list-map keys."""
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, _QUANTITY_OR_PORT):
            return [f"{path}: {value!r} is neither a whole number nor a string"]
        return _pattern(value, schema, path)
    kind = schema.get("type")
    if kind in ("integer", "number"):
        allowed: tuple[type, ...] = (int,) if kind == "integer" else (int, float)
        if isinstance(value, bool) or not isinstance(value, allowed):
            return [f"{path}: {value!r} is no {kind}"]
    elif kind and not isinstance(value, _TYPES[kind]):
        return [f"{path}: {value!r} is no {kind}"]
    found = []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{path}: {value!r} is none of {schema['enum']}")
    if kind == "string":
        found += _pattern(value, schema, path)
    if kind == "integer" and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        found.append(f"{path}: {value} is out of bounds")
    if kind == "array":
        found += _list(value, schema, path)
    if kind == "object":
        found += _object(value, schema, path)
    return found


def _pattern(value: Any, schema: dict[str, Any], path: str) -> list[str]:
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        return [f"{path}: {value!r} does not match {schema['pattern']}"]
    return []


def _list(value: list[Any], schema: dict[str, Any], path: str) -> list[str]:
    found = [p for index, entry in enumerate(value) for p in schema_problems(entry, schema["items"], f"{path}[{index}]")]
    keys = schema.get("x-kubernetes-list-map-keys")
    if keys:
        identities = [tuple(entry.get(key) for key in keys) for entry in value if isinstance(entry, dict)]
        found += [f"{path}: two entries with {keys} {identity}" for identity in set(identities) if identities.count(identity) > 1]
    return found


def _object(value: dict[str, Any], schema: dict[str, Any], path: str) -> list[str]:
    found = [f"{path}.{name} is missing" for name in schema.get("required", []) if name not in value]
    known, extra = schema.get("properties", {}), schema.get("additionalProperties")
    for name, entry in value.items():
        if name in known:
            found += schema_problems(entry, known[name], f"{path}.{name}")
        elif isinstance(extra, dict):
            found += schema_problems(entry, extra, f"{path}.{name}")
        elif not extra and not schema.get("x-kubernetes-preserve-unknown-fields"):
            found.append(f"{path}.{name} is unknown")
    return found
