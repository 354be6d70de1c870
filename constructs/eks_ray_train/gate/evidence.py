"""What a log or a run showed about its transport: counted facts per rank, bounded in memory, no judgement of the run.

A *rank* here is one worker process. Its facts only ever grow, so the order of lines never changes an answer, and a
process that restarts is another rank: what an earlier attempt did is not forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

MAX_LINES = 5
"""Verbatim lines kept per rank and per node."""
MAX_LINE_CHARS = 1000
"""Longer evidence is cut: a process may print a line of megabytes."""
MAX_PEERS = 32
"""Channels over a network that are looked at per process for where they lead."""
MAX_RANKS = 32_768
"""Processes told apart; far above the largest cluster, so that hostile input cannot fill memory."""


class Transport(Enum):
    """What carried the traffic between nodes. ``UNKNOWN`` (no answer) reads ``none`` outside."""

    EFA = "efa"
    SOCKET = "socket"
    OFI_OTHER = "ofi-other"
    IB = "ib"
    NONE = "none"
    MIXED = "mixed"
    UNKNOWN = "unknown"

    @property
    def json_value(self) -> str:
        """The word in ``gate --json``."""
        return "none" if self is Transport.UNKNOWN else self.value


class Net(Enum):
    """NCCL's network by the name of its plugin. aws-ofi-nccl calls itself "Libfabric", up to 1.9 "AWS Libfabric"."""

    OFI = "Libfabric"
    SOCKET = "Socket"
    IB = "IB"
    FOREIGN = "another network"


@dataclass(frozen=True, kw_only=True)
class ExpectedFabric:
    """What the instance catalogue knows about a node; ``None`` means that it is not checked."""

    nics: int | None = None
    gpudirect_rdma: bool | None = None


@dataclass(slots=True, eq=False)
class RankEvidence:
    """Everything one process printed about networks. ``pid`` is None for lines that name no process."""

    host: str | None
    ip: str | None
    pid: int | None
    glued: bool = False
    """On none of its lines it is certain where the host's name begins: the end of another line may stand before it."""
    rank: int | None = None
    """Global rank where a line or an event says it."""
    comm_ranks: tuple[int, int] | None = None
    """(ranks of the communicator, own rank in it), of the largest communicator seen."""
    providers: set[str] = field(default_factory=set)
    networks: set[Net] = field(default_factory=set)
    """From "Using network" and "Assigned NET plugin"."""
    initialized: set[Net] = field(default_factory=set)
    """From "Initialized NET plugin": weaker, since a plugin that starts may still not be chosen."""
    channels: set[Net] = field(default_factory=set)
    """What its channels between nodes go over."""
    foreign_names: set[str] = field(default_factory=set)
    own_ranks: set[int] = field(default_factory=set)
    """Its numbers in the communicators whose channels it set up."""
    peers: set[int] = field(default_factory=set)
    """The other ends of channels over a network, as far as kept."""
    apart: bool = False
    """Some such channel goes to another node for certain."""
    blocks: set[bool] = field(default_factory=set)
    """Whether those channels look, by ranks and GPU numbers, as if they stayed within a node."""
    net_lines: int = 0
    local_channels: bool = False
    gdr_channels: bool = False
    """Some channel over Libfabric uses GPUDirect RDMA."""
    nics: set[int] = field(default_factory=set)
    hints: set[Net] = field(default_factory=set)
    """What is left when nothing stronger is shown: "No plugin found", "NET/Socket : Using"."""
    ofi_seen: bool = False
    plugin_failed: bool = False
    refused: bool = False
    """NCCL found no network at all and did not start: what it tried before is no hint of what it used."""
    cut: bool = False
    """A line of this process broke off where it could have named a network."""
    cut_bare: bool = False
    """The same for fragments that name nobody and lack NCCL's marker."""
    cut_channel: bool = False
    statements: int = 0
    repeats: dict[str, int] = field(default_factory=dict)
    """How many more ranks Ray's deduplication folded into this rank's lines for a network, by kind of line."""
    lines: list[str] = field(default_factory=list)
    against: list[str] = field(default_factory=list)
    """Lines that speak of anything but EFA."""
    errors: list[str] = field(default_factory=list)

    def keep(self, where: list[str], line: str, *, most: int = MAX_LINES) -> None:
        if len(where) < most and line[:MAX_LINE_CHARS] not in where:
            where.append(line[:MAX_LINE_CHARS])

    @property
    def number(self) -> int | None:
        """The global rank as far as known: said by an event or launcher, else that of the largest communicator."""
        if self.rank is not None:
            return self.rank
        return self.comm_ranks[1] if self.comm_ranks else None

    @property
    def has_channels(self) -> bool:
        return bool(self.channels or self.local_channels or self.cut_channel)

    @property
    def strong(self) -> bool:
        """A whole line about this rank's network was seen."""
        return bool(self.channels or self.networks or self.initialized or self.providers)

    @property
    def settled(self) -> bool:
        """Nothing that a broken-off line of this rank could have said would be news."""
        net = bool(self.channels or self.networks)
        return net and (bool(self.providers) or Net.OFI not in (self.channels | self.networks))

    def absorb(self, other: RankEvidence) -> None:
        """Take over what another record says of the same process (its lines came with and without Ray's prefix)."""
        self.host, self.ip = self.host or other.host, self.ip or other.ip
        self.rank = self.rank if self.rank is not None else other.rank
        self.comm_ranks = max((c for c in (self.comm_ranks, other.comm_ranks) if c), default=None)
        for name in (
            "providers",
            "networks",
            "initialized",
            "channels",
            "foreign_names",
            "nics",
            "hints",
            "own_ranks",
            "peers",
            "blocks",
        ):
            getattr(self, name).update(getattr(other, name))
        self.statements += other.statements
        self.net_lines += other.net_lines
        for name in (
            "apart",
            "local_channels",
            "gdr_channels",
            "ofi_seen",
            "plugin_failed",
            "refused",
            "cut",
            "cut_bare",
            "cut_channel",
        ):
            setattr(self, name, getattr(self, name) or getattr(other, name))
        for kind, count in other.repeats.items():
            self.repeats[kind] = self.repeats.get(kind, 0) + count
        for name in ("lines", "against", "errors"):
            for line in getattr(other, name):
                self.keep(getattr(self, name), line)

    def copy(self) -> RankEvidence:
        """A record of its own with the same facts."""
        new = RankEvidence(host=self.host, ip=self.ip, pid=self.pid)
        new.absorb(self)
        return new

    def transport(self, providers_of_node: set[str]) -> Transport:
        """This rank's transport; where it is on Libfabric and never names its provider, by ``providers_of_node``."""
        said = self.channels | self.networks
        if len(said) > 1:
            return Transport.MIXED
        said = said or self.initialized
        if len(said) > 1:
            return Transport.MIXED
        if not said and self.providers:
            if self.plugin_failed and "efa" in self.providers:
                return Transport.UNKNOWN
            said = {Net.OFI}
        if not said and not self.ofi_seen and not self.local_channels and not self.refused:
            said = {Net.IB} if Net.IB in self.hints else set(self.hints)
        if not said:
            return Transport.UNKNOWN
        (net,) = said
        if net is Net.SOCKET and "efa" in self.providers and self.pid is None:
            return Transport.MIXED  # lines without a process may come from several
        if net is not Net.OFI:
            return {Net.SOCKET: Transport.SOCKET, Net.IB: Transport.IB}.get(net, Transport.UNKNOWN)
        providers = self.providers or providers_of_node
        if not providers:
            return Transport.UNKNOWN
        if providers == {"efa"}:
            return Transport.EFA
        return Transport.MIXED if "efa" in providers else Transport.OFI_OTHER


