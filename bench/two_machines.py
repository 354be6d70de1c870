"""Two machines on one: network namespaces joined by a veth pair, whose counters say what crossed; and a Ray node in each.

What runs in a namespace sees only its own interfaces, so that no traffic can take another way. NCCL takes both for one host (same
name, same boot id) and would use NVLink or shared memory; ``NCCL_HOSTID`` tells it otherwise. Needs Linux, root and iproute2.
Where namespaces are not allowed, ``one_network`` gives two addresses of the loopback instead; NCCL's own lines then say what it used.
"""

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

CONSTRUCTS = str(Path(__file__).resolve().parent.parent / "constructs")
sys.path[:0] = [CONSTRUCTS]

from eks_ray_train.cli.processes import descendants, stop_all  # noqa: E402

PORT, DASHBOARD = 6379, 8265
# Fixed: else a raylet registers only once its agent has told which ports it got, which on a busy machine takes longer than the
# 30 s that `ray start` waits.
PORTS = {
    "ray-client-server-port": 2, "dashboard-agent-listen-port": 3, "dashboard-agent-grpc-port": 4, "runtime-env-agent-port": 5,
    "metrics-export-port": 6, "node-manager-port": 7, "object-manager-port": 8, "min-worker-port": 12, "max-worker-port": 80,
}  # fmt: skip


