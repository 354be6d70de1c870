"""Sort processes by the node they run on. Host names alone do not tell nodes apart: pods may share one."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from eks_ray_train.gate.evidence import MAX_LINES, Evidence, Net, RankEvidence, Transport

_NO_NAME = re.compile(r"\[?[\d;]*m|[^A-Za-z0-9<].*|.*[^\w.<>-].*", re.DOTALL)
"""What no host's name begins with: the rest of a colour, or the end of what was written before it on the line."""


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
    whole_name = {} if evidence.strict else _whole_names(evidence)
    name_of = {rank: _name_of(rank, whole_name) for rank in evidence.ranks}
    ips_of: dict[str, set[str]] = {}
    hosts_of: dict[str, set[str]] = {}
    for rank, host in name_of.items():
        if host and rank.ip:
            ips_of.setdefault(host, set()).add(rank.ip)
            hosts_of.setdefault(rank.ip, set()).add(host)
    nodes: dict[tuple[str | None, str | None], Node] = {}
    for rank in evidence.ranks:
        ip, name = rank.ip, name_of[rank]
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


def _name_of(rank: RankEvidence, whole_name: dict[tuple[str | None, int | None], str]) -> str | None:
    """The rank's host; None where the end of another line may stand before the name and nobody else says the name."""
    return whole_name.get((rank.host, rank.pid), None if rank.glued else rank.host)


def _whole_names(evidence: Evidence) -> dict[tuple[str | None, int | None], str]:
    """(host name as printed, pid) -> the host's name, where some line of that process lost the name's head or has something before it.

    Such a line must not make up one more node. Names of one process of which one ends with the other are one host's: the one
    that other processes have too, or that most of its lines have. Behind what no name begins with (a rest of a colour as in
    "32mgpu-1", "...gpu-1"), and where a line ran into another, any process's name tells it too.
    """
    lines: dict[int | None, dict[str, int]] = {}
    processes: dict[str, int] = {}
    glued: set[str] = set()
    hosts: set[str] = set()
    for rank in evidence.ranks:
        if rank.host is not None:
            of_pid = lines.setdefault(rank.pid, {})
            processes[rank.host] = processes.get(rank.host, 0) + (rank.host not in of_pid)
            of_pid[rank.host] = of_pid.get(rank.host, 0) + rank.statements
            (glued if rank.glued else hosts).add(rank.host)
    glued -= hosts
    found: dict[tuple[str | None, int | None], str] = {}
    for pid, names in lines.items():
        related: dict[str, set[str]] = {name: {name} for name in names}
        for name in names if len(names) > 1 else ():
            for end in _ends(name, names):
                related[name].add(end)
                related[end].add(name)

        def weight(name: str, lines_with: dict[str, int] = names) -> tuple[bool, int, int, int]:
            return processes[name] > 1, lines_with[name], processes[name], len(name)

        for host in names:
            best = max(related[host] - glued, key=weight, default=host)
            ends = _ends(best, hosts)
            whole = next((end for end in ends if best in glued or _NO_NAME.fullmatch(best.removesuffix(end))), best)
            if whole not in glued:
                found[(host, pid)] = whole
    return found


def _ends(name: str, among: Container[str]) -> Iterable[str]:
    """Every name that ``name`` ends with and is longer than, the longest first."""
    return (name[at:] for at in range(1, len(name)) if name[at:] in among)


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
