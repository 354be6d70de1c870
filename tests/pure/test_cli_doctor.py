"""``doctor`` against the stand-in cluster: every check in every state, in order, with what to do about it."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eks_ray_train.cli.__main__ import main
from eks_ray_train.cli.doctor_checks import checks
from eks_ray_train.cli.doctor_pod import MARK, PROBE, read_facts
from eks_ray_train.cli.doctor_report import Check, Finding, State, ok, run_checks, wrong
from eks_ray_train.errors import ClusterNotReadyError
from tests.deployed_cluster import Deployed, deployed, write_settings
from tests.kube_stub import DIGEST, GOOD_POD, IMAGE, node, warning, worker_pod
from tests.ray_stub import head_pod

__all__ = ["deployed"]  # a fixture
NAMES = [check.name for check in checks()]


@pytest.fixture(autouse=True)
def pods_answer(deployed: Deployed) -> None:
    say(deployed)


def say(d: Deployed, *, only: str | None = None, **changes: Any) -> None:
    """What the probe prints; ``only``: the changes are one pod's."""

    def answer(pod: str, command: list[str]) -> tuple[str, str, int]:
        assert command[:2] == ["python", "-c"]
        said = copy.deepcopy(GOOD_POD)
        if only in (None, pod):
            for key, value in changes.items():
                said[key] = {**said[key], **value} if isinstance(value, dict) else value
        return "Ray says hello\n" + MARK + json.dumps(said) + "\n", "", 0

    d.kubernetes.exec_answer = answer


def run(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, Any]]]:
    code = main(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == code
    assert [entry["check"] for entry in told["checks"]] == NAMES
    return code, {entry["check"]: entry for entry in told["checks"]}


def test_a_cluster_in_order_is_all_ok_and_exit_code_0(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = run(capsys)
    assert code == 0 and {entry["state"] for entry in told.values()} == {"ok"}, told
    assert "arn:aws:iam::111122223333:role/Trainer" in told["credentials"]["detail"]
    assert "2 g6.12xlarge in us-east-1a" in told["nodes and zones"]["detail"]
    assert "driver 580.95.05, EFA module 2.17.2g" in told["driver and EFA"]["detail"]
    assert f"{IMAGE.rpartition(':')[0]}@{DIGEST}" in told["image"]["detail"]


def test_people_get_one_line_a_check_and_what_to_do_below(
    deployed: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed.kubernetes.nodes[1] = node("gpu-1", efa=0)
    assert main(["doctor"]) == 6
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("ok       credentials          arn:aws:iam")
    at = next(n for n, line in enumerate(out) if line.startswith("wrong    allocatable"))
    assert "gpu-1 offers 0 of 1 EFA interfaces" in out[at] and out[at + 1].strip().startswith("-> missing EFA")
    assert out[-1] == "1 wrong, 0 unknown, 14 ok; begin with: allocatable"


def pod_of_another_image(number: int) -> dict[str, Any]:
    pod = worker_pod(number)
    pod["status"]["containerStatuses"][0]["imageID"] = "x@sha256:" + "cd" * 32
    return pod


def operator(**changes: Any) -> dict[str, Any]:
    status = {"availableReplicas": changes.get("available", 1)}
    image = f"quay.io/kuberay/operator:{changes.get('tag', 'v1.7.0')}"
    return {
        "metadata": {},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"image": image}]}}},
        "status": status,
    }


def refused(d: Deployed) -> None:
    d.kubernetes.observed = 2
    d.kubernetes.events = [warning("RayCluster", "ray-train", "InvalidRayClusterSpec", "minReplicas above maxReplicas")]


def no_capacity(d: Deployed) -> None:
    d.kubernetes.nodes.pop()
    d.kubernetes.node_groups[0]["health"]["issues"] = [
        {"code": "AsgInstanceLaunchFailures", "message": "InsufficientInstanceCapacity"}
    ]


def unready_worker(d: Deployed) -> None:
    d.kubernetes.workers[0] = worker_pod(
        1, unschedulable="0/3 nodes are available: 1 Insufficient vpc.amazonaws.com/efa"
    )
    d.kubernetes.events = [warning("Pod", "ray-train-gpu-worker-1", "FailedScheduling", "0/3 nodes are available")]