def ip(*words: str) -> None:
    """One command of iproute2."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def namespaces_problem() -> str | None:
    """Why namespaces cannot be made here; None where they can."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        return "needs Linux and iproute2 (ip netns)"
    name = f"try{secrets.token_hex(3)}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"network namespaces are not allowed here: {made.stderr.strip()}"
    tried = subprocess.run(["ip", "netns", "exec", name, "ip", "link", "set", "lo", "up"], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    return f"network namespaces cannot be entered here: {tried.stderr.strip()}" if tried.returncode else None


@dataclass(frozen=True)
class Machines:
    """``names``: of the namespaces, where ``apart``; ``addresses``: of their interfaces."""

    names: tuple[str, str]
    addresses: tuple[str, str]
    apart: bool = True

    def inside(self, index: int, *words: str) -> list[str]:
        """A command line that runs on a machine."""
        return ["ip", "netns", "exec", self.names[index], *words] if self.apart else list(words)

    def interface(self, index: int) -> str:
        """The interface that leads to the other machine."""
        return f"v{index}" if self.apart else "lo"

    def sent(self, index: int) -> int:
        """Bytes that this interface has sent, by the kernel's own counter (of the loopback: by both machines, and all else on it)."""
        counter = f"/sys/class/net/{self.interface(index)}/statistics/tx_bytes"
        shown = subprocess.run(self.inside(index, "cat", counter), capture_output=True, text=True, check=True)
        return int(shown.stdout)


def one_network() -> Machines:
    """Two addresses of this host's loopback (Ray would replace 127.0.0.1 by the host's own)."""
    return Machines(("one", "two"), ("127.0.0.2", "127.0.0.3"), apart=False)


@contextlib.contextmanager
def two_machines() -> Iterator[Machines]:
    """Two joined namespaces; both are gone afterwards."""
    tag, net = secrets.token_hex(3), secrets.randbelow(200) + 20
    machines = Machines((f"ert{tag}a", f"ert{tag}b"), (f"10.213.{net}.1", f"10.213.{net}.2"))
    made = []
    try:
        for name in machines.names:
            ip("netns", "add", name)
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", "v0", "netns", machines.names[0], "type", "veth", "peer", "name", "v1", "netns", machines.names[1])
        for index, name in enumerate(machines.names):
            ip("-n", name, "addr", "add", f"{machines.addresses[index]}/24", "dev", f"v{index}")
            ip("-n", name, "link", "set", f"v{index}", "up")
        yield machines
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@dataclass
class RayOnTwoMachines:
    """A head and one more node; ``address``: the dashboard, to be reached from inside the first machine. ``gpus``: of each, 0 or 1."""

    machines: Machines
    folder: Path
    gpus: int = 0
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"http://{self.machines.addresses[0]}:{DASHBOARD}"

    def environment(self) -> dict[str, str]:
        """Of a client, and of the nodes."""
        keep = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{keep.get('PATH', '')}"
        packages = os.pathsep.join(filter(None, [CONSTRUCTS, keep.get("PYTHONPATH")]))
        return {**keep, "PATH": path, "PYTHONPATH": packages, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, "PYTHONUNBUFFERED": "1", "RAY_USAGE_STATS_ENABLED": "0"}

    def start(self) -> None:
        """Start both nodes. Raises RuntimeError, with what they printed, where one does not come up."""
        for index in (0, 1):
            self.processes.append(self._start_node(index))
            self._wait_for(index + 1)

    def start_again(self, index: int) -> None:
        """Start a node whose processes were killed, and wait until the head has it again."""
        self.processes[index].wait(timeout=10)
        self.processes[index] = self._start_node(index)
        # Asked of the head's own tables: the dashboard shows the killed node as alive for some time.
        question = "import ray, time\nray.init(log_to_driver=False)\nwhile sum(n['Alive'] for n in ray.nodes()) < 2: time.sleep(0.5)\n"
        env = {**self.environment(), "RAY_ADDRESS": f"{self.machines.addresses[0]}:{PORT}"}
        subprocess.run(self.machines.inside(0, sys.executable, "-c", question), env=env, check=True, capture_output=True, timeout=180)

    def _start_node(self, index: int) -> subprocess.Popen[bytes]:
        head, address = self.machines.addresses[0], self.machines.addresses[index]
        folder = Path(tempfile.mkdtemp(prefix=f"n{index}", dir=self.folder))
        flags = ["--head", f"--port={PORT}", f"--dashboard-host={address}", f"--dashboard-port={DASHBOARD}"] if index == 0 else [f"--address={head}:{PORT}"]
        words = [
            sys.executable, "-m", "ray.scripts.scripts", "start", *flags, f"--node-ip-address={address}",
            f"--num-cpus={8 if self.gpus else 1}", f"--num-gpus={self.gpus}", f"--temp-dir={folder}",
            f"--object-store-memory={150 * 1024**2}", "--disable-usage-stats", "--block",
            *(f"--{flag}={port + 20000 + 1000 * index}" for flag, port in PORTS.items()),
        ]  # fmt: skip
        env = {**self.environment(), "RAY_TMPDIR": str(folder), "GLOO_SOCKET_IFNAME": self.machines.interface(index), "RAY_ADDRESS": f"{head}:{PORT}"}
        if self.gpus:
            interface = self.machines.interface(index)
            env |= {"CUDA_VISIBLE_DEVICES": str(index), "NCCL_HOSTID": self.machines.names[index], "NCCL_SOCKET_IFNAME": interface}
        with (folder / "start.log").open("wb") as log:
            return subprocess.Popen(self.machines.inside(index, *words), env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def _wait_for(self, nodes: int) -> None:
        question = (
            "import os, sys\nfrom eks_ray_train.cli.jobs_api import JobsClient\n"
            f"print(len(JobsClient({self.address!r}, token=os.environ['RAY_AUTH_TOKEN']).nodes(read_timeout_s=10)))"
        )
        env = self.environment()
        give_up = time.monotonic() + 180
        while True:
            said = subprocess.run(self.machines.inside(0, sys.executable, "-c", question), env=env, capture_output=True, text=True)
            if said.returncode == 0 and int(said.stdout) >= nodes:
                return
            if any(p.poll() is not None for p in self.processes) or time.monotonic() > give_up:
                logs = "\n".join(path.read_text()[-1500:] for path in sorted(self.folder.glob("n*/start.log")))
                raise RuntimeError(f"the Ray nodes did not come up: {said.stderr[-500:]}{logs}")
            time.sleep(1)

    def stop(self) -> None:
        """End both nodes and what they started."""
        stop_all([pid for process in self.processes for pid in [*descendants([process.pid]), process.pid]])
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)


@contextlib.contextmanager
def ray_on_two_machines(*, gpus: int = 0, apart: bool = True) -> Iterator[RayOnTwoMachines]:
    """A running cluster; namespaces, cable and processes are gone afterwards. ``apart`` False: on ``one_network``."""
    folder = Path(tempfile.mkdtemp(prefix="rn-", dir="/tmp"))
    try:
        with two_machines() if apart else contextlib.nullcontext(one_network()) as machines:
            cluster = RayOnTwoMachines(machines, folder, gpus)
            try:
                cluster.start()
                yield cluster
            finally:
                cluster.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
