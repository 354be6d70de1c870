"""Waiting for the deployed cluster: nodes, what they offer, pods, GPUs that joined Ray; a live table of what is missing and why."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from eks_ray_train.errors import ClusterNotReadyError

from .cluster_state import Node, Pod, events_about, not_seen_by_operator, read_node, read_pod, replicas_of

if TYPE_CHECKING:
    from .jobs_api import JobsClient
    from .kube_objects import KubeObjects

DEFAULT_TIMEOUT_S = 1800.0  # as long as the job itself waits for GPUs
POLL_S = 3.0
PLAIN_EVERY_S = 15.0  # where no terminal is drawn on
TROUBLE_S = 90.0  # an API server that answered once may be away for so long
MAX_EVENTS = 6
NAME_WIDTH = 13


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a run needs: nodes, and GPUs and EFA interfaces on each."""

    nodes: int
    gpus_per_node: int
    efa_per_node: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. ``have`` None: this identity may not see it, so nobody waits for it."""

    what: str
    have: int | None
    want: int
    why: tuple[str, ...] = ()

    @property
    def is_missing(self) -> bool:
        return self.have is not None and self.have < self.want


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The cluster at one moment. ``nodes`` None: not visible; ``ray_cluster`` None: there is no such object."""

    nodes: Sequence[Node] | None
    pods: Sequence[Pod]
    ray_cluster: dict[str, Any] | None
    events: Sequence[dict[str, Any]] = ()
    launch_problems: Sequence[str] = ()


def take_snapshot(objects: KubeObjects, launch_problems: Callable[[], Sequence[str]], wanted: Wanted) -> Snapshot:
    """Ask for everything that the table shows; events and the node groups only where something is missing."""
    from .kube_errors import Forbidden, NotThere

    try:
        nodes: list[Node] | None = [read_node(node) for node in objects.nodes()]
    except Forbidden:
        nodes = None
    pods = [read_pod(pod) for pod in objects.ray_pods()]
    try:
        ray_cluster: dict[str, Any] | None = objects.ray_cluster()
    except NotThere:
        ray_cluster = None
    now = Snapshot(nodes=nodes, pods=pods, ray_cluster=ray_cluster)
    rows = rows_of(now, wanted)
    if not any(row.is_missing for row in rows):
        return now
    try:
        events = objects.warnings()
    except Forbidden:
        events = []
    problems = launch_problems() if rows[0].is_missing else ()
    return Snapshot(nodes=nodes, pods=pods, ray_cluster=ray_cluster, events=events, launch_problems=problems)


def rows_of(now: Snapshot, wanted: Wanted) -> list[Row]:
    """The table, in the order in which things come about."""
    rows = [] if now.nodes is None else _node_rows(now.nodes, wanted, tuple(now.launch_problems))
    if now.nodes is None:
        rows.append(Row(what="nodes", have=None, want=wanted.nodes, why=("this identity may not list nodes",)))
    heads, workers = ([pod for pod in now.pods if pod.kind == kind] for kind in ("head", "worker"))
    rows.append(_pod_row("head pod", heads, 1, _no_pods(now, "head")))
    asked = replicas_of(now.ray_cluster) if now.ray_cluster else wanted.nodes
    few = (
        f"the RayCluster asks for {asked} workers only: deploy, or eks-ray-train scale {wanted.nodes}"
        if asked < wanted.nodes
        else ""
    )
    rows.append(_pod_row("worker pods", workers, wanted.nodes, few or _no_pods(now, "worker")))
    return rows


def _node_rows(nodes: Sequence[Node], wanted: Wanted, problems: tuple[str, ...]) -> list[Row]:
    gpu_nodes = [node for node in nodes if node.is_gpu]
    ready = [node for node in gpu_nodes if node.ready]
    why = [f"{node.name}: {node.why}" for node in gpu_nodes if not node.ready]
    if len(gpu_nodes) < wanted.nodes:
        why += problems or (f"{wanted.nodes - len(gpu_nodes)} have not joined the cluster yet",)
    rows = [Row(what="nodes", have=len(ready), want=wanted.nodes, why=tuple(why))]
    for what, plugin, want, amount in (
        ("GPUs", "NVIDIA's", wanted.gpus_per_node, lambda node: node.gpus),
        ("EFA", "the EFA", wanted.efa_per_node, lambda node: node.efa),
    ):
        lacking = tuple(
            f"{node.name} offers {amount(node)} of {want}: {plugin} device plugin has not reported them"
            for node in ready
            if amount(node) < want
        )
        if want:
            rows.append(
                Row(what=what, have=sum(min(amount(n), want) for n in ready), want=want * wanted.nodes, why=lacking)
            )
    return rows


def _pod_row(what: str, pods: Sequence[Pod], want: int, otherwise: str) -> Row:
    ready = sum(pod.ready for pod in pods)
    why = tuple(f"{pod.name}: {pod.why}" for pod in pods if not pod.ready)
    if len(pods) < want and otherwise:
        why += (otherwise,)
    return Row(what=what, have=min(ready, want), want=want, why=why)


def _no_pods(now: Snapshot, kind: str) -> str:
    if now.ray_cluster is None:
        return "there is no such RayCluster; deploy the training stack"
    if (now.ray_cluster.get("spec") or {}).get("suspend"):
        return (
            "the RayCluster is suspended: Kueue has not admitted it (kubectl get workloads), or somebody suspended it"
        )
    if not_seen_by_operator(now.ray_cluster):
        return "the KubeRay operator has not taken up the RayCluster (see its Warning events, or the operator itself)"
    return f"KubeRay has made no {kind} pod for it yet"


