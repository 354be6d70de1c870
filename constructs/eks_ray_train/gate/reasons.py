"""The sentences of a verdict: which node, which line, what to check, in that order."""

from __future__ import annotations

from collections.abc import Iterable

from eks_ray_train.gate.evidence import Counters, Evidence, Net, RankEvidence, Transport
from eks_ray_train.gate.nodes import Node
from eks_ray_train.gate.prefixes import strip_colour

_NAMES = {
    Transport.EFA: "EFA",
    Transport.SOCKET: "TCP sockets",
    Transport.OFI_OTHER: "aws-ofi-nccl with another libfabric provider than efa",
    Transport.IB: "InfiniBand or RoCE (NET/IB)",
    Transport.MIXED: "different transports in different processes",
    Transport.NONE: "nothing that crosses the network",
    Transport.UNKNOWN: "another network",
}
_CAUSES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("Only EFA provi", "No eligible provider", "find any optimal provider"),
        "no EFA device in the container: check that the worker requests vpc.amazonaws.com/efa and that the EFA device plugin runs",
    ),
    (
        ("Could not find", "o plugin found", "Plugin load", "cannot open shared object"),
        "NCCL did not find the plugin: check NCCL_NET_PLUGIN=ofi and that nothing replaced the image's LD_LIBRARY_PATH",
    ),
    (("GDR disabled",), "GPUDirect RDMA is off on this node: check the AMI (EFA module, NVIDIA driver with dma-buf)"),
    (
        ("initialization failed", "Initializing plugin failed", "Failed to initialize", "OFI NCCL failure"),
        "aws-ofi-nccl loaded and gave up: check `fi_info -p efa` in the worker and the NET/OFI warnings above this line",
    ),
    (
        ("Unresponsive receiver", "4126"),
        "EFA is blocked between the nodes: check that the security group allows all traffic to and from itself",
    ),
)
_CHECKS = {
    Transport.SOCKET: "check `fi_info -p efa` in the worker, its vpc.amazonaws.com/efa request, NCCL_NET and NCCL_NET_PLUGIN",
    Transport.OFI_OTHER: "check `fi_info -p efa` in the worker, FI_PROVIDER, and that the node's interface is of type efa",
    Transport.IB: "check NCCL_NET and NCCL_NET_PLUGIN: NCCL chose its built-in InfiniBand network",
    Transport.MIXED: "check what differs between these processes: image, environment, EFA request",
    Transport.EFA: "check that NCCL_NET=Socket (or NCCL_NET_PLUGIN=none) reached every worker",
}


_NO_PROVIDER = 'uses Libfabric, but no line says with which provider ("Selected provider is …")'
_TOLD = f"NCCL did not find the plugin that it was told to use: {_CHECKS[Transport.EFA]}"
_SUBSYS = "check that NCCL_DEBUG=INFO and that NCCL_DEBUG_SUBSYS contains INIT and NET"


def printable(text: str) -> str:
    """Text of a log fit for a terminal: nothing in it moves the cursor or changes colours."""
    return "".join(char if char.isprintable() else " " for char in text)


def quote(line: str, limit: int = 240) -> str:
    """A log line fit for one line of a terminal: no colours, no control characters, cut where long."""
    text = printable(strip_colour(line.encode("utf-8", "replace")).decode("utf-8", "replace")).strip()
    return f'"{text[:limit]}…"' if len(text) > limit else f'"{text}"'


def _first(*groups: Iterable[str]) -> str | None:
    return next((line for group in groups for line in group), None)


def _cause(lines: Iterable[str], wanted: Transport) -> str | None:
    """What to do about these errors of the plugin's; nothing where TCP is wanted, since EFA need not work then."""
    texts = list(lines) if wanted is Transport.EFA else []
    return next((advice for words, advice in _CAUSES if any(word in text for word in words for text in texts)), None)


def _errors(ranks: Iterable[RankEvidence]) -> list[str]:
    return [line for rank in ranks for line in rank.errors]


def _with(label: str, what: str, line: str | None, check: str) -> str:
    return f"{label}: {what}{': ' + quote(line) if line else ''}; {check}"


def job_status(status: str) -> str:
    if status == "unknown":
        return "the job's status is not known, and only SUCCEEDED can pass; give it with --job-status"
    return f"the job ended as {status.upper()}, and only SUCCEEDED can pass; read the job's own error first"


