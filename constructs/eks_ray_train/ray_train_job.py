"""RayTrainJob: one training run with a Ray cluster of its own, declared instead of submitted: for teams that deploy by GitOps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from aws_cdk import Duration
from constructs import Construct, IDependable

from .cluster_type import AnyCluster
from .efa_gpu_node_group import EfaGpuNodeGroup
from .kuberay_operator import KubeRayOperator
from .manifests.ray_cluster import WorkerGroup
from .manifests.ray_job import RayJobSpec, ray_job
from .ray_workload import RayWorkload, workload_spec
from .storage import Storage
from .versions import DLC_IMAGE, RAY_VERSION


class RayTrainJob(RayWorkload):
    """A RayJob of the same parts as :class:`RayTrainCluster`: a deploy starts the run and does not wait for its end.

    The RayJob's name is ``<name>-<hash of what it runs>``: changed arguments, image, code or size make a new object, which
    starts, and the old one is stopped and deleted at the end of the deploy. A deploy that changes none of them starts nothing.
    Its workers take whole nodes: on nodes that a RayTrainCluster or another run holds it waits, at most ``start_deadline``.

    Raises SettingsError before any resource exists for a name over 38 characters, a job folder too large, no workers, a
    deadline below a second, or a namespace or name that another workload on ``cluster`` has.

    :param nodes: node groups of this library; each becomes one worker group, and is deleted after the RayJob.
    :param worker_groups: worker groups on nodes that this library did not make (labels and taints are theirs to state).
    :param job_dir: the job's folder with ``train.py`` at its top.
    :param arguments: of ``train.py``, for example ``["--steps", "100"]``.
    :param deadline: end of the whole run, default 24 hours; ``start_deadline``: end of the wait until it runs, default 1 hour.
    :param retries: after a failure, each with a new Ray cluster; the job resumes from its last checkpoint. Default 0.
    :param keep: how long the finished Ray cluster stays for looking at; default 1 minute. Its GPUs are then free again.
    :param env: variables of the pods; ``job_env``: of the run alone. A change of either starts a new run.
    :param operator: the cluster's operator; absent: one is there already, and nothing waits for it.
    :param storage: default ``--storage-path`` of the job and the role to reach it; absent: the job has none.
    :param data_buckets: ``s3://bucket/prefix`` or S3 ARNs that the job may read besides; absent: its storage's prefix only.
    :param hf_token_secret_arn: Secrets Manager secret with the Hugging Face token, as in RayTrainCluster; absent: no token.
    :param container_mirror: registry and optional prefix that replaces ``public.ecr.aws``; absent: the public registry.
    :param queue_name: Kueue's LocalQueue: the job is created suspended and Kueue starts it; absent: starts at once.
    :param metrics_namespace: namespace that may scrape Ray's metrics; absent: none.
    :param create_namespace: false where somebody else makes (and deletes) ``namespace``.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        cluster: AnyCluster,
        job_dir: Path,
        arguments: Sequence[str] = (),
        nodes: EfaGpuNodeGroup | Sequence[EfaGpuNodeGroup] = (),
        worker_groups: Sequence[WorkerGroup] = (),
        name: str = "train",
        namespace: str = "ray-train-jobs",
        deadline: Duration | None = None,
        start_deadline: Duration | None = None,
        retries: int = 0,
        keep: Duration | None = None,
        job_env: Mapping[str, str] | None = None,
        image: str = DLC_IMAGE,
        ray_version: str = RAY_VERSION,
        operator: KubeRayOperator | None = None,
        storage: Storage | None = None,
        data_buckets: Sequence[str] = (),
        hf_token_secret_arn: str | None = None,
        container_mirror: str | None = None,
        queue_name: str | None = None,
        metrics_namespace: str | None = None,
        head_node_selector: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        create_namespace: bool = True,
    ) -> None:
        groups = [nodes] if isinstance(nodes, EfaGpuNodeGroup) else list(nodes)
        spec, job = workload_spec(
            scope,
            name=name,
            namespace=namespace,
            job_dir=job_dir,
            nodes=groups,
            worker_groups=worker_groups,
            image=image,
            ray_version=ray_version,
            storage=storage,
            hf_token_secret_arn=hf_token_secret_arn,
            container_mirror=container_mirror,
            head_node_selector=head_node_selector,
            env=env,
        )
        manifest = ray_job(
            RayJobSpec(
                cluster=spec,
                job_digest=job.digest,
                arguments=tuple(arguments),
                deadline_seconds=_seconds(deadline or Duration.hours(24)),
                start_deadline_seconds=_seconds(start_deadline or Duration.hours(1)),
                retries=retries,
                keep_seconds=_seconds(keep or Duration.minutes(1)),
                queue_name=queue_name,
                environment=dict(job_env or {}),
            )
        )
        super().__init__(
            scope,
            id,
            cluster=cluster,
            spec=spec,
            job=job,
            operator=operator,
            storage=storage,
            data_buckets=data_buckets,
            hf_token_secret_arn=hf_token_secret_arn,
            metrics_namespace=metrics_namespace,
            create_namespace=create_namespace,
        )
        #: Name of the RayJob object, for example for ``kubectl logs job/<name>``.
        self.job_name: str = manifest["metadata"]["name"]
        # The one construct id made from configuration: only another logical id makes CloudFormation replace the object, so that
        # it stops and deletes the old run; an update in place would forget it, running or not.
        content = self.job_name.rpartition("-")[2]
        self.ray_job = self._manifest(f"RayJob{content}", [manifest], after=self._before_ray)

    @property
    def ready(self) -> IDependable:
        return self.ray_job


def _seconds(duration: Duration) -> int:
    return int(duration.to_seconds())
