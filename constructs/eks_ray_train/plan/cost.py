"""Money: what a run costs from the first step to the last, and the cluster while it stands."""

from __future__ import annotations

from dataclasses import dataclass

# us-east-1: EKS control plane 0.10 (standard support), one NAT gateway 0.045, one m7i.xlarge system node 0.2016, and a
# 200 GB gp3 volume a GPU node 0.022 USD an hour (AWS price list, July 2026; the last three not checked again since).
EKS_USD_PER_HOUR = 0.10
NAT_USD_PER_HOUR = 0.045
SYSTEM_NODE_USD_PER_HOUR = 0.2016
VOLUME_USD_PER_HOUR = 0.022


@dataclass(frozen=True, kw_only=True)
class Cost:
    """USD an hour of GPU nodes and of everything around them, and of the run. None = the catalogue has no price."""

    gpu_usd_per_hour: float | None
    other_usd_per_hour: float
    hours: float
    tokens: float

    @property
    def usd_per_hour(self) -> float | None:
        return None if self.gpu_usd_per_hour is None else self.gpu_usd_per_hour + self.other_usd_per_hour

    @property
    def usd(self) -> float | None:
        """USD of the run's steps; start-up and idle time come on top."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.hours

    @property
    def usd_per_million_tokens(self) -> float | None:
        return None if self.usd is None or not self.tokens else self.usd / self.tokens * 1e6


def run_cost(*, gpu_usd_per_hour: float | None, nodes: int, seconds: float, tokens: float) -> Cost:
    """Cost of ``seconds`` of a cluster of ``nodes`` GPU nodes that cost ``gpu_usd_per_hour`` together (on demand)."""
    other = EKS_USD_PER_HOUR + NAT_USD_PER_HOUR + SYSTEM_NODE_USD_PER_HOUR + VOLUME_USD_PER_HOUR * nodes
    return Cost(gpu_usd_per_hour=gpu_usd_per_hour, other_usd_per_hour=other, hours=seconds / 3600.0, tokens=tokens)