def _check(kind: Transport, wanted: Transport) -> str:
    """What to check where ``kind`` was used: where TCP is wanted, the same whatever was used instead."""
    return _CHECKS[Transport.EFA] if wanted is Transport.SOCKET else _CHECKS.get(kind, _CHECKS[Transport.SOCKET])


def wrong_transport(node: Node, kind: Transport, wanted: Transport) -> str:
    errors = _errors(node.ranks)
    spoken = [text for rank in node.ranks for text in rank.against] if wanted is Transport.EFA else []
    strongest = (
        text for words in ("via NET/", "Using network", "Assigned NET", "Selected") for text in spoken if words in text
    )
    line = _first(strongest, spoken)
    line = line or _first(*(rank.lines for rank in node.ranks), errors)
    cause = _cause([*errors, *(text for rank in node.ranks for text in rank.against)], wanted)
    names = sorted({name for rank in node.ranks for name in rank.foreign_names})
    what = f"uses {_NAMES[kind]}" + (f" ({', '.join(names)})" if names else "")
    return _with(node.label, f"{what}, not {_NAMES[wanted]}", line, cause or _check(kind, wanted))


def overall(shown: Transport, wanted: Transport) -> str:
    return f"the run used {_NAMES[shown]}, not {_NAMES[wanted]}; {_check(shown, wanted)}"


def earlier_attempt(old: Evidence, others: set[Transport], wanted: Transport) -> str:
    names = " and ".join(sorted(_NAMES[kind] for kind in others))
    line = _first(*(rank.against if wanted is Transport.EFA else rank.lines for rank in old.ranks))
    what = f"used {names}, not {_NAMES[wanted]}"
    return _with(
        "an attempt before the last restart", what, line, "check what made it restart; run again for a clean answer"
    )


def nothing_shown(evidence: Evidence, nodes: list[Node], shown: Transport, wanted: Transport) -> str:
    errors = _errors(rank for node in nodes for rank in node.ranks)
    if not evidence.nccl_lines and not any(rank.statements for node in nodes for rank in node.ranks):
        return (
            "no evidence: no NCCL line at all; check that the workers run with NCCL_DEBUG=INFO "
            "(WARN prints nothing about transports) and that these are the workers' logs"
        )
    if shown is Transport.NONE:
        node = next((node for node in nodes if node.has_channels), nodes[0] if nodes else None)
        line = _first(*(rank.against + rank.lines for rank in node.ranks)) if node else None
        return _with(
            node.label if node else "the run",
            "no channel crosses the network, whatever was selected: all traffic stayed within nodes",
            line,
            "check that the job really had workers on several nodes (--num_workers, gpu_node_count)",
        )
    if evidence.unread and not any(rank.strong for node in nodes for rank in node.ranks):
        return unknown_prefix(evidence.unread)
    nameless = next((node for node in nodes for rank in node.ranks if Net.OFI in rank.networks | rank.channels), None)
    if nameless:
        return _with(nameless.label, _NO_PROVIDER, _first(*(rank.lines for rank in nameless.ranks)), _SUBSYS)
    speaking = next((node for node in nodes if _errors(node.ranks)), None)
    refused = any(rank.refused for node in nodes for rank in node.ranks)
    return _with(
        speaking.label if speaking else "no evidence",
        "NCCL found no network and did not start" if refused else "NCCL lines, but none says which network is used",
        _first(errors),
        (_TOLD if refused and wanted is Transport.SOCKET else _cause(errors, wanted)) or _SUBSYS,
    )


def unknown_prefix(unread: tuple[str, str]) -> str:
    before, line = unread
    return (
        f"no NCCL line counts that stands behind something unknown, here {quote(before, 80)}: {quote(line)}; "
        "get the log without it, or cut it off (docs/gate.md lists the prefixes that are known)"
    )


def cut_off(node: Node, rank: RankEvidence) -> str:
    who = f"process {rank.pid}" if rank.pid is not None else "a line"
    return f"{node.label}: {who} broke off where it names its network, so it may be anything; get the whole log of that worker"


def gave_up(node: Node, rank: RankEvidence, wanted: Transport) -> str:
    what = f"process {rank.pid or ''}".strip() + " chose a provider, or none, and then gave the plugin up"
    return _with(
        node.label, what, _first(rank.errors), _cause(rank.errors, wanted) or "get the whole log of that worker"
    )


def small_communicator(seen: int, expected: int) -> str:
    return f"NCCL's largest communicator spans {seen} of {expected} nodes; check that one job had workers on all nodes"


