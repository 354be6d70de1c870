"""Labels and taints that bind pods to node groups: written by the node groups, read by charts and manifests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from .errors import SettingsError

ROLE_LABEL = "eks-ray-train/role"
GPU_ROLE = "gpu"
SYSTEM_ROLE = "system"

GPU_NODE_SELECTOR: dict[str, str] = {ROLE_LABEL: GPU_ROLE}
SYSTEM_NODE_SELECTOR: dict[str, str] = {ROLE_LABEL: SYSTEM_ROLE}

# NVIDIA's chart looks for this label; the EKS AMI sets it only from Kubernetes 1.35 on, so the node group always does.
GPU_PRESENT_LABEL: dict[str, str] = {"nvidia.com/gpu.present": "true"}

TaintEffect = Literal["NO_SCHEDULE", "NO_EXECUTE", "PREFER_NO_SCHEDULE"]
_KUBERNETES_EFFECT = {
    "NO_SCHEDULE": "NoSchedule",
    "NO_EXECUTE": "NoExecute",
    "PREFER_NO_SCHEDULE": "PreferNoSchedule",
}


@dataclass(frozen=True, kw_only=True)
class Taint:
    """One taint of a node group, in the spelling of the EKS API (``NO_SCHEDULE`` …)."""

    key: str
    value: str = ""
    effect: TaintEffect = "NO_SCHEDULE"

    def __post_init__(self) -> None:
        if not self.key or self.effect not in _KUBERNETES_EFFECT:
            raise SettingsError(
                f"a taint needs a key and one of the effects {', '.join(_KUBERNETES_EFFECT)}, got {self.key!r} and {self.effect!r}"
            )

    def toleration(self) -> dict[str, Any]:
        """The pod toleration that matches exactly this taint."""
        effect = _KUBERNETES_EFFECT[self.effect]
        if not self.value:
            return {"key": self.key, "operator": "Exists", "effect": effect}
        return {"key": self.key, "operator": "Equal", "value": self.value, "effect": effect}


GPU_TAINT = Taint(key="nvidia.com/gpu", value="true")


def tolerations(taints: Iterable[Taint]) -> list[dict[str, Any]]:
    """One toleration a taint, without repeats, in the given order."""
    return [taint.toleration() for taint in dict.fromkeys(taints)]
