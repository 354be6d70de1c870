"""Evidence of what carried the traffic between nodes: this rank's NCCL lines, the EFA counters, what libfabric lists.

NCCL writes into a file per process of this run (``NCCL_DEBUG_FILE``), so no line of another run can be taken for ours.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SYSFS = Path("/sys/class/infiniband")
COUNTERS = (
    "tx_bytes", "rx_bytes", "send_bytes", "recv_bytes", "rdma_read_bytes", "rdma_write_bytes", "retrans_bytes", "rx_drops",
)  # fmt: skip
MAX_LINES = 60

# What says which network was chosen, with which provider, and how many nodes a communicator spans.
_DECISIVE = re.compile(
    r"Selected [Pp]rovider|Using network|NET plugin|NCCL version|aws-ofi-nccl \d|Libfabric version"
)
_COMM = re.compile(r"comm 0x\w+ rank \d+ n[Rr]anks (?P<ranks>\d+)(?: nNodes (?P<nodes>\d+))?")
_MOST_COMMS = 4
_MORE = re.compile(r"NET/OFI|NET/Plugin|NET/Socket|NET/IB|NCCL WARN|[Nn]o eligible")
_CHANNEL = re.compile(r"(?:Channel|Ring) (?:.*?: (?P<ends>\d+\S* -> \d+\S*))?.*?\bvia\s+(?P<via>\S+)")
_NIC = re.compile(r"(?<=^NET/)([^/]+)/\d+")
_SAYS = re.compile(r"^.*?NCCL (?:INFO|WARN) ")
_POINTER = re.compile(r"0x[0-9a-f]+")
_MOST_CHANNELS = {True: 16, False: 3}
"""Lines kept of one kind of carrier, through a network or not: a rank has few neighbours, but each of them matters."""


def nccl_environment(submission: str, current: Mapping[str, str]) -> dict[str, str]:
    """Variables for the workers: NCCL's log at INFO into one file per process of this submission.

    A NCCL_DEBUG below INFO would leave no evidence, so it is raised; TRACE and chosen subsystems stay (INIT and NET added).
    """
    level = current.get("NCCL_DEBUG", "").upper()
    chosen = current.get("NCCL_DEBUG_SUBSYS", "")
    missing = [part for part in ("INIT", "NET") if chosen.upper() != "ALL" and part not in chosen.upper().split(",")]
    return {
        "NCCL_DEBUG": level if level in ("INFO", "ABORT", "TRACE") else "INFO",
        "NCCL_DEBUG_SUBSYS": ",".join(filter(None, [chosen, *missing])),
        "NCCL_DEBUG_FILE": f"{tempfile.gettempdir()}/eks-ray-train-nccl-{submission}.%h.%p.log",
    }


def nccl_files() -> list[Path]:
    """This process's NCCL log files, by the pattern in its environment."""
    pattern = os.environ.get("NCCL_DEBUG_FILE", "")
    if "%p" not in pattern:
        return [Path(pattern)] if pattern and Path(pattern).is_file() else []
    folder, name = os.path.split(pattern)
    wanted = name.replace("%p", str(os.getpid())).replace("%h", "*")
    return sorted(Path(folder or ".").glob(wanted))


def matter(lines: list[str]) -> tuple[list[str], dict[str, int]]:
    """(verbatim lines that show the transport, channels counted by what carries them).

    At most ``MAX_LINES``, in the order of what they decide: first those that name network, provider and nodes, each
    statement once (a run makes many communicators); then channels, of each carrier one line a neighbour; then the rest.
    """
    decisive: dict[str, str] = {}
    comms: dict[str, tuple[int, int, str]] = {}
    ways: dict[str, dict[str, str]] = {}
    more: dict[str, None] = {}
    channels: dict[str, int] = {}
    for line in map(str.rstrip, lines):
        said = _POINTER.sub("", _SAYS.sub("", line))
        if " via " in line and (channel := _CHANNEL.search(line)):
            via = channel["via"]
            channels[via] = channels.get(via, 0) + 1
            carrier = _NIC.sub(r"\1", via)  # of many interfaces each has its number, and all are one carrier
            outward = carrier.startswith("NET/")
            of_carrier = ways.setdefault(carrier, {})
            if len(of_carrier) < _MOST_CHANNELS[outward]:
                of_carrier.setdefault((outward and channel["ends"]) or line, line)
        elif comm := _COMM.search(line):
            comms.setdefault(said, (int(comm["nodes"] or 0), int(comm["ranks"]), line))
        elif _DECISIVE.search(line):
            decisive.setdefault(said, line)
        elif _MORE.search(line):
            more.setdefault(line)
    widest = [line for _, _, line in sorted(comms.values(), key=lambda comm: comm[:2], reverse=True)[:_MOST_COMMS]]
    shown = [line for _, kept in sorted(ways.items(), key=lambda way: not way[0].startswith("NET/")) for line in kept.values()]
    return [*decisive.values(), *widest, *shown, *more][:MAX_LINES], channels


