"""The deployed cluster, against stand-ins for EKS, STS and the Kubernetes API with its port-forward protocol."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from eks_ray_train.cli.__main__ import main
from tests.deployed_cluster import TOKEN, Deployed, deployed, write_settings
from tests.ray_stub import StubJob, head_pod

__all__ = ["deployed"]  # a fixture

def test_submit_goes_through_the_kubernetes_api_with_rays_token(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "--no-gate", "--json", "--", "--steps", "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == "SUCCEEDED" and told["usd"] > 0
    [job] = deployed.ray.jobs.values()
    assert job.body["entrypoint"] == "python train.py --steps 1"
    assert deployed.cloud.forwards >= 1
    assert all(bearer.startswith("Bearer k8s-aws-v1.") for bearer in deployed.cloud.bearers)


def test_the_run_is_marked_on_the_ray_cluster_and_the_mark_is_taken_away(deployed: Deployed) -> None:
    assert main(["submit", "--no-gate"]) == 0
    [name] = deployed.ray.jobs
    assert deployed.cloud.marks == [name, None]


def test_a_detached_run_stays_marked_until_somebody_sees_its_end(deployed: Deployed) -> None:
    deployed.ray.make_job = lambda _: StubJob(script=[(0, "SUCCEEDED")])
    assert main(["submit", "--detach"]) == 0
    [name] = deployed.ray.jobs
    assert deployed.cloud.annotations == {"eks-ray-train/active-run": name}
    assert main(["status", name]) == 0
    assert deployed.cloud.annotations == {}


def test_another_runs_mark_is_left_alone(deployed: Deployed) -> None:
    deployed.ray.jobs = {"old": StubJob(script=[(0, "SUCCEEDED")])}
    deployed.cloud.annotations = {"eks-ray-train/active-run": "new"}
    assert main(["status", "old"]) == 0
    assert deployed.cloud.annotations == {"eks-ray-train/active-run": "new"}


def test_two_nodes_with_efa_are_expected_to_use_it(deployed: Deployed) -> None:
    assert main(["submit"]) == 3  # the job succeeded and showed nothing
    [job] = deployed.ray.jobs.values()
    assert job.body["runtime_env"]["env_vars"]["NCCL_NET"] == "Libfabric"


@pytest.mark.parametrize("words", [["--allow-tcp"], ["--expect", "none"]])
def test_nccl_may_fall_back_only_where_the_user_says_so(deployed: Deployed, words: list[str]) -> None:
    main(["submit", *words])
    [job] = deployed.ray.jobs.values()
    assert "NCCL_NET" not in job.body["runtime_env"]["env_vars"]


@pytest.mark.parametrize("job_args", [["--num_workers", "4"], ["--num-workers=2"]])
def test_a_run_that_fills_one_node_is_not_judged(deployed: Deployed, job_args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "--json", "--", *job_args]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "not-judged"


def test_one_declared_node_is_not_judged(deployed: Deployed, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_settings(tmp_path, gpu_node_count=1)
    assert main(["submit", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "not-judged"


def test_deployed_code_uploads_nothing_and_runs_what_the_stack_carries(deployed: Deployed) -> None:
    assert main(["submit", "--no-gate", "--deployed-code", "--", "--steps", "1"]) == 0
    [job] = deployed.ray.jobs.values()
    assert job.body["entrypoint"] == "python /opt/eks-ray-train/job/train.py --steps 1"
    assert "working_dir" not in job.body["runtime_env"] and not deployed.ray.packages
    assert job.body["runtime_env"]["env_vars"]["PYTHONPATH"] == "/opt/eks-ray-train/job"


def test_a_log_larger_than_any_buffer_comes_through_whole(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    lines = "".join(f"line {n}\n" for n in range(200_000))
    deployed.ray.make_job = lambda _: StubJob(script=[(0, "RUNNING"), (1.5, "SUCCEEDED")], log=lines.encode())
    assert main(["submit", "--no-gate"]) == 0
    assert capsys.readouterr().out == lines


def test_forwarded_connections_that_break_lose_and_double_nothing(
    deployed: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "".join(f"line {n}\n" for n in range(100_000))
    deployed.ray.make_job = lambda _: StubJob(script=[(0, "RUNNING"), (6, "SUCCEEDED")], log=lines.encode())
    deployed.cloud.break_after = [10**9, 100_000, 20_000, 300_000, 100]
    assert main(["submit", "--no-gate"]) == 0
    told = capsys.readouterr()
    assert told.out == lines
    assert "Traceback" not in told.err
    assert not deployed.cloud.break_after


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c.eks.update(status=404, error="ResourceNotFoundException"), "there is no EKS cluster eks-ray-train in us-east-1"),
        (lambda c: c.eks.update(status=403, error="AccessDeniedException"), "may not call eks:DescribeCluster"),
        (lambda c: c.eks.update(status=403, error="ExpiredTokenException"), "credentials have expired"),
        (lambda c: c.eks.update(status=403, error="UnrecognizedClientException"), "does not accept the credentials"),
        (lambda c: c.eks.update(state="CREATING"), "is CREATING, not ACTIVE"),
        (lambda c: setattr(c, "kube_status", 401), "does not know arn:aws:iam::111122223333:role/Trainer; add"),
        (lambda c: setattr(c, "kube_status", 403), "may not list pods in namespace ray-train"),
        (lambda c: setattr(c, "kube_status", 500), "HTTP 500"),
        (lambda c: setattr(c, "pods", []), "KubeRay has made no head pod for it yet"),
        (lambda c: setattr(c, "pods", [head_pod(ready=False, message="0/2 nodes: Insufficient memory")]), "Insufficient memory"),
        (lambda c: c.secrets.clear(), "the secret ray-train with Ray's token is missing"),
        (lambda c: c.secrets.update({"ray-train": {"other": "x"}}), "has no key auth_token"),
        (lambda c: setattr(c, "secrets", {"ray-train": {"auth_token": "wrong"}}), "asks for another token"),
        (lambda c: setattr(c, "dashboard", ("127.0.0.1", 1)), "forwarded to the head ray-train-head-abcde"),
    ],
)
def test_each_thing_in_the_way_is_exit_code_6_with_its_remedy(
    deployed: Deployed, change: Any, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(deployed.cloud)
    began = time.monotonic()
    assert main(["submit", "--timeout", "1"]) == 6
    assert time.monotonic() - began < 10
    error = capsys.readouterr().err
    assert says in error and "Traceback" not in error
    assert not deployed.ray.jobs


def test_a_private_endpoint_out_of_reach_gives_the_setting_and_the_tunnel(
    deployed: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed.cloud.eks["endpoint"] = "https://192.0.2.1"  # TEST-NET-1, never routed (RFC 5737)
    began = time.monotonic()
    assert main(["status"]) == 6
    assert time.monotonic() - began < 10
    error = capsys.readouterr().err
    assert "public_access_cidrs" in error and "AWS-StartPortForwardingSessionToRemoteHost" in error and "host=192.0.2.1" in error


def test_a_cluster_that_eks_updates_is_used_as_usual(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    deployed.cloud.eks["state"] = "UPDATING"
    assert main(["status"]) == 0
    assert main(["doctor", "--json"]) in (0, 6)
    checks = {check["check"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["cluster"]["state"] == "ok" and "is UPDATING" in checks["cluster"]["detail"]


def test_a_tunnel_stands_in_for_the_endpoint(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    deployed.cloud.eks["endpoint"] = "https://192.0.2.1"
    monkeypatch.setenv("EKS_RAY_TRAIN_ENDPOINT", deployed.cloud.url)
    assert main(["status"]) == 0


def test_no_credentials_at_all_is_exit_code_6(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert main(["status"]) == 6
    assert "no AWS credentials" in capsys.readouterr().err


def test_no_region_is_exit_code_2(
    deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AWS_REGION")
    write_settings(tmp_path, region=None)
    assert main(["status"]) == 2
    assert "no region" in capsys.readouterr().err


def test_a_head_without_token_authentication_is_asked_without_a_token(deployed: Deployed) -> None:
    pod = head_pod()
    pod["spec"]["containers"][0]["env"] = []
    deployed.cloud.pods, deployed.cloud.secrets, deployed.ray.token = [pod], {}, None
    assert main(["status"]) == 0


def test_tokens_are_presigned_for_one_cluster_and_made_anew_in_time(deployed: Deployed) -> None:
    import boto3

    from eks_ray_train.cli.eks_access import TokenSource

    now = [1000.0]
    source = TokenSource(boto3.Session(), cluster="mine", region="us-east-1", clock=lambda: now[0])
    first = source.token()
    text = first.removeprefix("k8s-aws-v1.")
    query = parse_qs(urlsplit(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()).query)
    assert query["Action"] == ["GetCallerIdentity"] and "x-k8s-aws-id" in query["X-Amz-SignedHeaders"][0]
    now[0] += 9 * 60
    assert source.token() is first
    now[0] += 2 * 60
    assert source.token() is not first


def test_dashboard_prints_a_url_that_answers(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import urllib3

    from eks_ray_train.cli import dashboard

    seen: list[int] = []

    def wait() -> None:
        url = json.loads(capsys.readouterr().out)["url"]
        seen.append(urllib3.request("GET", url + "/api/version", headers={"Authorization": f"Bearer {TOKEN}"}).status)

    monkeypatch.setattr(dashboard, "wait_for_interrupt", wait)
    assert main(["dashboard", "--json"]) == 0
    assert seen == [200]


def test_a_job_that_the_cluster_refuses_leaves_no_mark(deployed: Deployed) -> None:
    deployed.ray.fail["/api/jobs/"] = (400, "TypeError: pip must be a list")
    assert main(["submit", "--no-gate"]) == 2
    assert deployed.cloud.annotations == {} and len(deployed.cloud.marks) == 2


def test_a_job_that_vanishes_leaves_no_mark(deployed: Deployed) -> None:
    deployed.ray.make_job = lambda _: StubJob(script=[(0, "RUNNING")], gone_after=0.5)
    assert main(["submit", "--no-gate"]) == 4
    assert deployed.cloud.annotations == {}
