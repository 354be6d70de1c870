"""Two machines on one: network namespaces joined by a veth pair, whose counters say what crossed; and a Ray node in each.

What runs in a namespace sees only its own interfaces, so that no traffic can take another way. NCCL takes both for one host (same
name, same boot id) and would use NVLink or shared memory; ``NCCL_HOSTID`` tells it otherwise. Needs Linux, root and iproute2.
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

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "constructs")]

from eks_ray_train.cli.processes import descendants, stop_all  # noqa: E402

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
    """``names``: of the namespaces; ``addresses``: of their interfaces, which are v0 and v1."""

    names: tuple[str, str]
    addresses: tuple[str, str]

    def inside(self, index: int, *words: str) -> list[str]:
        """A command line that runs on a machine."""
        return ["ip", "netns", "exec", self.names[index], *words]

    def sent(self, index: int) -> int:
        """Bytes that the machine's end of the cable has sent, by the kernel's own counter."""
        shown = subprocess.run(self.inside(index, "cat", f"/sys/class/net/v{index}/statistics/tx_bytes"), capture_output=True, text=True, check=True)
        return int(shown.stdout)


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
        return {**keep, "PATH": path, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, "PYTHONUNBUFFERED": "1", "RAY_USAGE_STATS_ENABLED": "0"}

    def start(self) -> None:
        """Start both nodes. Raises RuntimeError, with what they printed, where one does not come up."""
        head = self.machines.addresses[0]
        for index, address in enumerate(self.machines.addresses):
            folder = self.folder / f"n{index}"
            folder.mkdir()
            flags = ["--head", f"--port={PORT}", f"--dashboard-host={address}", f"--dashboard-port={DASHBOARD}"] if index == 0 else [f"--address={head}:{PORT}"]
            words = [
                sys.executable, "-m", "ray.scripts.scripts", "start", *flags, f"--node-ip-address={address}",
                f"--num-cpus={8 if self.gpus else 1}", f"--num-gpus={self.gpus}", f"--temp-dir={folder}",
                f"--object-store-memory={150 * 1024**2}", "--disable-usage-stats", "--block", *PORT_FLAGS,
            ]  # fmt: skip
            env = {**self.environment(), "RAY_TMPDIR": str(folder), "GLOO_SOCKET_IFNAME": f"v{index}", "RAY_ADDRESS": f"{head}:{PORT}"}
            if self.gpus:
                env |= {"CUDA_VISIBLE_DEVICES": str(index), "NCCL_HOSTID": self.machines.names[index], "NCCL_SOCKET_IFNAME": f"v{index}"}
            with (folder / "start.log").open("wb") as log:
                self.processes.append(
                    subprocess.Popen(self.machines.inside(index, *words), env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
                )
            self._wait_for(index + 1)

    def _wait_for(self, nodes: int) -> None:
        question = (
            "import os, sys\nfrom eks_ray_train.cli.jobs_api import JobsClient\n"
            f"print(len(JobsClient({self.address!r}, token=os.environ['RAY_AUTH_TOKEN']).nodes(read_timeout_s=10)))"
        )
        env = self.environment()
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[0], env.get("PYTHONPATH")]))
        give_up = time.monotonic() + 180
        while True:
            said = subprocess.run(self.machines.inside(0, sys.executable, "-c", question), env=env, capture_output=True, text=True)
            if said.returncode == 0 and int(said.stdout) >= nodes:
                return
            if any(p.poll() is not None for p in self.processes) or time.monotonic() > give_up:
                logs = "\n".join((self.folder / f"n{i}" / "start.log").read_text()[-1500:] for i in range(len(self.processes)))
                raise RuntimeError(f"the Ray nodes did not come up: {said.stderr[-500:]}{logs}")
            time.sleep(1)

    def stop(self) -> None:
        """End both nodes and what they started."""
        stop_all([pid for process in self.processes for pid in [*descendants([process.pid]), process.pid]])
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)


@contextlib.contextmanager
def ray_on_two_machines(*, gpus: int = 0) -> Iterator[RayOnTwoMachines]:
    """A running cluster; namespaces, cable and processes are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="rn-", dir="/tmp"))
    try:
        with two_machines() as machines:
            cluster = RayOnTwoMachines(machines, folder, gpus)
            try:
                cluster.start()
                yield cluster
            finally:
                cluster.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
