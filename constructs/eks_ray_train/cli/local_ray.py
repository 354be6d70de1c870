"""A Ray cluster on this machine, shaped like the deployed one: a head without accelerators and CPUs, and worker nodes.

Every node is a ``ray start --block`` of its own, with an address (127.0.0.x), temporary folder and ports of its own:
else Ray Train sees one node, nodes read each other's logs, and workers die with "Address already in use". Processes are
stopped by their ids; ``ray stop`` would end every Ray process of the user. Token authentication is on, as on EKS.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from eks_ray_train.errors import ClusterNotReadyError, UsageError

from .local_ray_node import CORE, PORTS_A_NODE, LocalNode
from .processes import children, descendants, end_with_parent, given_folder, stop_all

FIRST_PORT, LAST_PORT = 20_000, 32_000  # below Linux's range for outgoing connections (32768 on)
START_SECONDS = 400.0  # of a busy machine; what dies is told at once
STARTS = 2  # on a busy machine a part of Ray now and then gives up; what fails twice has another reason
# Ray gives its own parts 30 to 60 s to start, and a dashboard that took longer ends for good: too little for a busy machine
# (ray/dashboard/consts.py; ray/_private/node.py; ray_config_def.h, Ray 2.58).
PATIENCE = {
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "200",
    "RAY_raylet_start_wait_time_s": "200",
    "RAY_worker_register_timeout_seconds": "200",
    "RAY_agent_register_timeout_ms": "200000",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_health_check_failure_threshold": "10",
}
DASHBOARD_DIED = "failed with the following error"
# Ray's sockets lie in <folder>/session_<date>_<pid>/sockets/plasma_store; a Unix socket's path has at most 107 characters.
MAX_FOLDER = 36


class _PartDiedError(ClusterNotReadyError):
    """A process that the cluster cannot do without ended while it started."""


class LocalCluster:
    """Context manager. After entering: ``address`` (dashboard URL), ``token``, ``nodes``; the cluster is up, all nodes joined.

    :param workers: worker nodes beside the head.
    :param cpus_per_worker: CPUs that each worker node offers (the head offers none).
    A start in which a part of Ray dies is told at once, with the end of the logs, and tried once more.
    Raises ClusterNotReadyError, with the end of the logs, where a node does not come up in bounded time, and UsageError
    where Ray is not installed or this system cannot have more than one loopback address.
    """

    def __init__(self, *, workers: int = 2, cpus_per_worker: int = 1, env: dict[str, str] | None = None) -> None:
        self.token = secrets.token_hex(16)
        self._workers, self._cpus_per_worker = workers, cpus_per_worker
        self._env = env or {}
        self._old_handler: Any = None
        self._lay_out()

    def _lay_out(self) -> None:
        """A folder and ports that nothing has used."""
        self.folder = _short_folder()
        base = _free_ports(PORTS_A_NODE * (self._workers + 1))
        self.nodes = [
            LocalNode(
                name="head" if index == 0 else f"worker-{index}",
                address=f"127.0.0.{index + 2}",  # 127.0.0.1 would be replaced by the machine's own address
                cpus=0 if index == 0 else self._cpus_per_worker,
                ports=base + index * PORTS_A_NODE,
                folder=self.folder / ("h" if index == 0 else f"w{index}"),
            )
            for index in range(self._workers + 1)
        ]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._core: dict[int, tuple[LocalNode, str]] = {}  # ids of the processes that must live, once they were seen
        self._told: set[int] = set()  # raylets that know their agent's port

    # ---- what others need ------------------------------------------------------------------------------------------
    @property
    def head(self) -> LocalNode:
        return self.nodes[0]

    @property
    def address(self) -> str:
        """URL of the dashboard, for ``--address``."""
        return f"http://127.0.0.1:{self.head.ports + 1}"

    @property
    def gcs_address(self) -> str:
        return f"{self.head.address}:{self.head.ports}"

    def environment(self) -> dict[str, str]:
        """Variables for a client of this cluster, Ray's own command line included."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, "RAY_TMPDIR": str(self.head.folder)}

    def node_process(self, index: int) -> subprocess.Popen[bytes]:
        """The ``ray start`` of node ``index`` (0: the head), for tests that take a node away."""
        return self._processes[index]

    # ---- life ------------------------------------------------------------------------------------------------------
    def __enter__(self) -> LocalCluster:
        _check_system([node.address for node in self.nodes])
        if threading.current_thread() is threading.main_thread():
            self._old_handler = signal.signal(signal.SIGTERM, _leave)
        try:
            self._start_patiently()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End every process that this cluster started and remove its folder; takes at most about 20 s, whatever happens."""
        main = threading.current_thread() is threading.main_thread()
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
        try:
            self._end()
        finally:
            if main:
                signal.signal(signal.SIGINT, interrupt)
                if self._old_handler is not None:
                    signal.signal(signal.SIGTERM, self._old_handler)
                    self._old_handler = None

    def _end(self) -> None:
        stop_all([process.pid for process in self._processes])
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
        self._processes.clear()
        for pid in given_folder(self.folder):  # agents of a raylet that died before: nobody's children
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start_patiently(self) -> None:
        for _ in range(STARTS - 1):
            try:
                self._start()
                return
            except _PartDiedError as error:
                print(f"{error}\nstarting the local Ray cluster once more", file=sys.stderr, flush=True)
                self._end()
                self._lay_out()
        self._start()

    def _start(self) -> None:
        give_up = time.monotonic() + START_SECONDS
        self._launch(self.head)
        self._wait_for([self.head], give_up)  # a node that comes before the head is registered gives up at once
        for node in self.nodes[1:]:
            self._launch(node)
        self._wait_for(self.nodes, give_up)

    def _launch(self, node: LocalNode) -> None:
        node.folder.mkdir(parents=True, exist_ok=True)
        with node.log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", "start", *node.flags(head_of=None if node is self.head else self.gcs_address)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self._node_environment(node),
                start_new_session=True,  # Ctrl-C is for us, and we stop the nodes
                preexec_fn=end_with_parent() if sys.platform == "linux" else None,
            )  # fmt: skip
        self._processes.append(process)

    def _node_environment(self, node: LocalNode) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"  # the job's "python" is this one
        return {
            **env,
            "PATH": path,
            "PYTHONUNBUFFERED": "1",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_TMPDIR": str(node.folder),
            # Else parts of Ray Train look for "the" cluster of this machine, and fail where there is another one.
            "RAY_ADDRESS": self.gcs_address,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
            # Gloo would look its address up by the machine's name, which need not resolve.
            "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
            **PATIENCE,
            **self._env,
        }

    def _wait_for(self, nodes: list[LocalNode], give_up: float) -> None:
        from .jobs_api import JobsClient

        client = JobsClient(self.address, token=self.token)
        wanted = {node.address for node in nodes}
        said = "nothing yet"
        try:
            while True:
                try:
                    joined = {str(node["raylet"].get("nodeManagerAddress")) for node in client.nodes(read_timeout_s=10)}
                    if wanted <= joined:
                        return
                    said = f"nodes {', '.join(sorted(joined)) or 'none'}"
                except ClusterNotReadyError as error:
                    said = str(error)
                self._check(give_up, f"not all of {', '.join(sorted(wanted))} have joined (the dashboard says: {said})")
        finally:
            client.close()

    def _check(self, give_up: float, what: str) -> None:
        """Wait a moment. Raises ClusterNotReadyError where a part of Ray has ended or the time is up."""
        for node, process in zip(self.nodes, self._processes, strict=False):
            if process.poll() is not None:
                raise _PartDiedError(f"local Ray: {node.name} ended with exit code {process.returncode}\n{node.tail()}")
        self._check_core()
        with contextlib.suppress(OSError):
            if DASHBOARD_DIED in (self.head.logs / "dashboard.log").read_text(encoding="utf-8", errors="replace"):
                raise _PartDiedError(f"local Ray: the dashboard ended\n{self.head.tail()}")
        if time.monotonic() > give_up:
            tails = "\n".join(node.tail() for node in self.nodes)
            raise ClusterNotReadyError(f"local Ray: {what} after {START_SECONDS:.0f} s\n{tails}")
        time.sleep(0.2)

    def _check_core(self) -> None:
        living = set()
        for parent, family in children([process.pid for process in self._processes]).items():
            node = next(node for node, process in zip(self.nodes, self._processes, strict=False) if process.pid == parent)
            self._core |= {pid: (node, name) for pid, (name, _) in family.items() if name in CORE}
            self._told |= {pid for pid, (name, _) in family.items() if name == "raylet" and pid not in self._told and node.tell_agent_port(pid)}
            living |= {pid for pid, (_, lives) in family.items() if lives}
        for pid, (node, name) in self._core.items():
            if pid not in living:
                raise _PartDiedError(f"local Ray: {name} of {node.name} ended\n{node.tail()}")

    def processes(self) -> list[int]:
        """Ids of all processes of this cluster, for tests that nothing is left behind."""
        return descendants([process.pid for process in self._processes])


def _leave(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _short_folder() -> Path:
    """A new temporary folder whose path leaves room for Ray's sockets."""
    base = tempfile.gettempdir()
    if len(base) > MAX_FOLDER - len("/ray-12345678"):
        base = "/tmp"
    return Path(tempfile.mkdtemp(prefix="ray-", dir=base))


def _free_ports(count: int) -> int:
    """First of ``count`` ports in a row that nobody listens on at the moment."""
    for _ in range(200):
        first = FIRST_PORT + secrets.randbelow(LAST_PORT - FIRST_PORT - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise ClusterNotReadyError(f"no {count} free ports in a row between {FIRST_PORT} and {LAST_PORT}; stop what listens there")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _check_system(addresses: list[str]) -> None:
    import importlib.util

    if importlib.util.find_spec("ray") is None:
        raise UsageError("the local run needs Ray, which is not installed here; pip install -r requirements.txt")
    for address in addresses:
        with socket.socket() as probe:
            try:
                probe.bind((address, 0))
            except OSError:
                raise UsageError(
                    f"this system has no loopback address {address}, and each local Ray node needs its own; on macOS: "
                    + "; ".join(f"sudo ifconfig lo0 alias {needed}" for needed in addresses)
                ) from None