@pytest.mark.parametrize(
    ("change", "check", "says"),
    [
        (lambda d: d.cloud.eks.update(status=403, error="ExpiredTokenException"), "cluster", "credentials have expired"),
        (lambda d: d.cloud.eks.update(status=404, error="ResourceNotFoundException"), "cluster", "there is no EKS cluster"),
        (lambda d: d.cloud.eks.update(state="CREATING"), "cluster", "is CREATING"),
        (lambda d: d.cloud.eks.update(endpoint="http://127.0.0.1:9"), "endpoint", "cannot be reached"),
        (lambda d: setattr(d.cloud, "kube_status", 401), "access entry", "does not know arn:aws:iam"),
        (lambda d: setattr(d.cloud, "kube_status", 403), "access entry", "may not list pods"),
        (no_capacity, "nodes and zones", "InsufficientInstanceCapacity"),
        (lambda d: d.kubernetes.nodes.__setitem__(1, node("gpu-1", ready=False)), "nodes and zones", "KubeletNotReady"),
        (lambda d: d.kubernetes.nodes.__setitem__(1, node("gpu-1", zone="us-east-1b")), "nodes and zones", "EFA does not cross zones"),
        (lambda d: d.kubernetes.nodes.__setitem__(0, node("system-1", role="system", ready=False)), "nodes and zones", "system node system-1"),
        (lambda d: d.kubernetes.nodes[1]["metadata"]["labels"].update({"node.kubernetes.io/instance-type": "g5.12xlarge"}), "nodes and zones", "g5.12xlarge"),
        (lambda d: d.kubernetes.daemon_sets.pop(0), "device plugins", "there is no DaemonSet nvidia-device-plugin"),
        (lambda d: d.kubernetes.daemon_sets[1]["status"].update(desiredNumberScheduled=0, numberReady=0), "device plugins", "a taint or a label"),
        (lambda d: d.kubernetes.daemon_sets[1]["status"].update(numberReady=1), "device plugins", "aws-efa-k8s-device-plugin 1/2"),
        (lambda d: d.kubernetes.nodes.__setitem__(1, node("gpu-1", gpus=3)), "allocatable", "gpu-1 offers 3 of 4 GPUs"),
        (lambda d: setattr(d.kubernetes, "operator", None), "operator", "there is no KubeRay operator"),
        (lambda d: setattr(d.kubernetes, "operator", operator(available=0)), "operator", "0 of 1 operator pods"),
        (lambda d: setattr(d.kubernetes, "operator", operator(tag="v1.4.0")), "operator", "the operator is 1.4.0"),
        (lambda d: setattr(d.kubernetes, "has_ray_cluster", False), "RayCluster", "there is no RayCluster ray-train/ray-train"),
        (refused, "RayCluster", "minReplicas above maxReplicas"),
        (lambda d: setattr(d.kubernetes, "replicas", 4), "RayCluster", "asks for 4 workers"),
        (unready_worker, "pods", "FailedScheduling"),
        (lambda d: setattr(d.cloud, "pods", [head_pod(ready=False, message="Insufficient memory")]), "pods", "no head, 2 of 2 workers"),
        (lambda d: say(d, only="ray-train-gpu-worker-2", driver="570.1"), "driver and EFA", "nodes differ"),
        (lambda d: say(d, fi_info={"code": 61, "domains": [], "providers": [], "error": "fi_getinfo: -61"}), "fi_info", "fi_getinfo: -61"),
        (lambda d: say(d, fi_info={"domains": []}), "fi_info", "0 of 1 EFA devices"),
        (lambda d: say(d, ray="2.55.0"), "versions", "Ray 2.55.0, the settings say 2.58.0"),
        (lambda d: say(d, storage={"ok": False, "error": "OSError: AWS Error ACCESS_DENIED"}), "storage", "ACCESS_DENIED"),
        (lambda d: say(d, storage={"path": None, "ok": None}), "storage", "no storage path"),
        (lambda d: d.kubernetes.workers.__setitem__(1, pod_of_another_image(2)), "image", "different images under one tag"),
        (lambda d: d.kubernetes.workers[0]["spec"]["containers"][0].update(image="x/ray:other"), "image", "dlc_image says"),
    ],
)  # fmt: skip
def test_each_fault_is_the_first_thing_that_is_wrong(
    deployed: Deployed, change: Any, check: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(deployed)
    code, told = run(capsys)
    first = next(name for name in NAMES if told[name]["state"] == "wrong")
    assert (code, first) == (6, check), told
    assert says in told[check]["detail"] + str(told[check]["remedy"])
    assert told[check]["remedy"]


@pytest.mark.parametrize(
    ("change", "check", "says"),
    [
        (lambda d: say(d, driver=None), "driver and EFA", "driver not readable"),
        (lambda d: say(d, efa_module=None), "driver and EFA", "EFA module not readable"),
        (lambda d: say(d, fi_info={"code": None, "error": "FileNotFoundError"}), "fi_info", "could not be run"),
        (lambda d: say(d, ray=None), "versions", "no Ray that says its version"),
        (lambda d: d.kubernetes.deny.update({"/daemonsets": 403}), "device plugins", "may not list DaemonSets"),
        (lambda d: d.kubernetes.deny.update({"/nodes": 403}), "nodes and zones", "may not list nodes"),
        (lambda d: d.kubernetes.deny.update({"/exec": 403}), "fi_info", "may not run a program in pod"),
        (lambda d: setattr(d.kubernetes, "exec_answer", lambda p, c: ("", "python: not found\n", 127)), "fi_info", "python: not found"),
        (lambda d: setattr(d.kubernetes, "exec_answer", lambda p, c: (MARK + '{"ray": "2.', "", 0)), "versions", "broke off"),
    ],
)  # fmt: skip
def test_what_nobody_could_look_at_is_unknown_and_no_failure(
    deployed: Deployed, change: Any, check: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(deployed)
    code, told = run(capsys)
    assert told[check]["state"] == "unknown" and says in told[check]["detail"], told
    assert code == 0, told


def test_without_credentials_all_later_checks_are_unknown_and_say_why(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    code, told = run(capsys)
    assert code == 6 and told["credentials"]["state"] == "wrong" and "AWS_PROFILE" in told["credentials"]["remedy"]
    assert {told[name]["state"] for name in NAMES[1:]} == {"unknown"}
    assert all("while credentials is not in order" in told[name]["detail"] for name in NAMES[1:])


def test_without_a_region_the_first_line_says_so(
    deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cdk.json").write_text("{}")
    monkeypatch.delenv("AWS_REGION")
    code, told = run(capsys)
    assert code == 6 and told["credentials"]["state"] == "wrong", told
    assert "no region" in told["credentials"]["detail"] and "set AWS_REGION" in told["credentials"]["remedy"]
    assert {told[name]["state"] for name in NAMES[1:]} == {"unknown"}


def test_settings_decide_what_is_wrong(deployed: Deployed, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_settings(
        tmp_path,
        storage="none",
        availability_zones=["us-east-1a", "us-east-1b"],
        gpu_zone="us-east-1b",
        dlc_image=f"{IMAGE.rpartition(':')[0]}@sha256:{'9' * 64}",
    )
    say(deployed, storage={"path": None, "ok": None})
    _, told = run(capsys)
    assert told["storage"]["state"] == "ok"
    assert "settings say us-east-1b" in told["nodes and zones"]["detail"]
    assert "dlc_image says sha256:999" in told["image"]["detail"]


def test_an_active_run_is_named(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    deployed.cloud.annotations = {"eks-ray-train/active-run": "run-7"}
    _, told = run(capsys)
    assert "run run-7 is active" in told["RayCluster"]["detail"]


def test_the_probe_runs_where_nothing_of_a_pod_is_there(tmp_path: Path) -> None:
    environment = {"PATH": "/nowhere", "EKS_RAY_TRAIN_STORAGE_PATH": str(tmp_path / "runs")}
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    facts = read_facts("here", json.loads(done.stdout.removeprefix(MARK)))
    assert facts.fi_info_code is None and facts.fi_info_error
    assert facts.storage_path == str(tmp_path / "runs")
    if facts.storage_ok:  # pyarrow is installed
        assert list((tmp_path / "runs").iterdir()) == []
    else:
        assert "pyarrow" in facts.storage_error


def test_an_error_is_wrong_or_unknown_by_what_the_check_says_of_it() -> None:
    def fails(_: None) -> Finding:
        raise ClusterNotReadyError("no answer; ask again")

    found = run_checks(
        (Check(name="a", look=fails), Check(name="b", look=fails, error_is_wrong=True), Check(name="c", look=lambda _: ok("x"), needs=("b",))),
        None,
        lambda _: None,
    )  # fmt: skip
    assert [r.finding.state for r in found] == [State.UNKNOWN, State.WRONG, State.UNKNOWN]
    assert found[1].finding == wrong("no answer", "ask again")
