"""Installs one HelmRelease through the cluster's handler, once a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aws_cdk import Duration, Stack
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from .cluster_type import AnyCluster, as_icluster
from .errors import SettingsError
from .helm import HelmRelease


def helm_install(
    scope: Construct,
    id: str,
    *,
    cluster: AnyCluster,
    release: HelmRelease,
    values: Mapping[str, Any],
    wait: bool = False,
) -> eks.HelmChart:
    """The chart of ``release`` with everything stated: version, repository, namespace, release name, timeout.

    ``wait`` makes the deploy wait until the chart's objects are ready (at most ``release.timeout_minutes``).
    Raises SettingsError where the repository is a local archive that does not exist.
    """
    timeout = Duration.minutes(release.timeout_minutes)
    if not release.is_local_archive:
        return eks.HelmChart(
            scope,
            id,
            cluster=as_icluster(cluster),
            chart=release.chart,
            # For OCI this is the chart's whole address; the handler pulls it first.
            repository=release.repository,
            version=release.version,
            namespace=release.namespace,
            release=release.release,
            create_namespace=True,
            values=values,
            wait=wait,
            timeout=timeout,
        )
    archive = Path(release.repository)
    if not archive.is_file():
        raise SettingsError(
            f"chart archive {archive} for {release.chart} does not exist; give the path of a .tgz or a repository's URL"
        )
    from aws_cdk import aws_s3_assets as s3_assets  # only where a chart is vendored

    return eks.HelmChart(
        scope,
        id,
        cluster=as_icluster(cluster),
        chart_asset=s3_assets.Asset(scope, f"{id}Archive", path=str(archive)),
        namespace=release.namespace,
        release=release.release,
        create_namespace=True,
        values=values,
        wait=wait,
        timeout=timeout,
    )


def claim_release(cluster: AnyCluster, owner: Construct, release: HelmRelease) -> None:
    """Marks ``release`` as installed on ``cluster`` by ``owner``.

    Raises SettingsError where another construct already installs it there: two operations on one Helm release collide.
    """
    # The mark is a construct without resources in the cluster's stack: an imported cluster takes no children from Python.
    stack = Stack.of(as_icluster(cluster))
    mark_id = f"HelmRelease-{release.release}-{cluster.node.addr}"
    mark = stack.node.try_find_child(mark_id)
    if mark is not None:
        first = mark.node.try_get_context("owner")
        raise SettingsError(
            f"Helm release {release.release} is already installed on this cluster by {first}; {owner.node.path} asks for it again: "
            f"create {type(owner).__name__} once a cluster and pass that object on"
        )
    Construct(stack, mark_id).node.set_context("owner", owner.node.path)