def event_lines(now: Snapshot) -> list[str]:
    """Warning events about the RayCluster and about pods that are not ready."""
    names = [pod.name for pod in now.pods if not pod.ready]
    if now.ray_cluster is not None:
        names.append(str((now.ray_cluster.get("metadata") or {}).get("name")))
    return events_about(now.events, names)[:MAX_EVENTS]


def table(rows: Sequence[Row], events: Sequence[str]) -> list[str]:
    """Lines for people."""
    lines = []
    for row in rows:
        have = "?" if row.have is None else str(row.have)
        reasons = row.why if row.is_missing or row.have is None else ()
        lines.append(
            f"  {row.what:<{NAME_WIDTH}}{have + '/' + str(row.want):>7}  {reasons[0] if reasons else ''}".rstrip()
        )
        lines += [f"  {'':<{NAME_WIDTH}}{'':>7}  {reason}" for reason in reasons[1:]]
    if events:
        lines.append("  Warning events, newest first:")
        lines += [f"    {line}" for line in events]
    return lines


class ClusterWait:
    """Waits in two steps: until the pods are ready, then until Ray itself has all GPUs. Draws on ``out`` (stderr).

    ``nodes``: (declared nodes, GPUs a node) -> nodes that the run needs. ``check`` is called before and at every look, and says
    whether it wrote to the terminal; what it raises ends the wait. Both steps together take at most ``timeout_s``;
    then ClusterNotReadyError says what is missing.
    """

    def __init__(
        self,
        *,
        out: TextIO,
        nodes: Callable[[int, int], int] | None = None,
        timeout_s: float | None = None,
        check: Callable[[], bool] | None = None,
    ) -> None:
        self._out = out
        self._check = check or (lambda: False)
        self._nodes = nodes or (lambda declared, _: declared)
        self._timeout_s = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
        self._began = time.monotonic()
        self._drawn = 0
        self._last: list[str] = []
        self._last_at = 0.0
        self._rows: list[Row] = []
        self._name = ""

    @property
    def waited_s(self) -> float:
        """Seconds since the waiting began."""
        return time.monotonic() - self._began

    def wanted(self, *, declared: int, gpus: int, efa: int) -> Wanted:
        """What this run needs of the declared nodes."""
        return Wanted(nodes=self._nodes(declared, gpus), gpus_per_node=gpus, efa_per_node=efa)

    def for_pods(self, objects: KubeObjects, wanted: Wanted, launch_problems: Callable[[], Sequence[str]]) -> None:
        """Until nodes, devices and pods are there."""
        self._name = f"RayCluster {objects.namespace}/{objects.ray_cluster_name}"

        def look() -> tuple[list[Row], list[str]]:
            now = take_snapshot(objects, launch_problems, wanted)
            return rows_of(now, wanted), event_lines(now)

        self._until(look)

    def for_gpus(self, client: JobsClient, wanted: Wanted) -> None:
        """Until every GPU has joined Ray."""
        before = list(self._rows)
        want = wanted.nodes * wanted.gpus_per_node

        def look() -> tuple[list[Row], list[str]]:
            joined = {
                str(node["raylet"].get("nodeManagerAddress")): int(
                    node["raylet"].get("resourcesTotal", {}).get("GPU", 0)
                )
                for node in client.nodes(read_timeout_s=10)
            }
            said = (
                ", ".join(f"{address}: {count}" for address, count in sorted(joined.items()) if count)
                or "no Ray node has one yet"
            )
            have = min(sum(joined.values()), want)
            return [*before, Row(what="GPUs in Ray", have=have, want=want, why=(said,))], []

        self._until(look)

    # ---- inside ----------------------------------------------------------------------------------------------------
    def _until(self, look: Callable[[], tuple[list[Row], list[str]]]) -> None:
        from .eks_access import NoAnswer
        from .jobs_api import Unreachable

        good_at: float | None = None
        while True:
            lines = self._last
            if self._check():
                self._drawn = 0
            try:
                self._rows, events = look()
                good_at = time.monotonic()
                if not any(row.is_missing for row in self._rows):
                    self._finish()
                    return
                lines = table(self._rows, events)
                self._draw(lines)
            except (NoAnswer, Unreachable) as error:
                # What never answered will not be told by waiting; what did may come back.
                if good_at is None or time.monotonic() - good_at > TROUBLE_S:
                    raise
                self._draw([*lines, f"  {str(error).splitlines()[0][:200]}"])
            if self.waited_s + POLL_S > self._timeout_s:
                raise ClusterNotReadyError(
                    f"{self._name} is not ready after {self.waited_s:.0f} s (--timeout {self._timeout_s:g}); missing:\n"
                    + "\n".join(lines)
                    + "\nrun eks-ray-train doctor, which looks at everything in order"
                )
            time.sleep(POLL_S)

    def _draw(self, lines: list[str]) -> None:
        head = f"waiting for {self._name}: {self.waited_s:.0f} of at most {self._timeout_s:.0f} s"
        if self._out.isatty():
            width = max(40, shutil.get_terminal_size().columns - 1)
            up = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
            self._out.write(up + "\n".join(line[:width] for line in [head, *lines]) + "\n")
            self._drawn = len(lines) + 1
        elif lines != self._last and (not self._last or time.monotonic() - self._last_at >= PLAIN_EVERY_S):
            self._out.write("\n".join([head, *lines]) + "\n")
            self._last_at = time.monotonic()
        else:
            return
        self._out.flush()
        self._last = lines

    def _finish(self) -> None:
        if self._last:
            what = ", ".join(f"{row.have} {row.what}" for row in self._rows if row.have is not None)
            self._out.write(f"{self._name} has {what} after {self.waited_s:.0f} s\n")
            self._out.flush()
        self._drawn, self._last = 0, []
