"""Evidence -> verdict: did the traffic between nodes take the transport that was asked for, and who says so.

Unknown is as red as wrong: a pass needs a job that succeeded, the wanted transport, evidence from every node, and no
process that contradicts it or broke off where it might have.
"""

from __future__ import annotations

from typing import cast, get_args

from eks_ray_train.gate import reasons as say
from eks_ray_train.gate.answer import Expected, NodeVerdict, Outcome, Verdict, succeeded
from eks_ray_train.gate.evidence import Evidence, ExpectedFabric, Net, RankEvidence, Transport
from eks_ray_train.gate.nodes import Node, is_silent, sort_into_nodes

InstanceFacts = ExpectedFabric
_WANTED = {"efa": Transport.EFA, "tcp": Transport.SOCKET}


def judge(
    evidence: Evidence,
    *,
    job_status: str | None,
    nodes_expected: int,
    expected: Expected,
    instance: ExpectedFabric | None = None,
) -> Verdict:
    """Judge one run.

    ``job_status``: as Ray's Jobs API says it, any case; None where unknown, which cannot pass. ``nodes_expected``: GPU
    nodes of the run, at least 1. ``instance``: what every node must show besides (None: not checked).
    Raises ValueError for arguments outside these.
    """
    if expected not in get_args(Expected):
        raise ValueError(f"expected must be one of {', '.join(get_args(Expected))}, got {expected!r}")
    if nodes_expected < 1:
        raise ValueError(f"nodes_expected must be at least 1, got {nodes_expected}")
    return _Case(evidence, job_status, nodes_expected, expected, instance or ExpectedFabric()).verdict()


def _kinds(nodes: list[Node]) -> set[Transport]:
    return {kind for node in nodes for kind in node.kinds()}


