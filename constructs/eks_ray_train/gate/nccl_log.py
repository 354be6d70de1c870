"""Streaming parser of NCCL, aws-ofi-nccl and libfabric log lines: lines in, :class:`Evidence` out.

Memory grows with the number of processes that speak, never with the number of lines. Most of a big log is channel
lines that differ only in the numbers of channels and ranks: one whose process and network were seen before says nothing new.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from eks_ray_train.gate.evidence import MAX_LINES, MAX_PEERS, MAX_RANKS, Evidence, Net, RankEvidence
from eks_ray_train.gate.lines import Kind, Parsed, against_anywhere, parse
from eks_ray_train.gate.prefixes import read_prefix, strip_colour, unwrapped

HEAD_BYTES = 8192
"""How much of one line is read as a line; what follows is only searched for words against EFA."""
_MEMO_MAX = 100_000
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_CUT_END = re.compile(rb"[A-Za-z>\d]:\d+:\d*(?: (?:\[\d*\]? ?N?C?C?L?)?)?$")
_PREFIXED = (b"[", b"{")
_CUT_LAST = {bytes([byte]) for byte in b"0123456789:[] NCL"}
_CHANNEL_MARK = b"NCCL INFO Channel "
_MARK_SIZE = len(_CHANNEL_MARK)
_CHANNEL_CHARS = 120
"""From that mark to " via ": longer, or with a capital letter in it, is no channel line or two that ran into each other."""
_VIA = b" via "

Identity = tuple[str, int]
"""(node, global rank), where the caller knows whose lines these are."""


def _without_clock(line: bytes, at: int) -> bytes:
    """The line's head up to NCCL's marker, with the digits of what a log collector put before it (the time) made equal."""
    begin = line.find(b"(", 0, at)
    if begin < 0:
        begin = line.rfind(b" ", 0, max(0, line.rfind(b" [", 0, at))) + 1
    return line[:begin].translate(_ZEROS) + line[begin:at] if begin else line[:at]


class LogParser:
    """Feed lines or chunks in any order and pieces; ``evidence()`` may be asked at any time.

    Accepts text or bytes in any state: colours, carriage returns, invalid UTF-8, NULs, lines of megabytes, lines cut at
    either end. Nothing that it reads makes it raise.
    """

    def __init__(self) -> None:
        self._ranks: dict[tuple[str | None, str | None, int | None], RankEvidence] = {}
        self._seen: set[bytes] = set()
        self._heads = {b""}
        self._out = Evidence()

    def feed(self, line: str | bytes, identity: Identity | None = None) -> None:
        """One line, with or without its end (several lines in one piece are taken apart).

        ``identity``: the node and global rank whose own file the line is from; otherwise the line's prefixes tell.
        """
        raw = line.encode("utf-8", "replace") if isinstance(line, str) else bytes(line)
        self._feed_lines(raw.replace(b"\r", b"\n").split(b"\n"), identity)

    def feed_chunk(self, chunk: bytes) -> None:
        """Many whole lines at once: the fast way for files."""
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r", b"\n")
        self._feed_lines(chunk.split(b"\n"), None)

    def evidence(self) -> Evidence:
        """What has been shown so far."""
        self._out.ranks = list(self._ranks.values())
        return self._out

    def _feed_lines(self, lines: Iterable[bytes], identity: Identity | None) -> None:
        seen: set[bytes] = self._seen if identity is None else set()
        heads = self._heads
        for line in lines:
            # Written out and in this order, since it runs for every line of gigabytes.
            at = line.rfind(_CHANNEL_MARK)
            if at >= 0:
                via = line.find(_VIA, at)
                ends = line[at + _MARK_SIZE : via]
                plain = 0 < via - at < _CHANNEL_CHARS and ends == ends.lower()
                if plain and line[:at] + line[via:] in seen:
                    continue
                self._channel(line, at, via if plain else 0, identity)
            elif (
                b"NCCL" in line or b"NET" in line or b"Using network" in line or b"Channel " in line or b" via " in line
            ):
                if not self._unwrap(line, identity):
                    self._parse(line, identity)
                    self._note_speaker(line)
            elif line[: line.find(b")") + 1] not in heads or line[-1:] in _CUT_LAST or line[:1] in _PREFIXED:
                self._plain(line, identity)

    def _unwrap(self, line: bytes, identity: Identity | None) -> bool:
        """Read the lines inside a log collector's entry; False where the line is none."""
        if identity is not None or b"{" not in line or (inner := unwrapped(line)) is None:
            return False
        self._feed_lines(inner, identity)
        return True

    def _channel(self, line: bytes, at: int, via: int, identity: Identity | None) -> None:
        """A channel line that is not known by its head and tail: perhaps without its time, else a new one.

        ``via``: where " via " begins, 0 where the line is not that of one channel. A line over a network becomes known only
        when it is clear, or seen often enough, where this process's channels lead.
        """
        if b"{" in line and self._unwrap(line, identity):
            return
        raw = key = None
        if identity is None and via:
            head = _without_clock(line, at)
            key = head + line[via:].translate(_ZEROS)
            raw = line[:at] + line[via:] if head == line[:at] else key
            if key in self._seen:
                self._remember(raw)
                return
        kind, rank = self._parse(line, identity)
        self._note_speaker(line)
        known = kind in (Kind.LOCAL_CHANNEL, Kind.UNREAD) or (
            kind is Kind.NET_CHANNEL and rank and (rank.apart or rank.net_lines >= MAX_PEERS)
        )
        if raw is not None and key is not None and known:
            self._remember(raw)
            self._remember(key)

    def _remember(self, key: bytes) -> None:
        if len(self._seen) > _MEMO_MAX:
            self._seen.clear()
        self._seen.add(key)

    def _plain(self, line: bytes, identity: Identity | None) -> None:
        """A line of the program's own: it may be one of NCCL's that broke off early, and it may show that a worker lives."""
        if b"{" in line and self._unwrap(line, identity):
            return
        size = len(line)
        if size > HEAD_BYTES or (
            line[-1:] in _CUT_LAST
            and line.count(b":", max(0, size - 40)) > 1
            and _CUT_END.search(line, max(0, size - 60))
        ):
            self._parse(line, identity)
        self._note_speaker(line)

    def _note_speaker(self, line: bytes) -> None:
        """Remember which workers print anything at all: one that prints but shows no network is not to be overlooked."""
        ray = line.find(b"pid=", 0, 200)
        head = line[: line.find(b")", ray, 260) + 1] if ray >= 0 else line[: line.find(b">", 0, 200) + 1]
        if head in self._heads or not (ray >= 0 or b"]<std" in head):
            return
        prefix = read_prefix(strip_colour(head + b" "))
        if prefix.mpi_rank is not None and len(self._out.mpi_ranks) < MAX_RANKS:
            self._out.mpi_ranks.add(prefix.mpi_rank)
        if prefix.speaker and len(self._out.ray_speakers) < MAX_RANKS:
            self._out.ray_speakers.add(prefix.speaker)
        if len(self._heads) > _MEMO_MAX:
            self._heads.clear()
        self._heads |= {head, b""}

    def _parse(self, line: bytes, identity: Identity | None) -> tuple[Kind | None, RankEvidence | None]:
        """Read one line into the evidence; returns what it says, and of whom."""
        if b"NCCL" in line:
            self._out.nccl_lines = True
        found = parse(line[:HEAD_BYTES])
        if len(line) > HEAD_BYTES:
            # From a little before, where a statement may begin.
            found += against_anywhere(line[HEAD_BYTES - 100 :], found)
        rank = None
        for said in found:
            if said.kind is Kind.UNREAD:
                self._out.unread = self._out.unread or (said.value, line[:2000].decode("utf-8", "replace"))
                continue
            rank = self._rank(said, identity)
            if rank is None:
                self._out.overflow += 1
            else:
                self._apply(said, rank, line)
        return (found[0].kind, rank) if len(found) == 1 else (None, None)

    def _rank(self, said: Parsed, identity: Identity | None) -> RankEvidence | None:
        if identity is not None:
            key: tuple[str | None, str | None, int | None] = (identity[0], "", identity[1])
        else:
            key = (said.host, said.ip, said.pid)
        rank = self._ranks.get(key)
        if rank is None:
            if len(self._ranks) >= MAX_RANKS:
                return None
            rank = RankEvidence(host=key[0], ip=key[1] or None, pid=key[2], glued=said.glued and identity is None)
            if identity is not None:
                rank.rank = identity[1]
            self._ranks[key] = rank
        rank.glued &= said.glued
        if said.mpi_rank is not None:
            rank.rank = said.mpi_rank
        if said.ray and said.nccl and said.host is not None and len(self._out.nccl_speakers) < MAX_RANKS:
            self._out.nccl_speakers.add(said.ray)
        return rank

    def _apply(self, said: Parsed, rank: RankEvidence, line: bytes) -> None:
        kind, net = said.kind, said.net
        rank.statements += 1
        rank.ofi_seen |= said.ofi
        rank.plugin_failed |= said.plugin_failed
        rank.refused |= said.refused
        if said.own_rank is not None and len(rank.own_ranks) < MAX_PEERS:
            rank.own_ranks.add(said.own_rank)
        if said.own_rank is not None and (rank.comm_ranks is None or said.size > rank.comm_ranks[0]):
            rank.comm_ranks = (said.size, said.own_rank)
        if kind is Kind.OTHER and not said.error:
            return
        text = line[:2000].decode("utf-8", "replace").strip("\r\n")
        if said.error:
            rank.keep(rank.errors, text, most=3)
        if kind in (Kind.CUT, Kind.CUT_CHANNEL):
            if rank.pid is None and rank.host is None and not said.nccl:
                rank.cut_bare = True
            else:
                rank.cut = True
            rank.cut_channel |= kind is Kind.CUT_CHANNEL
        elif kind is Kind.COMM:
            self._out.nodes_by_nccl = max(self._out.nodes_by_nccl, said.nodes or 0)
        elif kind is Kind.LOCAL_CHANNEL:
            rank.local_channels = True
        elif kind is Kind.FOREIGN:
            rank.networks.add(Net.FOREIGN)
            if len(rank.foreign_names) < 5:
                rank.foreign_names.add(said.value)
            rank.keep(rank.against, text)
        elif kind is Kind.PROVIDER:
            if len(rank.providers) < 8:
                rank.providers.add(said.value)
            if said.number is not None and len(rank.nics) < 8:
                rank.nics.add(said.number)
            self._record(rank, text, said, for_efa=said.value == "efa")
        elif net is not None:
            if kind is Kind.NET_CHANNEL:
                first = net not in rank.channels
                rank.channels.add(net)
                rank.gdr_channels |= said.gdr
                self._lead(rank, said)
                if not first:
                    return
            elif kind is Kind.NETWORK:
                rank.networks.add(net)
            elif kind is Kind.INITIALIZED:
                rank.initialized.add(net)
            else:
                rank.hints.add(net)
            self._record(rank, text, said, for_efa=net is Net.OFI)

    @staticmethod
    def _lead(rank: RankEvidence, said: Parsed) -> None:
        """Keep where a channel over a network leads."""
        rank.net_lines += 1
        rank.apart |= said.same_device
        if said.peer is not None and len(rank.peers) < MAX_PEERS:
            rank.peers.add(said.peer)
            rank.blocks.add(said.same_block)

    @staticmethod
    def _record(rank: RankEvidence, text: str, said: Parsed, *, for_efa: bool) -> None:
        if said.repeated and said.kind in (Kind.PROVIDER, Kind.NETWORK) and (for_efa or said.net is Net.SOCKET):
            rank.repeats[said.kind.name] = rank.repeats.get(said.kind.name, 0) + said.repeated
        rank.keep(rank.lines if for_efa else rank.against, text, most=2 if said.kind is Kind.HINT else MAX_LINES)