def efa_counters(root: Path = SYSFS) -> dict[str, Any]:
    """Byte counters of each EFA device by name, or ``{"absent": why}``."""
    devices: dict[str, Any] = {}
    for folder in sorted(root.glob("*/ports/1/hw_counters")):
        values = {}
        for name in COUNTERS:
            try:
                values[name] = int((folder / name).read_text())
            except (OSError, ValueError):
                continue  # an older driver lacks some of them
        if values:
            devices[folder.parts[-4]] = values
    return devices or {"absent": f"no device with counters below {root}"}


def interface_bytes(table: Path = Path("/proc/net/dev")) -> dict[str, tuple[int, int]]:
    """(received, sent) bytes of each network interface that this process sees, loopback left out; empty off Linux."""
    try:
        lines = table.read_text().splitlines()[2:]
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, _, numbers = line.partition(":")
        fields = numbers.split()
        if name.strip() != "lo" and len(fields) >= 9:
            found[name.strip()] = (int(fields[0]), int(fields[8]))
    return found


def _moved(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> dict[str, dict[str, int]]:
    """Bytes by interface between two readings; interfaces that came or went meanwhile say nothing."""
    return {
        name: {"received": after[name][0] - before[name][0], "sent": after[name][1] - before[name][1]}
        for name in sorted(before.keys() & after.keys())
    }


def fabric(timeout_s: float = 20) -> dict[str, Any]:
    """What ``fi_info -p efa`` says of FI_EP_RDM and FI_RMA, or ``{"absent": why}``."""
    program = shutil.which("fi_info") or shutil.which("/opt/amazon/efa/bin/fi_info")
    if program is None:
        return {"absent": "fi_info is not installed"}

    def ask(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, "-p", "efa", *more], capture_output=True, text=True, timeout=timeout_s, check=False
        )

    try:
        plain = ask()
        if plain.returncode != 0:
            said = (plain.stderr or plain.stdout).strip().splitlines()
            return {"absent": f"fi_info -p efa ended with {plain.returncode}: {said[-1] if said else 'no output'}"}
        domains = re.findall(r"domain:\s*(\S+)", plain.stdout)
        rdm = "FI_EP_RDM" in plain.stdout or ask("-t", "FI_EP_RDM").returncode == 0
        return {"domains": sorted(set(domains)), "FI_EP_RDM": rdm, "FI_RMA": ask("-c", "FI_RMA").returncode == 0}
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"absent": f"fi_info failed: {error}"}


def _readings(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Both readings by device; null, with the reason beside it, where there was nothing to read."""
    absent = after.get("absent") or before.get("absent")
    if absent:
        return {"before": None, "after": None, "absent": absent}
    return {"before": before, "after": after}


class Evidence:
    """One rank's evidence: counters when made, and the ``transport`` event's fields when asked."""

    def __init__(self, *, rank: int, node: str, local_rank: int, world_size: int) -> None:
        self._who = {
            "rank": rank,
            "node": node,
            "world_size": world_size,
            "pid": os.getpid(),
            "host": os.uname().nodename,
        }
        self._before = efa_counters()
        self._interfaces = interface_bytes()
        self._fabric = fabric() if local_rank == 0 else None

    def fields(self) -> dict[str, Any]:
        """Fields of the ``transport`` event as of now."""
        lines: list[str] = []
        for path in nccl_files():
            try:
                lines += path.read_text(errors="replace").splitlines()
            except OSError as error:
                lines.append(f"cannot read {path}: {error}")
        kept, channels = matter(lines)
        out = {
            **self._who, "nccl_lines": kept, "channels": channels, "nccl_lines_total": len(lines),
            "efa_counters": _readings(self._before, efa_counters()),
            # Of the whole node, not of this process alone: proof of TCP traffic where NCCL is not there to say it.
            "interface_bytes": _moved(self._interfaces, interface_bytes()),
        }  # fmt: skip
        return out if self._fabric is None else {**out, "fi_info": self._fabric}

    def clean(self) -> None:
        """Remove this process's NCCL log files."""
        for path in nccl_files():
            path.unlink(missing_ok=True)
