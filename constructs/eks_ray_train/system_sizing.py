"""What must run on the system nodes, and how many nodes of a type that takes."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import SettingsError
from .instances import PodSize, SystemInstanceType


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """Requests of one pod on the system nodes: millicores and MiB."""

    name: str
    cpu_millis: int
    memory_mib: int


# A head of 2 CPU / 8 GiB leaves room for the operator, CoreDNS and a submitter on one m7i.xlarge; the sample's 4 CPU /
# 16 GiB head stays Pending there (seen on Kubernetes 1.36 with KubeRay 1.7.0).
HEAD_POD = PodSize(cpu=2, memory_gib=8)
HEAD = Tenant(name="ray-head", cpu_millis=HEAD_POD.cpu * 1000, memory_mib=HEAD_POD.memory_gib * 1024)
OPERATOR = Tenant(name="kuberay-operator", cpu_millis=100, memory_mib=512)
SUBMITTER = Tenant(name="rayjob-submitter", cpu_millis=500, memory_mib=200)
COREDNS = Tenant(name="coredns", cpu_millis=100, memory_mib=70)
# CNI, kube-proxy, pod identity agent, node monitoring agent and a CSI node pod on every node.
DAEMONS = Tenant(name="daemonsets", cpu_millis=350, memory_mib=700)
CSI_CONTROLLER = Tenant(name="csi-controller", cpu_millis=60, memory_mib=240)


def required_system_nodes(instance_type: SystemInstanceType, *, heads: int = 1) -> int:
    """Least number of nodes of ``instance_type`` that schedules ``heads`` Ray heads, a submitter for each, the KubeRay
    operator, two CoreDNS pods and the CSI controllers (first fit, largest first).

    Raises SettingsError where one head does not fit a node of that type at all.
    """
    room_cpu = instance_type.allocatable_cpu_millis - DAEMONS.cpu_millis
    room_memory = instance_type.allocatable_memory_mib - DAEMONS.memory_mib
    if room_cpu < HEAD.cpu_millis or room_memory < HEAD.memory_mib:
        raise SettingsError(
            f"system_instance_type {instance_type.name} is too small: it offers pods {room_cpu} millicores and {room_memory} MiB, "
            f"a Ray head needs {HEAD.cpu_millis} and {HEAD.memory_mib}; use m7i.xlarge or larger"
        )
    tenants = [HEAD] * heads + [SUBMITTER] * heads + [OPERATOR, COREDNS, COREDNS, CSI_CONTROLLER, CSI_CONTROLLER]
    nodes: list[list[int]] = []
    for tenant in tenants:
        for node in nodes:
            if node[0] >= tenant.cpu_millis and node[1] >= tenant.memory_mib:
                node[0] -= tenant.cpu_millis
                node[1] -= tenant.memory_mib
                break
        else:
            nodes.append([room_cpu - tenant.cpu_millis, room_memory - tenant.memory_mib])
    return len(nodes)
