"""Sort processes by the node they run on. Host names alone do not tell nodes apart: pods may share one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from eks_ray_train.gate.evidence import MAX_LINES, Evidence, Net, RankEvidence, Transport

_MAX_SHARED_PID = 4096
"""Hosts of one pid (1, in containers) that are compared with each other; beyond, names are taken as they are."""
_COLOUR_REST = re.compile(r"^\[?[\d;]*m")


@dataclass(slots=True, eq=False)
class Node:
    """One node's processes. ``name`` is None for lines that name no host."""

    name: str | None
    ip: str | None = None
    ranks: list[RankEvidence] = field(default_factory=list)
    providers: set[str] = field(default_factory=set)
    """What a rank of this node on Libfabric uses where it does not say so itself."""
    complete: bool = False
    """Every process of the node answers for itself with its global rank (events), so that whoever is none of them is elsewhere."""

    @property
    def label(self) -> str:
        name = "".join(char for char in self.name or "" if char.isprintable())
        return name[:128] or "(no host named)"

    @property
    def crossing(self) -> bool:
        """Whether some channel leaves the node.

        "via NET/" alone does not say so: without P2P and shared memory, NCCL goes through the network within a node too. Nor
        do GPU numbers: pods that have a part of their node's GPUs each may look like one node (0[0] and 1[1]).
        """
        speaking = [rank for rank in self.ranks if rank.channels]
        if any(rank.apart or not rank.peers for rank in speaking):
            return True
        # Where no communicator numbers the ranks anew, the other ends' numbers are global ranks too, and need no second sign.
        global_numbers = self.complete and all(rank.own_ranks <= {rank.rank} for rank in self.ranks)
        outward = [rank for rank in speaking if global_numbers or rank.blocks != {True}]
        if self.name is None:
            return bool(outward)
        own = {number for rank in self.ranks for number in (*rank.own_ranks, rank.number)}
        return any(rank.peers - own for rank in outward)

    @property
    def has_channels(self) -> bool:
        return any(rank.has_channels for rank in self.ranks)

    def lines(self, *, against_first: bool = False) -> list[str]:
        """At most five verbatim lines, one rank after the other."""
        order = ("against", "lines") if against_first else ("lines", "against")
        found: list[str] = []
        for name in order:
            for rank in self.ranks:
                found += [line for line in getattr(rank, name) if line not in found]
                if len(found) >= MAX_LINES:
                    return found[:MAX_LINES]
        return found

    def rank_numbers(self) -> list[int]:
        """Global ranks that lines or events name, in order."""
        return sorted({number for rank in self.ranks if (number := rank.number) is not None})

    def kinds(self) -> set[Transport]:
        """Every transport that some rank of the node shows."""
        return {rank.transport(self.providers) for rank in self.ranks} - {Transport.UNKNOWN}

    def transport(self) -> Transport:
        """What the node's ranks agree on."""
        if self.has_channels and not self.crossing:
            return Transport.NONE
        kinds = self.kinds()
        if not kinds:
            return Transport.UNKNOWN
        return kinds.pop() if len(kinds) == 1 else Transport.MIXED

    def evidence_for(self, wanted: Transport) -> bool:
        """Whether this node itself shows that it uses ``wanted``: by its channels, or, where it shows none, by selection."""
        ranks = [rank for rank in self.ranks if rank.strong and rank.transport(self.providers) is wanted]
        return any(rank.channels for rank in ranks) and self.crossing if self.has_channels else bool(ranks)


def sort_into_nodes(evidence: Evidence) -> list[Node]:
    """Nodes in order of name, the unnamed one last; records of the same process are joined."""
    ips_of: dict[str, set[str]] = {}
    hosts_of: dict[str, set[str]] = {}
    for rank in evidence.ranks:
        if rank.host and rank.ip:
            ips_of.setdefault(rank.host, set()).add(rank.ip)
            hosts_of.setdefault(rank.ip, set()).add(rank.host)
    whole_name = {} if evidence.strict else _names_without_head(evidence)
    nodes: dict[tuple[str | None, str | None], Node] = {}
    for rank in evidence.ranks:
        ip, name = rank.ip, whole_name.get((rank.host, rank.pid), rank.host)
        if ip is None and name is not None and (ips := ips_of.get(name)):
            # The same host name with and without an address: one node, unless several nodes share the name.
            ip, name = (next(iter(ips)), name) if len(ips) == 1 else (None, None)
        if ip is not None:
            hosts = hosts_of.get(ip, set())
            name = f"{min(hosts)} ({ip})" if hosts else ip
        key = (None, ip) if ip is not None else (name, None)
        node = nodes.setdefault(key, Node(name=name, ip=ip, complete=evidence.strict))
        node.ranks.append(rank)
    for node in nodes.values():
        node.ranks = list(_joined(node.ranks))
    _share_providers(list(nodes.values()))
    return sorted(nodes.values(), key=lambda node: (node.name is None, node.name or ""))


def _names_without_head(evidence: Evidence) -> dict[tuple[str | None, int | None], str]:
    """(host name as printed, pid) -> the host's name, where a line lost its head within the name or within a colour before it.

    Such a line must not make up one more node. The name is known from the same process's whole lines, or, behind a rest of
    a colour ("32mgpu-1"), from anybody's.
    """
    named = {(rank.host, rank.pid) for rank in evidence.ranks if rank.host is not None}
    hosts = {host for host, _ in named}
    found: dict[tuple[str | None, int | None], str] = {}
    of_pid: dict[int | None, set[str]] = {}
    for host, pid in named:
        rest = _COLOUR_REST.sub("", host)
        if rest != host and rest in hosts:
            found[(host, pid)] = rest
        of_pid.setdefault(pid, set()).add(found.get((host, pid), host))
    for host, pid in named:
        others = of_pid[pid]
        if (host, pid) not in found and 1 < len(others) <= _MAX_SHARED_PID:
            longer = [whole for whole in others if len(whole) > len(host or "") and whole.endswith(host or "")]
            if longer:
                found[(host, pid)] = max(longer, key=len)
    return found


def _share_providers(nodes: list[Node]) -> None:
    """A rank that does not name its provider has its node's: devices are a node's, so another node's provider proves nothing.

    Three exceptions: GPUDirect RDMA, which libfabric's TCP provider cannot do; lines that name no node; and lines that
    Ray's deduplication folded into another node's.
    """
    everywhere = {name for node in nodes for rank in node.ranks for name in rank.providers}
    folded = any("PROVIDER" in rank.repeats for node in nodes for rank in node.ranks)
    for node in nodes:
        own = {name for rank in node.ranks for name in rank.providers}
        shared = folded or node.name is None or any(rank.gdr_channels for rank in node.ranks)
        node.providers = own or (everywhere if shared else set())


def _joined(ranks: Iterable[RankEvidence]) -> Iterable[RankEvidence]:
    by_pid: dict[int, RankEvidence] = {}
    for rank in ranks:
        if rank.pid is None:
            yield rank
        elif rank.pid in by_pid:
            by_pid[rank.pid].absorb(rank)
        else:
            by_pid[rank.pid] = rank.copy()
    yield from by_pid.values()


def is_silent(rank: RankEvidence, *, strict: bool) -> bool:
    """A process that NCCL lines name but that says nothing at all about its network.

    In an excerpt, a line of the plugin shows at least that it was loaded; where all must answer (``strict``), it does not do.
    """
    if rank.pid is None or not rank.statements or rank.strong or rank.hints - {Net.OFI}:
        return False
    return strict or not rank.ofi_seen