@dataclass(slots=True)
class Counters:
    """EFA hardware counters of one node, bytes moved during the run. ``None``: the node reported none."""

    sent: int | None = None
    received: int | None = None

    @property
    def moved(self) -> bool:
        return bool(self.sent) and bool(self.received)


@dataclass(slots=True)
class Evidence:
    """All that is known about one run."""

    ranks: list[RankEvidence] = field(default_factory=list)
    nccl_lines: bool = False
    """Whether any line carries NCCL's name at all."""
    nodes_by_nccl: int = 0
    """Nodes of the largest communicator, as NCCL counts them; 0 where no line says it."""
    unread: tuple[str, str] | None = None
    """(what stands before NCCL's own text, the line) of the first NCCL line behind a prefix that is not known."""
    ray_speakers: set[tuple[str, str | None, int]] = field(default_factory=set)
    """(class of actor, address, pid) of every Ray process that printed anything at all; no address on the driver's node."""
    nccl_speakers: set[tuple[str, str | None, int]] = field(default_factory=set)
    """Those that printed a line of NCCL's, their own or a process's that they started."""
    mpi_ranks: set[int] = field(default_factory=set)
    """Ranks that mpirun's prefix names on any line at all."""
    overflow: int = 0
    """Lines of processes beyond ``MAX_RANKS``."""

    strict: bool = False
    """Built from transport events: every rank and every node must answer, and counters must have moved."""
    counters: dict[str, Counters] = field(default_factory=dict)
    """By node, from events."""
    world_size: int | None = None
    problems: list[str] = field(default_factory=list)
    """What was wrong with the events themselves; each forbids a pass."""
    earlier: list[Evidence] = field(default_factory=list)
    """Attempts before the last restart: they count against a pass, never for one."""

    @property
    def ray_workers(self) -> set[tuple[str | None, int]]:
        """(address, pid) of the Ray processes that must show their network: Ray Train's workers, and whoever is of a class
        that uses NCCL. Other actors (data loading, the controller) have no network of NCCL's to show.
        """
        classes = {actor for actor, _, _ in self.nccl_speakers if actor}
        return {(ip, pid) for actor, ip, pid in self.ray_speakers if "TrainWorker" in actor or actor in classes}

    @property
    def under_ray(self) -> bool:
        """Whether Ray's prefix stands on any line: every worker's output comes together then, so none may be silent."""
        return bool(self.ray_speakers)

    @property
    def ray_nodes(self) -> set[str]:
        """Addresses of the nodes of these workers."""
        return {ip for ip, _ in self.ray_workers if ip is not None}