class _Case:
    """One judgement in progress: collects reasons in the order node, line, what to check."""

    def __init__(
        self, evidence: Evidence, status: str | None, nodes_expected: int, expected: Expected, fabric: ExpectedFabric
    ) -> None:
        self.evidence, self.expected, self.fabric, self.nodes_expected = evidence, expected, fabric, nodes_expected
        self.status = (status or "").strip() or "unknown"
        self.nodes = sort_into_nodes(evidence)
        self.named = [node for node in self.nodes if node.name is not None]
        self.ranks = [rank for node in self.nodes for rank in node.ranks]
        self.crossing = any(node.crossing for node in self.nodes)
        self.general: list[str] = []
        self.of_node: dict[Node, list[str]] = {node: [] for node in self.nodes}
        self.notes: list[str] = []
        self.doubt = False
        """Something is missing that could contradict what is shown."""

    def verdict(self) -> Verdict:
        shown = self.shown()
        doubts = self.doubts(shown)
        # A fact of the log, so it does not depend on what was expected. Only EFA is withdrawn in doubt: a process that says
        # nothing may be on sockets, and one on sockets is enough. A job that failed ends its lines early, so doubt is no news.
        transport = Transport.UNKNOWN if self.doubt and shown is Transport.EFA and succeeded(self.status) else shown
        if self.expected == "none":
            outcome: Outcome = "not-judged"
            if not succeeded(self.status):
                self.general.append(say.job_status(self.status))
            if transport is Transport.UNKNOWN:
                self.notes.append(say.not_shown(doubt=self.doubt))
        else:
            self.against(_WANTED[self.expected], shown, doubts)
            outcome = "fail" if self.general or any(self.of_node.values()) else "pass"
        reasons = [reason for node in self.nodes for reason in self.of_node[node]]
        return Verdict(
            outcome=outcome,
            transport=transport,
            expected=self.expected,
            job_status=self.status,
            nodes_expected=self.nodes_expected,
            nodes_seen=self.nodes_seen(),
            ranks_seen=sum(1 for rank in self.ranks if rank.pid is not None or rank.host or rank.strong),
            reasons=tuple(say.printable(reason) for reason in self.general + reasons + self.notes),
            nodes=tuple(self.node_verdict(node) for node in self.nodes if node.name or node.lines()),
        )

    def node_verdict(self, node: Node) -> NodeVerdict:
        counters = self.evidence.counters.get(node.name or "")
        kind = node.transport()
        return NodeVerdict(
            node=node.label,
            ranks=tuple(node.rank_numbers()),
            transport=kind,
            evidence=tuple(node.lines(against_first=kind is not Transport.EFA)),
            sent=(counters.sent or 0) if counters else 0,
            received=(counters.received or 0) if counters else 0,
            reasons=tuple(map(say.printable, self.of_node[node])),
        )

    def nodes_seen(self) -> int:
        if self.evidence.strict:
            return len(self.named)
        others = self.evidence.ray_nodes - {node.ip for node in self.named if node.ip}
        seen = len(self.named) + len(others)
        if seen < 2 and self.crossing and not self.evidence.under_ray:
            return 2  # a channel that crosses the network has two ends
        return seen or int(any(rank.strong for rank in self.ranks))

    def shown(self) -> Transport:
        """The transport of all attempts by the rules of the contract, before any doubt."""
        last = self.shown_last()
        before = {kind for old in self.evidence.earlier for kind in _kinds(sort_into_nodes(old))}
        return Transport.MIXED if before - {last} and last not in (Transport.NONE, Transport.UNKNOWN) else last

    def shown_last(self) -> Transport:
        """The same of the last attempt."""
        one_node = self.evidence.nodes_by_nccl == 1
        if not self.crossing and (one_node or any(rank.has_channels for rank in self.ranks)):
            return Transport.NONE
        kinds = _kinds(self.nodes)
        nets = {net for rank in self.ranks for net in rank.networks | rank.channels}
        if Net.FOREIGN in nets:
            return Transport.MIXED if kinds else Transport.UNKNOWN
        if Net.OFI in nets and len(nets) > 1:
            return Transport.MIXED  # also where no line says which provider Libfabric uses
        if not kinds:
            return Transport.UNKNOWN
        return kinds.pop() if len(kinds) == 1 else Transport.MIXED

    def doubts(self, shown: Transport) -> tuple[list[str], dict[Node, list[str]]]:
        """What is missing for all of the run to have used ``shown``: general reasons, and reasons of nodes."""
        if shown in (Transport.NONE, Transport.UNKNOWN):
            return [], {}
        self.check_processes(shown)
        self.check_nodes(shown)
        found = self.general, self.of_node
        self.general, self.of_node = [], {node: [] for node in self.nodes}
        return found

    def against(self, wanted: Transport, shown: Transport, doubts: tuple[list[str], dict[Node, list[str]]]) -> None:
        """Collect all that speaks against a pass."""
        if not succeeded(self.status):
            self.general.append(say.job_status(self.status))
        self.general += self.evidence.problems
        for old in self.evidence.earlier:
            others = _kinds(sort_into_nodes(old)) - {wanted}
            if others:
                self.general.append(say.earlier_attempt(old, others, wanted))
        if shown is wanted:
            self.general += doubts[0]
            for node, reasons in doubts[1].items():
                self.of_node[node] += reasons
            self.check_counters(wanted)
            if wanted is Transport.EFA:
                self.check_fabric()
            self.note_weak_evidence()
            if self.evidence.unread and (self.general or any(self.of_node.values())):
                self.notes.append(say.unknown_prefix(self.evidence.unread))
        elif shown in (Transport.NONE, Transport.UNKNOWN):
            self.general.append(say.nothing_shown(self.evidence, self.nodes, shown, wanted))
        else:
            self.blame(wanted, shown)

    def blame(self, wanted: Transport, shown: Transport) -> None:
        """Name every node that is not on ``wanted``, with the line that shows it."""
        found = False
        for node in self.nodes:
            kind = node.transport()
            if kind not in (wanted, Transport.UNKNOWN, Transport.NONE) or any(r.foreign_names for r in node.ranks):
                self.of_node[node].append(say.wrong_transport(node, kind, wanted))
                found = True
        if not found and not self.evidence.earlier:
            self.general.append(say.overall(shown, wanted))

    def check_processes(self, wanted: Transport) -> None:
        named = [rank for rank in self.ranks if rank.pid is not None]
        # Ray's deduplication shows one line for several ranks: so many may show nothing of their own.
        folds: dict[str, int] = {}
        for rank in self.ranks:
            for kind, count in rank.repeats.items():
                folds[kind] = folds.get(kind, 0) + count
        folded = max(folds.values(), default=0)
        for node in self.nodes:
            # What broke off may name another network, or show that the node's channels stay within it.
            whole = [r for r in node.ranks if r.settled and r.pid is not None] if node.crossing else []
            cut = [r for r in node.ranks if (r.cut and r not in whole) or (r.cut_bare and not named)]
            if cut:
                self.doubt = True
                self.of_node[node].append(say.cut_off(node, cut[0]))
            gave_up = [r for r in node.ranks if r.plugin_failed and not (r.networks or r.channels) and r not in cut]
            if gave_up:
                self.doubt = True
                self.of_node[node].append(say.gave_up(node, gave_up[0], wanted))
            silent = [r for r in node.ranks if is_silent(r, strict=self.evidence.strict) and r not in cut + gave_up]
            if silent and (self.evidence.strict or len(silent) > folded):
                self.doubt = True
                self.of_node[node].append(say.silent_processes(node, silent))
        speaking = {(node.ip, rank.pid) for node in self.nodes for rank in node.ranks}
        speaking |= {(rank.ip, rank.pid) for rank in self.evidence.ranks}
        speaking |= {(ip, pid) for _, ip, pid in self.evidence.nccl_speakers}
        mute = sorted((ip or "the driver's node", pid) for ip, pid in self.evidence.ray_workers - speaking)
        if len(mute) > folded:
            self.doubt = True
            self.general.append(say.mute_workers([f"process {pid} on {ip}" for ip, pid in mute]))
        ranks = sorted(self.evidence.mpi_ranks - {rank.rank for rank in self.ranks if rank.strong or rank.ofi_seen})
        if ranks:
            self.doubt = True
            self.general.append(say.mute_workers([f"rank {rank}" for rank in ranks]))
        if self.evidence.overflow:
            self.doubt = True
            self.general.append(say.overflow(self.evidence.overflow))

    def check_nodes(self, wanted: Transport) -> None:
        for node in self.named:
            if not node.evidence_for(wanted):
                self.doubt = True
                self.of_node[node].append(say.node_without_evidence(node, wanted))
        known = {node.ip for node in self.named}
        for ip in sorted(self.evidence.ray_nodes - known):
            self.doubt = True
            self.general.append(say.silent_node(ip))
        if self.evidence.strict and not self.crossing:
            self.general.append(say.no_crossing_channel(wanted))
        if 0 < self.evidence.nodes_by_nccl < self.nodes_expected:
            self.general.append(say.small_communicator(self.evidence.nodes_by_nccl, self.nodes_expected))
        seen = self.nodes_seen()
        if seen == 1 and not self.evidence.strict and not self.evidence.under_ray:
            seen = 2  # one end of a connection vouches for the other: both must use the same network
        if seen < self.nodes_expected:
            self.general.append(say.too_few_nodes(seen, self.nodes_expected, [node.label for node in self.named]))

    def check_counters(self, wanted: Transport) -> None:
        if not self.evidence.strict:
            return
        for node in self.named:
            counters = self.evidence.counters.get(cast(str, node.name))
            if wanted is Transport.EFA and (counters is None or not counters.moved):
                self.of_node[node].append(say.counters_still(node, counters))
            if wanted is Transport.SOCKET and counters and (counters.sent or counters.received):
                self.of_node[node].append(say.counters_moved(node, counters))

    def check_fabric(self) -> None:
        for node in self.nodes:
            if self.fabric.gpudirect_rdma:
                without: list[RankEvidence] = [r for r in node.ranks if Net.OFI in r.channels and not r.gdr_channels]
                if without:
                    self.of_node[node].append(say.no_gdrdma(node, without[0]))
            nics = {count for rank in node.ranks for count in rank.nics}
            if self.fabric.nics is not None and nics and min(nics) < self.fabric.nics:
                self.of_node[node].append(say.too_few_nics(node, min(nics), self.fabric.nics))

    def note_weak_evidence(self) -> None:
        if not self.crossing:
            self.notes.append(say.selection_only())
        if not self.named and not self.evidence.strict:
            self.notes.append(say.no_hosts())
        elif len(self.named) < self.nodes_expected and not self.evidence.strict and not self.crossing:
            self.notes.append(say.one_end_only(self.named[0].label, self.nodes_expected))
