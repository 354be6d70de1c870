"""``doctor`` where something answers that is not the API, or nothing does: one check is unknown, the others are made."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

import tests.deployed_cluster
from eks_ray_train.cli import doctor_pod, kube, kube_objects
from eks_ray_train.cli.__main__ import main
from eks_ray_train.cli.doctor_pod import MARK
from eks_ray_train.cli.eks_access import NoAnswer, OddAnswer
from eks_ray_train.cli.kube_errors import within
from eks_ray_train.settings import Settings
from tests.deployed_cluster import Deployed, deployed
from tests.kube_stub import GOOD_POD
from tests.ray_stub import StubCloud

__all__ = ["deployed"]  # a fixture
EXEC = "/api/v1/namespaces/ray-train/pods/ray-train-gpu-worker-1/exec"
# Which check asks there first.
ASKED = {
    "/": "credentials",
    "/clusters/eks-ray-train": "cluster",
    "/version/": "endpoint",
    "/api/v1/namespaces/ray-train/pods": "access entry",
    "/api/v1/nodes": "nodes and zones",
    "/apis/apps/v1/namespaces/kube-system/daemonsets": "device plugins",
    "/apis/apps/v1/namespaces/kuberay-system/deployments/kuberay-operator": "operator",
    "/apis/ray.io/v1/namespaces/ray-train/rayclusters/ray-train": "RayCluster",
    "/api/v1/namespaces/ray-train/events": "RayCluster",
    EXEC: "driver and EFA",
}
LISTS = [path for path in ASKED if path.endswith(("pods", "nodes", "daemonsets", "events"))]
PAGE = "<html>Please sign in</html>"
OF_ANOTHER_SHAPE = [
    *((path, PAGE) for path in ASKED),
    *((path, "null") for path in ASKED if path != EXEC),
    *((path, '{"items": null}') for path in LISTS),
    *(("/api/v1/nodes", text) for text in ("[]", "{}", '{"items": [null]}', '{"items": 3}', "\xff")),
    *(("/clusters/eks-ray-train", text) for text in ("{}", '{"cluster": null}', '{"cluster": {"status": "ACTIVE"}}')),
]
# What cannot be looked at where these are not known.
RESTS_ON = {"/clusters/eks-ray-train": 15, "/api/v1/namespaces/ray-train/pods": 9, "/api/v1/nodes": 3, EXEC: 4}


class OddCloud(StubCloud):
    """A cloud with something in front of it that answers by itself at some paths."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.instead: dict[str, Callable[[web.Request], Any]] = {}

    def app(self) -> web.Application:
        app = super().app()

        @web.middleware
        async def front(request: web.Request, handler: Any) -> web.StreamResponse:
            other = self.instead.get(request.path)
            return await (other or handler)(request)

        app.middlewares.insert(0, front)
        return app


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> dict[str, Callable[[web.Request], Any]]:
    monkeypatch.setattr(tests.deployed_cluster, "StubCloud", OddCloud)
    running: Deployed = request.getfixturevalue("deployed")
    assert isinstance(running.cloud, OddCloud)
    running.kubernetes.exec_answer = lambda pod, command: (MARK + json.dumps(GOOD_POD) + "\n", "", 0)
    return running.cloud.instead


def answer(text: str) -> Callable[[web.Request], Any]:
    async def give(_: web.Request) -> web.Response:
        return web.Response(body=text.encode("latin-1"), content_type="application/json")

    return give


def run(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, Any]]]:
    code = main(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert len(told["checks"]) == 15 and told["exit_code"] == code
    return code, {entry["check"]: entry for entry in told["checks"]}


@pytest.mark.parametrize(("path", "text"), OF_ANOTHER_SHAPE)
def test_an_answer_that_is_none_of_the_apis_leaves_its_check_unknown_and_the_others_are_made(
    odd: dict[str, Any], path: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    odd[path] = answer(text)
    code, told = run(capsys)
    assert code == 0, told
    assert told[ASKED[path]]["state"] == "unknown" and told[ASKED[path]]["detail"], told
    assert {entry["state"] for entry in told.values()} == {"ok", "unknown"}
    assert sum(entry["state"] == "unknown" for entry in told.values()) <= RESTS_ON.get(path, 1), told


def test_a_page_instead_of_an_answer_says_what_may_be_in_between(odd: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    odd["/version/"] = odd["/"] = answer(PAGE)
    _, told = run(capsys)
    for check in ("credentials", "endpoint"):
        assert "the answer is not one of that API" in told[check]["detail"] and "proxy" in told[check]["remedy"], told[check]


async def no_handshake(_: web.Request) -> web.Response:
    await asyncio.sleep(6)
    return web.Response()


async def half_a_frame(request: web.Request) -> web.StreamResponse:
    socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
    await socket.prepare(request)
    assert request.transport is not None
    request.transport.write(b"\x82\x7e\x01")  # type: ignore[attr-defined]
    await asyncio.sleep(6)
    return socket


@pytest.mark.parametrize("hang", [no_handshake, half_a_frame])
def test_a_pod_that_does_not_answer_is_waited_for_once_and_not_for_long(
    odd: dict[str, Any], hang: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor_pod, "TIMEOUT_S", 1.0)
    monkeypatch.setattr(kube_objects, "CLOSE_S", 0.5)
    odd[EXEC] = hang
    began = time.monotonic()
    code, told = run(capsys)
    assert time.monotonic() - began < 4.0
    assert code == 0 and told["image"]["state"] == "ok"
    for check in ("driver and EFA", "fi_info", "versions", "storage"):
        assert told[check]["state"] == "unknown" and "no answer within" in told[check]["detail"], told[check]


def test_a_forwarded_connection_is_not_waited_for_without_end_either(
    odd: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube, "FORWARD_S", 0.5)
    odd["/api/v1/namespaces/ray-train/pods/ray-train-head/portforward"] = no_handshake
    with kube.open_cluster(Settings(region="us-east-1")) as cluster:
        name = cluster.head().name
        odd[f"/api/v1/namespaces/ray-train/pods/{name}/portforward"] = no_handshake
        with pytest.raises(NoAnswer, match=r"port forwarding to pod .* no answer within"):
            cluster.open_dashboard()


def test_other_commands_say_that_too_instead_of_an_unexpected_error(odd: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("/clusters/eks-ray-train", "/api/v1/namespaces/ray-train/pods"):
        odd[path] = answer(PAGE)
        assert main(["status"]) == 6
        error = capsys.readouterr().err
        assert "the answer is not one of that API" in error and "unexpected" not in error
        del odd[path]


def test_within_hands_on_answers_and_errors() -> None:
    def fail() -> None:
        raise OddAnswer("x", ValueError("y"))

    assert within(5.0, "nothing", lambda: None) is None
    with pytest.raises(OddAnswer, match="y"):
        within(5.0, "something", fail)
