"""One line of a log -> who says it and what it says. Pure; bytes in, small objects out.

Two rules keep a log from passing by accident. A statement *for* a network counts only in a whole, well-formed line: known
prefixes, then NCCL's own, then the statement and nothing else. A statement *against* EFA counts wherever it stands: in a
line that lost its head, that ran into another, or that another was written into.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice

from eks_ray_train.gate import patterns as p
from eks_ray_train.gate.evidence import Net
from eks_ray_train.gate.prefixes import Prefix, read_prefix, strip_colour

_MAX_PIECES = 64
"""Lines that ran into one, taken apart; the rest is searched for statements against EFA all the same."""


class Kind(Enum):
    """What a line says."""

    PROVIDER = auto()
    NETWORK = auto()
    INITIALIZED = auto()
    NET_CHANNEL = auto()
    LOCAL_CHANNEL = auto()
    COMM = auto()
    HINT = auto()
    CUT = auto()
    CUT_CHANNEL = auto()
    FOREIGN = auto()
    UNREAD = auto()
    """NCCL's, behind a prefix that is not known (``value``)."""
    OTHER = auto()


@dataclass(slots=True)
class Parsed:
    """One understood line. ``host``/``pid`` name the process by NCCL's prefix; ``ray_*`` by Ray's."""

    kind: Kind
    host: str | None = None
    pid: int | None = None
    ip: str | None = None
    glued: bool = False
    """The end of another line may stand before the host's name."""
    ray: tuple[str, str | None, int] | None = None
    """(class of actor, address, pid) that Ray's prefix names."""
    mpi_rank: int | None = None
    net: Net | None = None
    value: str = ""
    number: int | None = None
    own_rank: int | None = None
    peer: int | None = None
    same_device: bool = False
    """The channel's two ranks have GPUs of one number, so they are on different nodes."""
    same_block: bool = False
    """Their ranks lie as far apart as their GPUs' numbers, as they do within one node."""
    size: int = 0
    nodes: int | None = None
    gdr: bool = False
    repeated: int = 0
    nccl: bool = True
    """Carries NCCL's marker ("NCCL INFO"), as everything under Ray does."""
    ofi: bool = False
    plugin_failed: bool = False
    refused: bool = False
    error: bool = False


def parse(line: bytes) -> list[Parsed]:
    """What one line says about NCCL's networks: nothing, one statement, or several where lines ran into each other.

    ``line``: without its end, at most a few kilobytes. Never raises.
    """
    text = strip_colour(line)
    repeated = 0
    if b"[repeated" in text and (match := p.REPEATED.search(text)):
        repeated = int(match[1][:6]) if match[1] else 0
        text = text[: match.start()]
    prefix = read_prefix(text)
    marks = [match.span() for match in islice(p.MARKER.finditer(text), _MAX_PIECES)]
    if not marks:
        found = [_bare(text, prefix)]
    elif len(marks) == 1:
        found = [_marked(text, prefix, marks[0])]
    else:
        found = _run_together(text, prefix, marks)
    said = [out for out in found if out is not None]
    for out in said:
        out.repeated, out.ip, out.mpi_rank, out.ray = repeated, prefix.ip, prefix.mpi_rank, prefix.speaker
        if out.pid is None and prefix.pid is not None:
            out.pid = prefix.pid
    return said + against_anywhere(text, said) if marks or said else said


def against_anywhere(text: bytes, said: Iterable[Parsed] = ()) -> list[Parsed]:
    """Statements against EFA that stand somewhere in the text and are none of ``said``; of nobody, since their head is lost."""
    known = {(out.net, out.value) for out in said if _speaks_against(out)}
    found: list[Parsed] = []
    for match in p.AGAINST.finditer(text):
        if match["provider"]:
            out = Parsed(Kind.PROVIDER, value=match["provider"].decode("ascii", "replace")[:64])
            told = any(value.startswith(out.value) for _, value in known)
        else:
            out = Parsed(Kind.NETWORK, net=p.NAMES[match["net"]])
            told = any(net is out.net for net, _ in known)
        if not told:
            known.add((out.net, out.value))
            found.append(out)
    return found


def _marked(text: bytes, prefix: Prefix, mark: tuple[int, int]) -> Parsed | None:
    """A line with one marker of NCCL's: whole, or behind something unknown."""
    head = text[prefix.end : mark[0]]
    match = p.HEAD.search(head) or p.HEAD_SHORT.search(head)
    known_head = match.start() == 0 if match else not head.strip()
    out = _statement(text[mark[1] :], clean=known_head)
    if not known_head and not _speaks_against(out):
        # Somebody quotes NCCL, or the line's head is lost, or a launcher put there what nobody knows here.
        before = text[: prefix.end + match.start("host")] if match else text[: mark[0]]
        return Parsed(Kind.UNREAD, value=before.decode("utf-8", "replace").strip()[:200])
    _name(out, match, glued=not known_head)
    return out


