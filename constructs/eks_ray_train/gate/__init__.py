"""The transport gate: what carried the traffic between nodes, and does that pass. Pure, standard library only."""

from eks_ray_train.gate.answer import Expected, NodeVerdict, Verdict
from eks_ray_train.gate.events import judge_events
from eks_ray_train.gate.evidence import Evidence, ExpectedFabric, Transport
from eks_ray_train.gate.junit import junit_xml
from eks_ray_train.gate.nccl_log import LogParser
from eks_ray_train.gate.run_judge import RunJudge, read_log
from eks_ray_train.gate.verdict import InstanceFacts, judge

__all__ = [
    "Evidence",
    "Expected",
    "ExpectedFabric",
    "InstanceFacts",
    "LogParser",
    "NodeVerdict",
    "RunJudge",
    "Transport",
    "Verdict",
    "judge",
    "judge_events",
    "junit_xml",
    "read_log",
]