def silent_processes(node: Node, silent: list[RankEvidence]) -> str:
    pids = ", ".join(str(rank.pid) for rank in silent[:8]) + (" …" if len(silent) > 8 else "")
    return (
        f"{node.label}: process {pids} prints NCCL lines but none about its network; "
        "get the whole log of that worker, with RAY_DEDUP_LOGS=0"
    )


def mute_workers(names: list[str]) -> str:
    shown = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
    return f"{shown}: prints, but no whole NCCL line; check that NCCL_DEBUG=INFO reaches it and get its whole log"


def overflow(count: int) -> str:
    return f"{count} lines come from more processes than can be told apart; judge each run's log by itself"


def node_without_evidence(node: Node, wanted: Transport) -> str:
    if node.has_channels and not node.crossing:
        what = f"its channels stay within the node, none shows {_NAMES[wanted]}"
    elif any(rank.networks or rank.channels for rank in node.ranks):
        return _with(node.label, _NO_PROVIDER, _first(*(rank.lines for rank in node.ranks)), _SUBSYS)
    elif wanted is Transport.SOCKET and any(Net.SOCKET in rank.hints for rank in node.ranks):
        what = 'announces TCP sockets, and no line shows that it used them ("Using network Socket" or a channel)'
        spoken = [text for rank in node.ranks for text in rank.against]
        return _with(node.label, what, _first((text for text in spoken if "NET/Socket" in text), spoken), _SUBSYS)
    else:
        what = f"prints NCCL lines but shows no {_NAMES[wanted]}"
    line = _first(_errors(node.ranks))
    check = _cause(_errors(node.ranks), wanted) or "check this worker's own log and that it took part in the run"
    return _with(node.label, what, line, check)


def silent_node(ip: str) -> str:
    return f"{ip}: its workers print, but no NCCL line; check that NCCL_DEBUG=INFO reaches every worker"


def no_crossing_channel(wanted: Transport) -> str:
    return (
        f"no rank reports a channel between nodes over {_NAMES[wanted]}; "
        "check that NCCL_DEBUG_SUBSYS contains INIT and NET and that the run spans nodes"
    )


def too_few_nodes(seen: int, expected: int, labels: list[str]) -> str:
    names = ", ".join(labels[:8]) or "none by name"
    return f"evidence from {seen} of {expected} nodes ({names}); the others show nothing: get their workers' logs"


def counters_still(node: Node, counters: Counters | None) -> str:
    if counters is None or counters.sent is None or counters.received is None:
        what = "no EFA counters were read"
        check = "check that the worker sees /sys/class/infiniband (vpc.amazonaws.com/efa in its limits)"
    else:
        what = f"its EFA counters say {counters.sent} bytes sent and {counters.received} received during the run"
        check = "traffic went another way; check this node's NCCL log and its security groups"
    return f"{node.label}: {what}; {check}"


def counters_moved(node: Node, counters: Counters) -> str:
    return (
        f"{node.label}: its EFA counters moved ({counters.sent or 0} bytes sent, {counters.received or 0} received) "
        "in a run that should use TCP; check that NCCL_NET=Socket reached every worker"
    )


def no_gdrdma(node: Node, rank: RankEvidence) -> str:
    return _with(
        node.label,
        "its channels over EFA do not use GPUDirect RDMA, which this instance type has",
        _first(line for line in rank.lines if "via NET/" in line) or _first(rank.lines),
        "check the AMI's NVIDIA driver and EFA module and that NCCL_NET_GDR_LEVEL is not set",
    )


def too_few_nics(node: Node, found: int, wanted: int) -> str:
    line = _first(text for rank in node.ranks for text in rank.lines if f"found {found} nics" in text)
    check = f"check that the worker requests vpc.amazonaws.com/efa: {wanted} and the node's launch template"
    return _with(node.label, f"aws-ofi-nccl found {found} of {wanted} EFA interfaces", line, check)


def not_shown(*, doubt: bool) -> str:
    if doubt:
        return "EFA is shown, but not of all processes, so no transport is named; nothing was to be judged (--expect efa says what is missing)"
    return "no transport between nodes is shown, and none was expected; nothing was to be judged (--expect efa says what is missing)"


def selection_only() -> str:
    return "the evidence is selection only: no channel line is shown, so it says what NCCL chose, not what it connected"


def no_hosts() -> str:
    return "no line names a host, so nodes cannot be told apart"


def one_end_only(label: str, expected: int) -> str:
    return (
        f"only {label} is named of {expected} nodes; the other end of its connections is taken to use the same network"
    )
