"""RayJob (ray.io/v1): one run with a cluster of its own, for teams that start jobs by GitOps or in a CDK app."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eks_ray_train.errors import SettingsError
from eks_ray_train.system_sizing import SUBMITTER

from . import names
from .job_files import ENTRY_SCRIPT
from .ray_cluster import RayClusterSpec, ray_cluster_spec
from .ray_pods import container_security
from .tokens import without_token_ids
from .validate import RAY_JOB_NAME_LIMIT, validate

_HASH_DIGITS = 8
BASE_NAME_LIMIT = RAY_JOB_NAME_LIMIT - _HASH_DIGITS - 1

# Python resolves the script's symbolic link into the ConfigMap volume's time-stamped folder, which has another name on every
# node: workers find the job's modules only by this path.
DEPLOYED_CODE_ENV = {"PYTHONPATH": names.JOB_DIR}


@dataclass(frozen=True, kw_only=True)
class RayJobSpec:
    """A run of the deployed job files on a cluster made for it (``cluster.name`` is the run's base name, 38 characters at most).

    ``arguments`` go to train.py. ``job_digest`` (``JobFiles.digest``) enters the name's hash, so that changed code runs.
    ``deadline_seconds`` bounds the whole run, ``start_deadline_seconds`` the wait until it runs (capacity included); absent:
    no such limit. ``retries`` build a new cluster each. ``keep_seconds`` the finished cluster stays for looking at.
    ``queue_name``: Kueue's LocalQueue; the job is created suspended and Kueue starts it. Absent: starts at once.
    """

    cluster: RayClusterSpec
    job_digest: str
    arguments: tuple[str, ...] = ()
    deadline_seconds: int | None = 24 * 3600
    start_deadline_seconds: int | None = 3600
    retries: int = 0
    keep_seconds: int = 60
    queue_name: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.cluster.name) > BASE_NAME_LIMIT:
            raise SettingsError(
                f"RayJob name must be at most {BASE_NAME_LIMIT} characters (KubeRay allows {RAY_JOB_NAME_LIMIT}, a hash of the "
                f"content takes {_HASH_DIGITS + 1}), got {len(self.cluster.name)}: {self.cluster.name!r}; shorten it"
            )


def ray_job(spec: RayJobSpec) -> dict[str, Any]:
    """The RayJob manifest, named ``<base>-<hash of the content>``: KubeRay ignores edits of a finished job, so that a change
    must come as a new object. Raises SettingsError with everything the API server or KubeRay would stumble over."""
    cluster = spec.cluster
    labels = {names.CLUSTER_LABEL: cluster.name, **names.MANAGED_BY}
    job: dict[str, Any] = {
        "entrypoint": shlex.join(["python", f"{names.JOB_DIR}/{ENTRY_SCRIPT}", *spec.arguments]),
        # JSON is YAML.
        "runtimeEnvYAML": json.dumps({"env_vars": {**DEPLOYED_CODE_ENV, **spec.environment}}),
        "submissionMode": "K8sJobMode",
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": spec.keep_seconds,
        "backoffLimit": spec.retries,
        "submitterPodTemplate": _submitter(cluster),
        "rayClusterSpec": ray_cluster_spec(cluster, label=cluster.name),
    }
    if spec.deadline_seconds is not None:
        job["activeDeadlineSeconds"] = spec.deadline_seconds
    if spec.start_deadline_seconds is not None:
        job["preRunningDeadlineSeconds"] = spec.start_deadline_seconds
    if spec.queue_name is not None:
        job["suspend"] = True
        labels[names.QUEUE_LABEL] = spec.queue_name
    content = json.dumps([without_token_ids(job), without_token_ids(labels), spec.job_digest], sort_keys=True)
    manifest = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": f"{cluster.name}-{hashlib.sha256(content.encode()).hexdigest()[:_HASH_DIGITS]}",
            "namespace": cluster.namespace,
            "labels": labels,
            "annotations": {names.OVERWRITE_COMMAND_ANNOTATION: "true"},  # KubeRay hands it on to the RayCluster
        },
        "spec": job,
    }
    validate(manifest)
    return manifest


def _submitter(cluster: RayClusterSpec) -> dict[str, Any]:
    """The pod that submits and follows the log: KubeRay's default one has no node selector, so that it could pull the large
    image onto any untainted node, and lacks the label that network policies select by. KubeRay fills in the command."""
    return {
        "metadata": {"labels": {names.CLUSTER_LABEL: cluster.name}},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "nodeSelector": dict(cluster.head_node_selector),
            "tolerations": [taint.toleration() for taint in cluster.head_taints],
            "containers": [
                {
                    "name": "ray-job-submitter",
                    "image": cluster.image,
                    "imagePullPolicy": "IfNotPresent",
                    "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
                    # The requests of system_sizing.SUBMITTER; memory may burst while the client starts.
                    "resources": {
                        "requests": {"cpu": f"{SUBMITTER.cpu_millis}m", "memory": f"{SUBMITTER.memory_mib}Mi"},
                        "limits": {"cpu": "1", "memory": "1Gi"},
                    },
                    "securityContext": container_security(),
                }
            ],
        },
    }
