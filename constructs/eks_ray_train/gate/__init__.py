"""The transport gate: what carried the traffic between nodes, and does that pass. Pure, standard library only."""

from eks_ray_train.gate.evidence import Evidence, ExpectedFabric, Transport
from eks_ray_train.gate.nccl_log import LogParser
from eks_ray_train.gate.verdict import InstanceFacts, NodeVerdict, Verdict, judge

__all__ = ["Evidence", "ExpectedFabric", "InstanceFacts", "LogParser", "NodeVerdict", "Transport", "Verdict", "judge"]
