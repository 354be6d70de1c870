"""Two network namespaces as two machines, joined by a veth pair, with a Ray node in each."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from eks_ray_train.cli.processes import descendants, stop_all

PORT, DASHBOARD = 6379, 8265
# Fixed (each namespace has its own ports): else a raylet registers only once its agent has told which ports it got, which on a
# busy machine takes longer than the 30 s that `ray start` waits.
PORT_FLAGS = (
    "--dashboard-agent-listen-port=20003", "--dashboard-agent-grpc-port=20004", "--runtime-env-agent-port=20005",
    "--metrics-export-port=20006", "--node-manager-port=20007", "--object-manager-port=20008", "--ray-client-server-port=20002",
    "--min-worker-port=20012", "--max-worker-port=20080",
)  # fmt: skip


def ip(*words: str) -> None:
    """One command of iproute2."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def need_namespaces() -> None:
    """Skip, with the reason, where namespaces cannot be made."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        pytest.skip("needs Linux and iproute2 (ip netns)")
    name = f"try{secrets.token_hex(3)}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"network namespaces are not allowed here: {made.stderr.strip()}")
    tried = subprocess.run(["ip", "netns", "exec", name, "ip", "link", "set", "lo", "up"], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    if tried.returncode:
        pytest.skip(f"network namespaces cannot be entered here: {tried.stderr.strip()}")


@dataclass
class NetnsCluster:
    """``address``: the dashboard, to be reached from inside the first namespace (``inside``)."""

    names: list[str]
    addresses: list[str]
    folder: Path
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"http://{self.addresses[0]}:{DASHBOARD}"

    def environment(self) -> dict[str, str]:
        """Of a client, and of the nodes."""
        keep = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{keep.get('PATH', '')}"
        return {**keep, "PATH": path, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, "PYTHONUNBUFFERED": "1", "RAY_USAGE_STATS_ENABLED": "0"}

    def inside(self, index: int, *words: str) -> list[str]:
        """A command line that runs in a namespace."""
        return ["ip", "netns", "exec", self.names[index], *words]

    def sent(self, index: int) -> int:
        """Bytes that the namespace's end of the cable has sent, by the kernel's own counter."""
        shown = subprocess.run(self.inside(index, "cat", f"/sys/class/net/v{index}/statistics/tx_bytes"), capture_output=True, text=True, check=True)
        return int(shown.stdout)

    def start(self) -> None:
        for index, address in enumerate(self.addresses):
            folder = self.folder / f"n{index}"
            folder.mkdir()
            flags = ["--head", f"--port={PORT}", f"--dashboard-host={address}", f"--dashboard-port={DASHBOARD}"] if index == 0 else [
                f"--address={self.addresses[0]}:{PORT}"
            ]  # fmt: skip
            words = [
                sys.executable, "-m", "ray.scripts.scripts", "start", *flags, f"--node-ip-address={address}", "--num-cpus=1", "--num-gpus=0",
                f"--temp-dir={folder}", f"--object-store-memory={150 * 1024**2}", "--disable-usage-stats", "--block", *PORT_FLAGS,
            ]  # fmt: skip
            env = {**self.environment(), "RAY_TMPDIR": str(folder), "GLOO_SOCKET_IFNAME": f"v{index}", "RAY_ADDRESS": f"{self.addresses[0]}:{PORT}"}
            with (folder / "start.log").open("wb") as log:
                self.processes.append(
                    subprocess.Popen(self.inside(index, *words), env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
                )
            self._wait_for(index + 1)

    def _wait_for(self, nodes: int) -> None:
        question = (
            "import os, sys\nfrom eks_ray_train.cli.jobs_api import JobsClient\n"
            f"print(len(JobsClient({self.address!r}, token=os.environ['RAY_AUTH_TOKEN']).nodes(read_timeout_s=10)))"
        )
        give_up = time.monotonic() + 180
        while True:
            said = subprocess.run(self.inside(0, sys.executable, "-c", question), env=self.environment(), capture_output=True, text=True)
            if said.returncode == 0 and int(said.stdout) >= nodes:
                return
            logs = "\n".join((self.folder / f"n{i}" / "start.log").read_text()[-1500:] for i in range(len(self.processes)))
            assert all(p.poll() is None for p in self.processes), logs
            assert time.monotonic() < give_up, said.stderr[-500:] + logs
            time.sleep(1)

    def stop(self) -> None:
        stop_all([pid for process in self.processes for pid in [*descendants([process.pid]), process.pid]])
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)


@contextlib.contextmanager
def netns_cluster() -> Iterator[NetnsCluster]:
    """A running cluster; namespaces, cable and processes are gone afterwards."""
    need_namespaces()
    tag = secrets.token_hex(3)
    names = [f"ert{tag}a", f"ert{tag}b"]
    net = secrets.randbelow(200) + 20
    addresses = [f"10.213.{net}.1", f"10.213.{net}.2"]
    folder = Path(tempfile.mkdtemp(prefix="rn-", dir="/tmp"))
    cluster = NetnsCluster(names, addresses, folder)
    made: list[str] = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", "v0", "netns", names[0], "type", "veth", "peer", "name", "v1", "netns", names[1])
        for index, name in enumerate(names):
            ip("-n", name, "addr", "add", f"{addresses[index]}/24", "dev", f"v{index}")
            ip("-n", name, "link", "set", f"v{index}", "up")
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)
