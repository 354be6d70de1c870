"""One node of the local Ray cluster: what it is started with, what its logs say last, which of its processes must live."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

PORTS_A_NODE = 80
AGENT_LISTEN_PORT = 3
WORKER_PORTS_FROM = 12  # the block's first ports are the node's own services
OBJECT_STORE_BYTES = 150 * 1024**2
# ``ray start`` itself waits on where one of these has died while it starts, and for good where one ended in order.
CORE = ("gcs_server", "raylet")
TAIL_LINES = 15


@dataclass(frozen=True, kw_only=True)
class LocalNode:
    """One ``ray start``: ``ports`` is the first of its block of ports, ``cpus`` what it offers to Ray."""

    name: str
    address: str
    cpus: int
    ports: int
    folder: Path

    @property
    def log(self) -> Path:
        """What ``ray start`` itself printed."""
        return self.folder.parent / f"{self.name}.log"

    @property
    def logs(self) -> Path:
        """The folder of what Ray's own processes wrote."""
        return self.folder / "session_latest" / "logs"

    def flags(self, *, head_of: str | None) -> list[str]:
        """Arguments of ``ray start``; ``head_of`` is the head's address on a worker node and None on the head."""
        first = self.ports
        flags = [f"--address={head_of}"] if head_of else ["--head", f"--port={first}"]
        if not head_of:
            flags += ["--dashboard-host=127.0.0.1", f"--dashboard-port={first + 1}", f"--ray-client-server-port={first + 2}"]
        return [
            *flags,
            f"--node-ip-address={self.address}",
            f"--num-cpus={self.cpus}",
            "--num-gpus=0",
            f"--temp-dir={self.folder}",
            f"--dashboard-agent-listen-port={first + AGENT_LISTEN_PORT}",
            f"--dashboard-agent-grpc-port={first + 4}",
            f"--runtime-env-agent-port={first + 5}",
            f"--metrics-export-port={first + 6}",
            f"--node-manager-port={first + 7}",
            f"--object-manager-port={first + 8}",
            f"--min-worker-port={first + WORKER_PORTS_FROM}",
            f"--max-worker-port={first + PORTS_A_NODE - 1}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--disable-usage-stats",
            "--block",
        ]

    def tell_agent_port(self, raylet: int) -> bool:
        """Tell the raylet (its process id) the port of its dashboard agent, which it awaits for 15 s and then dies without.

        True once it is told.

        On a busy machine the agent takes longer to start, and the limit is fixed in Ray 2.58 (WaitForDashboardAgentPorts in
        src/ray/raylet/node_manager.cc). We chose the port, so we may say it; the agent later writes the same.
        """
        listing = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(raylet)], capture_output=True, text=True, check=False)
        values = dict(word.removeprefix("--").split("=", 1) for word in listing.stdout.split() if word.startswith("--") and "=" in word)
        folder = Path(values.get("session_dir", ""))
        if "node_id" not in values or not folder.is_dir():
            return False
        path = folder / f"dashboard_agent_listen_port_{values['node_id']}"
        if not path.exists():
            whole = path.with_name(path.name + ".new")
            whole.write_text(str(self.ports + AGENT_LISTEN_PORT), encoding="utf-8")
            whole.replace(path)  # never seen empty
        return True

    def tail(self) -> str:
        """The last lines of each log that says something."""
        texts = []
        names = ("raylet.err", "raylet.out", "gcs_server.err", "gcs_server.out", "dashboard.log", "dashboard_agent.log")
        for path in (self.log, *(self.logs / name for name in names)):
            with contextlib.suppress(OSError):
                content = path.read_text(encoding="utf-8", errors="replace").splitlines()
                # Of a crash the line that says why, not the stack below it; web requests say nothing here.
                content = [line for line in content if "/ray/core/src/" not in line and "web_log.py" not in line][-TAIL_LINES:]
                if content:
                    texts.append(f"--- end of {path.name} of {self.name}\n" + "\n".join(content))
        return "\n".join(texts)
