"""Helm releases as data: chart, version, repository, namespace, release name and timeout are stated, never defaulted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import SettingsError
from .versions import EFA_CHART_REPOSITORY, KUBERAY_CHART_REPOSITORY, NVIDIA_CHART_REPOSITORY

# Helm refuses longer names (https://helm.sh/docs/chart_template_guide/builtin_objects/).
RELEASE_NAME_LIMIT = 53


@dataclass(frozen=True, kw_only=True)
class HelmRelease:
    """One chart installed once in a cluster.

    ``repository`` is a chart repository's URL, an ``oci://`` address, or the path of a local ``.tgz`` archive (then
    ``chart`` is only a name and ``version`` documents what the archive holds). ``timeout_minutes`` at most 15: the
    handler's own limit.
    """

    chart: str
    version: str
    repository: str
    namespace: str
    release: str
    timeout_minutes: int = 5

    def __post_init__(self) -> None:
        problems = []
        for field in ("chart", "version", "repository", "namespace", "release"):
            if not getattr(self, field):
                problems.append(f"Helm release {self.release or self.chart!r}: {field} is empty; state it")
        if len(self.release) > RELEASE_NAME_LIMIT:
            problems.append(
                f"Helm release name {self.release!r} has {len(self.release)} characters; at most {RELEASE_NAME_LIMIT} are allowed"
            )
        if not 1 <= self.timeout_minutes <= 15:
            problems.append(
                f"Helm release {self.release!r}: timeout_minutes must be 1 to 15 (the handler's limit), got {self.timeout_minutes}"
            )
        if problems:
            raise SettingsError(problems)

    @property
    def is_local_archive(self) -> bool:
        return self.repository.endswith(".tgz")


def kuberay_operator_release(version: str, repositories: Mapping[str, str] | None = None) -> HelmRelease:
    """The KubeRay operator's chart (its ``crds/`` folder is installed once and never upgraded by Helm)."""
    return HelmRelease(
        chart="kuberay-operator",
        version=version,
        repository=(repositories or {}).get("kuberay", KUBERAY_CHART_REPOSITORY),
        namespace="kuberay-system",
        release="kuberay-operator",
        timeout_minutes=10,
    )


def nvidia_device_plugin_release(version: str, repositories: Mapping[str, str] | None = None) -> HelmRelease:
    """NVIDIA's device plugin: advertises ``nvidia.com/gpu``. The chart refuses the namespace ``default``."""
    return HelmRelease(
        chart="nvidia-device-plugin",
        version=version,
        repository=(repositories or {}).get("nvidia", NVIDIA_CHART_REPOSITORY),
        namespace="kube-system",
        release="nvidia-device-plugin",
    )


def efa_device_plugin_release(version: str, repositories: Mapping[str, str] | None = None) -> HelmRelease:
    """AWS's EFA device plugin: advertises ``vpc.amazonaws.com/efa``."""
    return HelmRelease(
        chart="aws-efa-k8s-device-plugin",
        version=version,
        repository=(repositories or {}).get("efa", EFA_CHART_REPOSITORY),
        namespace="kube-system",
        release="aws-efa-k8s-device-plugin",
    )