def _run_together(text: bytes, prefix: Prefix, marks: list[tuple[int, int]]) -> list[Parsed | None]:
    """A line with several markers: two writers at once. Nothing in it is whole, but what speaks against EFA still counts."""
    ends = [mark[0] for mark in marks[1:]] + [len(text)]
    first = text[prefix.end : marks[0][0]]
    head = p.HEAD.search(first) or p.HEAD_SHORT.search(first)
    known_head = head.start() == 0 if head else not first.strip()
    glued = not known_head
    found: list[Parsed | None] = []
    for (_, begin), end in zip(marks, ends, strict=True):
        body = text[begin:end]
        following = p.HEAD_GLUED.search(body) if end < len(text) else None
        # Behind a bracket the next line's head begins for certain; else its first word may begin with this line's last.
        apart = following is not None and body[: following.start()].endswith((b")", b"]"))
        out = _statement(body[: following.start()] if following and apart else body, clean=bool(found))
        if following and not apart:
            begun = out.kind is Kind.OTHER and _begun(body[: following.start()])
            if begun or (out.kind is Kind.PROVIDER and not p.AGAINST.search(body)):
                out.kind = Kind.CUT  # "Using netw", "provider is ef" and then another line: the rest may be anywhere
        keep = known_head and (not found or (head is not None and _unfinished(out)))
        found.append(out if keep or _speaks_against(out) else None)
        _name(out, head, glued=glued)
        head, glued = following, not apart
    return found


def _unfinished(said: Parsed) -> bool:
    return said.kind in (Kind.CUT, Kind.CUT_CHANNEL, Kind.HINT) or said.plugin_failed


def _begun(text: bytes) -> bool:
    """Whether a statement about a network may have begun where ``text`` is followed by part of a word."""
    return any(phrase.startswith(text.lstrip()) for phrase in (*p.PHRASES, p.CHANNEL_START))


def _name(out: Parsed, head: re.Match[bytes] | None, *, glued: bool) -> None:
    """Note the process that NCCL's own head names."""
    if head is None:
        return
    out.host = head["host"].decode("utf-8", "replace")[:253]
    out.pid = int(head["pid"][:12]) if "pid" in head.re.groupindex and head["pid"] else None
    out.glued = glued


def _speaks_against(said: Parsed) -> bool:
    if said.kind is Kind.PROVIDER:
        return said.value != "efa"
    return said.kind is Kind.FOREIGN or (said.kind in (Kind.NETWORK, Kind.NET_CHANNEL) and said.net is not Net.OFI)


def _bare(text: bytes, prefix: Prefix) -> Parsed | None:
    """A line without NCCL's marker: pasted without it, or broken off, or somebody else's."""
    rest = text[prefix.end :]
    if match := p.CUT_HEAD.search(text, max(0, len(text) - 300)):
        return Parsed(Kind.CUT, host=match["host"].decode("utf-8", "replace")[:253], pid=int(match["pid"][:12]))
    left = p.MARKER_REST.match(rest)
    # Under Ray every NCCL line has the marker: without it, the line is the program's own print, or a rest of one.
    out = _statement(rest[left.end() :] if left else rest, clean=not prefix.ray and not left)
    out.nccl = False
    if out.kind is Kind.NET_CHANNEL or p.BARE.match(rest) or (left and _speaks_against(out)):
        return out
    return None


def _statement(body: bytes, *, clean: bool) -> Parsed:
    body = body.strip()
    out = Parsed(Kind.OTHER, ofi=body.startswith(b"NET/OFI"))
    out.plugin_failed = p.PLUGIN_FAILED.search(body) is not None
    out.refused = out.plugin_failed and p.REFUSED in body
    out.error = out.plugin_failed or p.ERROR.search(body) is not None
    if b" via " in body or body.startswith((b"Channel", b"via NET/")):
        return _channel(body, out, clean=clean)
    if match := p.SELECTED_ANY.search(body):
        return _provider(body, match, out, clean=clean and match.start() == 0)
    if match := p.NETWORK.search(body):
        return _network(match, out, clean=clean and match.start() == 0)
    if match := p.SELF_TEST.match(body):
        return _named(match["name"], Kind.NETWORK, out, clean=clean)
    if match := p.COMM.search(body):
        out.kind, out.own_rank, out.size = Kind.COMM, int(match["rank"][:9]), int(match["size"][:9])
        out.nodes = int(match["nodes"][:9]) if match["nodes"] else None
        return out
    if p.IB_HINT.search(body):
        out.kind, out.net = Kind.HINT, Net.IB
    elif p.NO_PLUGIN.search(body):
        out.kind, out.net = Kind.HINT, Net.SOCKET
    elif any(phrase.startswith(body) for phrase in p.PHRASES):
        out.kind = Kind.CUT_CHANNEL if p.CHANNEL_START.startswith(body) else Kind.CUT
    elif p.CHANNEL_START.startswith(body):
        out.kind = Kind.CUT_CHANNEL
    return out


