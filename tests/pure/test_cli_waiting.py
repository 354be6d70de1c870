"""``submit`` waits for the deployed cluster: each thing that can be missing has its row and its reason, in bounded time."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.cli import waiting
from eks_ray_train.cli.__main__ import main
from eks_ray_train.cli.waiting import Row, Snapshot, Wanted, rows_of, table
from tests.deployed_cluster import Deployed, deployed, write_settings
from tests.kube_stub import StubKubernetes, node, warning, worker_pod
from tests.ray_stub import head_pod

__all__ = ["deployed"]  # a fixture


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "POLL_S", 0.2)
    monkeypatch.setattr(waiting, "PLAIN_EVERY_S", 0.0)


def lose_gpu_nodes(d: Deployed) -> None:
    d.kubernetes.nodes = d.kubernetes.nodes[:2]
    issue = {
        "code": "AsgInstanceLaunchFailures",
        "message": "InsufficientInstanceCapacity - no g6.12xlarge in us-east-1a",
    }
    d.kubernetes.node_groups[0]["health"]["issues"] = [issue]


def scale_to_zero(d: Deployed) -> None:
    d.kubernetes.nodes = d.kubernetes.nodes[:1]
    d.kubernetes.node_groups[0]["scalingConfig"]["desiredSize"] = 0


def refuse(d: Deployed) -> None:
    d.kubernetes.observed, d.kubernetes.workers = None, []
    d.kubernetes.events = [warning("RayCluster", "ray-train", "InvalidRayClusterSpec", "maxReplicas must not be less")]


def pull(d: Deployed) -> None:
    d.kubernetes.workers[0] = worker_pod(1, waiting=("ImagePullBackOff", 'Back-off pulling image "x"'))
    d.kubernetes.events = [
        warning("Pod", "ray-train-gpu-worker-1", "Failed", "Failed to pull image: no basic auth credentials"),
        warning("Pod", "ray-train-gpu-worker-2", "Unhealthy", "of a pod that is ready"),
    ]


def cordon(d: Deployed) -> None:
    d.kubernetes.nodes[1]["spec"]["unschedulable"] = True


def starting(d: Deployed) -> None:
    pod = worker_pod(1, waiting=("PodInitializing", ""))
    pod["status"]["initContainerStatuses"] = [{"name": "wait-gcs-ready", "state": {"running": {}}}]
    d.kubernetes.workers[0] = pod


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lose_gpu_nodes, ["nodes", "1/2", "AsgInstanceLaunchFailures: InsufficientInstanceCapacity"]),
        (scale_to_zero, ["nodes", "0/2", "set to 0 of 2 nodes", "eks-ray-train scale 2"]),
        (lambda d: d.kubernetes.node_groups.clear() or d.kubernetes.nodes.clear(), ["there is no GPU node group"]),
        (lambda d: d.kubernetes.nodes.__setitem__(1, node("gpu-1", ready=False)), ["1/2", "gpu-1: KubeletNotReady: cni plugin"]),
        (cordon, ["gpu-1: cordoned"]),
        (lambda d: d.kubernetes.nodes.__setitem__(1, node("gpu-1", gpus=0)), ["GPUs", "4/8", "gpu-1 offers 0 of 4: NVIDIA's"]),
        (lambda d: d.kubernetes.nodes.__setitem__(2, node("gpu-2", efa=0)), ["EFA", "1/2", "gpu-2 offers 0 of 1: the EFA device plugin"]),
        (lambda d: setattr(d.cloud, "pods", []), ["head pod", "0/1", "KubeRay has made no head pod"]),
        (lambda d: setattr(d.cloud, "pods", [head_pod(ready=False, message="0/3 nodes: Insufficient cpu")]), ["0/1", "Insufficient cpu"]),
        (lambda d: d.kubernetes.workers.__setitem__(0, worker_pod(1, unschedulable="0/3 nodes: 1 Insufficient nvidia.com/gpu")),
         ["worker pods", "1/2", "Unschedulable: 0/3 nodes: 1 Insufficient nvidia.com/gpu"]),
        (pull, ["ImagePullBackOff", "no basic auth credentials"]),
        (starting, ["wait-gcs-ready is running (it waits for the head)"]),
        (lambda d: setattr(d.kubernetes, "replicas", 1) or d.kubernetes.workers.pop(), ["asks for 1 workers only", "scale 2"]),
        (lambda d: setattr(d.kubernetes, "has_ray_cluster", False) or d.kubernetes.workers.clear(), ["there is no such RayCluster"]),
        (refuse, ["operator has not taken up", "InvalidRayClusterSpec: maxReplicas"]),
        (lambda d: d.ray.gpus.pop("10.0.1.2"), ["GPUs in Ray", "4/8", "10.0.1.1: 4"]),
    ],
)  # fmt: skip
def test_what_is_missing_is_told_with_its_reason_and_exit_code_6(
    deployed: Deployed, change: Any, says: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    change(deployed)
    began = time.monotonic()
    assert main(["submit", "--timeout", "0.5"]) == 6
    assert time.monotonic() - began < 20
    told = capsys.readouterr().err
    assert "missing:" in told and all(part in told for part in says), told
    assert "of a pod that is ready" not in told
    assert not deployed.ray.jobs


def test_the_run_starts_as_soon_as_everything_is_there(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    whole = list(deployed.kubernetes.nodes)
    looks = []

    def come_about(api: StubKubernetes) -> None:
        looks.append(1)
        api.nodes = whole[: min(len(whole), len(looks))]

    deployed.kubernetes.on_nodes = come_about
    assert main(["submit", "--no-gate", "--timeout", "60"]) == 0
    told = capsys.readouterr().err
    assert (
        "waiting for RayCluster ray-train/ray-train" in told
        and "has 2 nodes, 8 GPUs, 2 EFA, 1 head pod, 2 worker pods" in told
    )
    assert len(deployed.ray.jobs) == 1 and len(looks) == 3


def test_a_cluster_that_is_ready_is_not_talked_about(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "--no-gate"]) == 0
    assert "waiting for" not in capsys.readouterr().err


def test_a_run_that_needs_one_node_does_not_wait_for_the_other(deployed: Deployed) -> None:
    deployed.kubernetes.nodes.pop()
    deployed.kubernetes.workers.pop()
    deployed.ray.gpus.pop("10.0.1.2")
    assert main(["submit", "--no-gate", "--timeout", "30", "--", "--num_workers", "4"]) == 0


def test_an_identity_that_may_not_see_nodes_and_events_can_still_run(deployed: Deployed) -> None:
    deployed.kubernetes.deny = {"/nodes": 403, "/events": 403}
    assert main(["submit", "--no-gate"]) == 0


def test_without_leave_to_see_nodes_the_pods_still_say_what_is_missing(
    deployed: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed.kubernetes.deny = {"/nodes": 403, "/events": 403}
    deployed.kubernetes.workers[1] = worker_pod(2, ready=False)
    assert main(["submit", "--timeout", "0.5"]) == 6
    told = capsys.readouterr().err
    assert "?/2  this identity may not list nodes" in told and "unready status" in told


def test_an_api_server_in_trouble_is_asked_again(deployed: Deployed) -> None:
    deployed.kubernetes.nodes.pop()
    looks: list[dict[str, int]] = []

    def trouble(api: StubKubernetes) -> None:
        looks.append(api.deny)
        api.deny = {"rayclusters": 503} if len(looks) == 2 else {}
        if len(looks) == 3:
            api.nodes = [*api.nodes, node("gpu-2")]

    deployed.kubernetes.on_nodes = trouble
    assert main(["submit", "--no-gate", "--timeout", "60"]) == 0
    assert looks == [{}, {}, {"rayclusters": 503}]


def test_an_api_server_that_never_answers_is_not_waited_for(deployed: Deployed) -> None:
    deployed.kubernetes.deny = {"/nodes": 503}
    began = time.monotonic()
    assert main(["submit"]) == 6
    assert time.monotonic() - began < 15


def test_json_stays_one_document_while_the_table_is_drawn(
    deployed: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed.kubernetes.nodes.pop()
    assert main(["submit", "--json", "--timeout", "0.5"]) == 6
    assert json.loads(capsys.readouterr().out)["exit_code"] == 6


def test_a_type_without_gpus_missing_anywhere_has_every_row_full() -> None:
    rows = rows_of(Snapshot(nodes=[], pods=[], ray_cluster=None), Wanted(nodes=0, gpus_per_node=4, efa_per_node=0))
    assert [row.what for row in rows] == ["nodes", "GPUs", "head pod", "worker pods"]
    assert [row.is_missing for row in rows] == [False, False, True, False]


def test_a_suspended_cluster_is_told_apart_from_a_slow_operator() -> None:
    suspended = {
        "metadata": {"name": "c", "generation": 2},
        "spec": {"suspend": True, "workerGroupSpecs": [{"replicas": 2}]},
    }
    rows = rows_of(
        Snapshot(nodes=None, pods=[], ray_cluster=suspended), Wanted(nodes=2, gpus_per_node=4, efa_per_node=1)
    )
    assert all("Kueue has not admitted it" in row.why[0] for row in rows if row.is_missing)


def test_a_terminal_is_drawn_over_and_its_lines_never_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "60")
    out = Terminal()
    wait = waiting.ClusterWait(out=out, timeout_s=9)
    left = [3]

    def look() -> tuple[list[Row], list[str]]:
        left[0] -= 1
        return [Row(what="nodes", have=2 - left[0], want=2, why=("x" * 200,))], ["event " * 40]

    wait._until(look)
    text = out.getvalue()
    assert text.count("\x1b[4F\x1b[J") == 1
    assert max(len(line.rpartition("\x1b[J")[2]) for line in text.splitlines()) <= 60


def test_reasons_below_each_other_line_up() -> None:
    assert table([Row(what="nodes", have=0, want=2, why=("a", "b"))], []) == [
        "  nodes            0/2  a",
        "                        b",
    ]


def test_declared_nodes_decide_how_many_are_awaited(
    deployed: Deployed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_settings(tmp_path, gpu_node_count=3)
    assert main(["submit", "--timeout", "0.5"]) == 6
    assert "2/3" in capsys.readouterr().err
