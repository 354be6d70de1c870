"""Every version that a deploy pins, and the calendar of Kubernetes versions on Amazon EKS. Nowhere else.

Sources: EKS release calendar (https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html),
KubeRay releases, NVIDIA/k8s-device-plugin releases, aws/eks-charts, AWS Deep Learning Containers release notes.
Checked 2026-11-29.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

DEFAULT_KUBERNETES = "1.36"

RAY_VERSION = "2.58.0"
TORCH_VERSION = "2.13.0"
DLC_REPOSITORY = "public.ecr.aws/deep-learning-containers/ray"
# v1.1 moves with security rebuilds; a digest is accepted and recommended (the name the sample's articles use is the default).
DLC_IMAGE = f"{DLC_REPOSITORY}:train-ml-cuda-v1.1"

KUBERAY_VERSION = "1.7.0"
NVIDIA_DEVICE_PLUGIN_VERSION = "0.20.0"
EFA_DEVICE_PLUGIN_VERSION = "v0.5.30"

KUBERAY_CHART_REPOSITORY = "https://ray-project.github.io/kuberay-helm/"
NVIDIA_CHART_REPOSITORY = "https://nvidia.github.io/k8s-device-plugin"
EFA_CHART_REPOSITORY = "https://aws.github.io/eks-charts"

# KubeRay switches token authentication on from this Ray version (KubeRay v1.7.0, spec validation).
TOKEN_AUTH_MIN_RAY = (2, 52, 0)


@dataclass(frozen=True, kw_only=True)
class KubernetesRelease:
    """One Kubernetes minor version on EKS: dates of release, end of standard and of extended support."""

    version: str
    released: dt.date
    standard_until: dt.date
    extended_until: dt.date

    def status(self, today: dt.date) -> str:
        """``standard``, ``extended`` (paid) or ``gone`` (can no longer be created) on ``today``."""
        if today > self.extended_until:
            return "gone"
        return "standard" if today <= self.standard_until else "extended"


def _release(version: str, released: str, standard: str, extended: str) -> KubernetesRelease:
    day = dt.date.fromisoformat
    return KubernetesRelease(
        version=version, released=day(released), standard_until=day(standard), extended_until=day(extended)
    )


KUBERNETES_RELEASES: dict[str, KubernetesRelease] = {
    r.version: r
    for r in (
        _release("1.30", "2024-05-23", "2025-07-23", "2026-07-23"),
        _release("1.31", "2024-09-26", "2025-11-26", "2026-11-26"),
        _release("1.32", "2025-01-23", "2026-03-23", "2027-03-23"),
        _release("1.33", "2025-05-29", "2026-07-29", "2027-07-29"),
        _release("1.34", "2025-10-02", "2026-12-02", "2027-12-02"),
        _release("1.35", "2026-01-28", "2027-03-27", "2028-03-27"),
        _release("1.36", "2026-06-02", "2027-08-02", "2028-08-02"),
    )
}


def minor_of(version: str) -> int:
    """``"1.36"`` -> 36. Raises ValueError for anything that is not ``1.N``."""
    major, dot, minor = version.partition(".")
    if major != "1" or not dot or not minor.isdigit():
        raise ValueError(f"Kubernetes version must look like 1.36, got {version!r}")
    return int(minor)


def ray_version_tuple(version: str) -> tuple[int, int, int]:
    """``"2.58.0"`` -> (2, 58, 0). Raises ValueError for anything that is not MAJOR.MINOR.PATCH."""
    parts = version.split(".")
    if len(parts) != 3 or not all(p.isdigit() for p in parts):
        raise ValueError(f"ray_version must look like {RAY_VERSION}, got {version!r}")
    return int(parts[0]), int(parts[1]), int(parts[2])


# Minor versions whose layer is on PyPI (aws-cdk.lambda-layer-kubectl-vNN) and reaches a version that EKS still had in 2026.
KUBECTL_LAYERS = range(30, minor_of(max(KUBERNETES_RELEASES, key=minor_of)) + 2)


@dataclass(frozen=True, kw_only=True)
class KubectlLayer:
    """The PyPI package that brings kubectl and Helm of one minor version to the deploy's handler."""

    minor: int

    @property
    def package(self) -> str:
        return f"aws-cdk.lambda-layer-kubectl-v{self.minor}"

    @property
    def module(self) -> str:
        return f"aws_cdk.lambda_layer_kubectl_v{self.minor}"

    @property
    def class_name(self) -> str:
        return f"KubectlV{self.minor}Layer"