def _channel(body: bytes, out: Parsed, *, clean: bool) -> Parsed:
    if match := p.CHANNEL.search(body):
        whole = clean and match.start() == 0
        via = match["via"]
        own, other = ("b", "a") if match["way"] == b"receive" else ("a", "b")
        out.own_rank, out.peer = int(match[own][:9]), int(match[other][:9])
        own_dev, other_dev = match[own + "_dev"], match[other + "_dev"]
        out.same_device = own_dev is not None and own_dev == other_dev and out.own_rank != out.peer
        if own_dev and other_dev and own_dev.isdigit() and other_dev.isdigit():
            out.same_block = out.own_rank - int(own_dev[:9]) == out.peer - int(other_dev[:9])
        if net := p.VIA_NET.match(via):
            out.gdr = b"GDRDMA" in net["more"]
            return _named(net["name"], Kind.NET_CHANNEL, out, clean=whole)
        if via.startswith(b"NET/") and len(via) > 4:
            return _named(via[4:].split(b"/")[0], Kind.NET_CHANNEL, out, clean=False)
        if p.LOCAL.match(via):
            out.kind = Kind.LOCAL_CHANNEL
            return out
        if p.COLLNET.match(via):
            out.kind, out.value = Kind.FOREIGN, "CollNet"
            return out
        out.kind = Kind.CUT_CHANNEL
        return out
    if match := p.CHANNEL_TAIL.search(body):
        return _named(match["name"], Kind.NET_CHANNEL, out, clean=False)
    if body.startswith(b"Channel") and not p.RING_LIST.match(body):
        out.kind = Kind.CUT_CHANNEL
    return out


def _provider(body: bytes, match: re.Match[bytes], out: Parsed, *, clean: bool) -> Parsed:
    provider = match["provider"]
    whole = p.SELECTED.match(body) if clean else None
    out.value = provider.decode("ascii", "replace")[:64]
    if provider not in p.PROVIDERS and not match["more"] and any(known.startswith(provider) for known in p.PROVIDERS):
        out.kind = Kind.CUT
    elif provider == b"efa" and not whole:
        # Cut inside "(found 4 nics)" is still efa; with other words behind it, it is nobody's line.
        out.kind = Kind.PROVIDER if clean and p.SELECTED_CUT.fullmatch(match["more"]) else Kind.CUT
    else:
        out.kind = Kind.PROVIDER
        if whole and whole["nics"]:
            out.number = int(whole["nics"][:6])
    return out


def _network(match: re.Match[bytes], out: Parsed, *, clean: bool) -> Parsed:
    if match["assigned"] is not None and match["to"] is None:
        clean = False  # the name may be broken off
    name = next(value for value in (match["using"], match["assigned"], match["init"]) if value is not None)
    return _named(name.strip(), Kind.INITIALIZED if match["init"] is not None else Kind.NETWORK, out, clean=clean)


def _named(name: bytes, kind: Kind, out: Parsed, *, clean: bool) -> Parsed:
    """Sort a statement by the network's name. Unclean lines count only when they name something else than Libfabric."""
    name = name.strip()
    net = p.NAMES.get(name)
    if net is None and name:
        starts = [known for known in p.NAMES if known.startswith(name)]
        begun = [known for known in p.NAMES if name.startswith(known)]
        if starts:
            # Broken off: "Sock" can only be Socket, and "Lib" may as well be nothing.
            net = p.NAMES[starts[0]] if p.NAMES[starts[0]] is not Net.OFI else None
        elif begun:
            net = p.NAMES[begun[-1]]
            clean = clean and name.startswith((b"Libfabric_", b"Libfabric ("))
        elif p.IB_LIKE.match(name):
            net = Net.IB
        elif kind is not Kind.INITIALIZED and re.fullmatch(rb"[\w .+-]{2,40}", name):
            out.kind, out.value = Kind.FOREIGN, name.decode("ascii", "replace")
            return out
    if net is None or (net is Net.OFI and not clean):
        out.kind = Kind.CUT_CHANNEL if kind is Kind.NET_CHANNEL else Kind.CUT
        return out
    out.kind, out.net = kind, net
    return out
