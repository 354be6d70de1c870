"""Stand-ins for what ``submit`` talks to: Ray's dashboard, and the EKS, STS and Kubernetes APIs in front of it.

Routes and answers as Ray 2.58's dashboard, the AWS APIs and the Kubernetes API give them; one thread runs the event loop.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from tests.kube_stub import IMAGE, POD_IMAGE_ID, StubKubernetes


@dataclass
class StubJob:
    """A job whose status follows a script: (seconds after submission, status). ``log`` is all there from the start."""

    script: list[tuple[float, str]] = field(default_factory=lambda: [(0.0, "RUNNING"), (0.5, "SUCCEEDED")])
    log: bytes = b"hello\n"
    message: str = ""
    node: str | None = "ab" * 28
    gone_after: float | None = None
    last_words: bytes = b""  # what it prints when it is stopped
    body: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    stopped: bool = False

    def status(self) -> str:
        age = time.monotonic() - self.began
        if self.stopped:
            return "STOPPED"
        return [status for after, status in self.script if age >= after][-1]

    def vanished(self) -> bool:
        return self.gone_after is not None and time.monotonic() - self.began > self.gone_after


class StubRay:
    """Ray's dashboard. ``make_job`` says what a submitted job will do; ``fail`` maps a path's start to (status, text).

    ``next_answers``: the same for the next requests only, by method and a part of the path. ``appear_after_s``: so long after
    a submission whose answer is lost the job is known. ``ignore_stop``: a stop is taken and changes nothing.
    ``hang``: a log route ("stream", "file") that takes requests and never sends a byte.
    """

    def __init__(self, *, token: str | None = None) -> None:
        self.token = token
        self.jobs: dict[str, StubJob] = {}
        self.packages: dict[str, bytes] = {}
        self.make_job: Callable[[dict[str, Any]], StubJob] = lambda _: StubJob()
        self.fail: dict[str, tuple[int, str]] = {}
        self.next_answers: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self.lose_answers = 0
        self.appear_after_s = 0.0
        self.ignore_stop = False
        self.hang = ""
        self.cut_logs_after: list[int] = []  # bytes after which each of the next reads of a log is reset
        self.posts = 0
        self.gpus = {"10.0.1.1": 4, "10.0.1.2": 4}

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=100 * 1024**2)
        app.router.add_get("/api/version", self._version)
        app.router.add_get("/api/packages/gcs/{name}", self._has_package)
        app.router.add_put("/api/packages/gcs/{name}", self._put_package)
        app.router.add_post("/api/jobs/", self._submit)
        app.router.add_get("/api/jobs/", self._list)
        app.router.add_get("/api/jobs/{id}", self._info)
        app.router.add_post("/api/jobs/{id}/stop", self._stop)
        app.router.add_get("/api/v0/logs/{media}", self._logs)
        app.router.add_get("/nodes", self._nodes)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401, text="Unauthorized: Missing authentication token")
        for path, (status, text) in self.fail.items():
            if request.path.startswith(path):
                return web.Response(status=status, text=text)
        for (method, part), answers in self.next_answers.items():
            if request.method == method and part in request.path and answers:
                status, text = answers.pop(0)
                return web.Response(status=status, text=text)
        return await handler(request)

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "4", "ray_version": "2.58.0"})

    async def _nodes(self, _: web.Request) -> web.Response:
        raylets = [{"nodeManagerAddress": "10.0.0.9", "state": "ALIVE", "resourcesTotal": {"memory": 1.0}}]
        raylets += [{"nodeManagerAddress": ip, "state": "ALIVE", "resourcesTotal": {"GPU": float(n)}} for ip, n in self.gpus.items()]
        return web.json_response({"data": {"summary": [{"raylet": raylet} for raylet in raylets]}})

    async def _has_package(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if request.match_info["name"] in self.packages else 404)

    async def _put_package(self, request: web.Request) -> web.Response:
        self.packages[request.match_info["name"]] = await request.read()
        return web.Response()

    async def _submit(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.posts += 1
        if body["submission_id"] in self.jobs:
            return web.Response(status=400, text="Traceback …\nValueError: Job with submission_id already exists.")
        job = self.make_job(body)
        job.body = body
        if self.lose_answers and self.appear_after_s:
            asyncio.get_running_loop().call_later(self.appear_after_s, self.jobs.setdefault, body["submission_id"], job)
        else:
            self.jobs[body["submission_id"]] = job
        if self.lose_answers:
            self.lose_answers -= 1
            assert request.transport is not None
            request.transport.close()
        return web.json_response({"job_id": body["submission_id"], "submission_id": body["submission_id"]})

    def _json(self, name: str, job: StubJob) -> dict[str, Any]:
        started = job.status() != "PENDING"
        return {
            "type": "SUBMISSION", "submission_id": name, "job_id": None, "status": job.status(), "message": job.message,
            "entrypoint": job.body.get("entrypoint", ""), "start_time": 1_700_000_000_000, "end_time": 1_700_000_002_500,
            "driver_node_id": job.node if started else None, "metadata": job.body.get("metadata"), "error_type": None,
        }  # fmt: skip

    def _job(self, request: web.Request) -> StubJob:
        job = self.jobs.get(request.match_info["id"])
        if job is None or job.vanished():
            raise web.HTTPNotFound(text=f"Job {request.match_info['id']} does not exist")
        return job

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response([self._json(name, job) for name, job in self.jobs.items()])

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response(self._json(request.match_info["id"], self._job(request)))

    async def _stop(self, request: web.Request) -> web.Response:
        job = self._job(request)
        was_running = job.status() in ("PENDING", "RUNNING")
        if not self.ignore_stop:
            job.stopped = job.stopped or was_running
            job.log += job.last_words
        return web.json_response({"stopped": was_running})

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        name = request.query["filename"].removeprefix("job-driver-").removesuffix(".log")
        job = self.jobs[name]
        if self.hang == request.match_info["media"]:
            await asyncio.sleep(3600)
        response = web.StreamResponse()
        await response.prepare(request)
        if self.cut_logs_after:
            await response.write(job.log[: self.cut_logs_after.pop(0)])
            await asyncio.sleep(0.05)
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(job.log)
        sent = len(job.log)
        while request.match_info["media"] == "stream":
            await asyncio.sleep(0.05)
            if more := job.log[sent:]:
                await response.write(more)
                sent += len(more)
        return response


class StubCloud:
    """EKS, STS, CloudFormation and the Kubernetes API of one cluster, with port forwarding to ``dashboard`` (host, port).

    ``stacks``: outputs of the stacks that CloudFormation knows, by name; None: it refuses to say.
    """

    def __init__(self, dashboard: tuple[str, int], *, token: str | None) -> None:
        self.dashboard, self.ray_token = dashboard, token
        self.eks: dict[str, Any] = {"status": 200, "error": None, "state": "ACTIVE", "endpoint": None}
        self.kube_status: int | None = None
        self.pods = [head_pod()]
        self.secrets = {"ray-train": {"auth_token": token}} if token else {}
        self.annotations: dict[str, str] = {}
        self.marks: list[str | None] = []
        self.stacks: dict[str, dict[str, str]] | None = {}
        self.bearers: set[str] = set()
        self.forwards = 0
        self.break_after: list[int] = []  # bytes after which each of the next connections is reset
        self.url = ""
        self.kubernetes = StubKubernetes()

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/clusters/{name}", self._describe)
        app.router.add_post("/", self._query)
        base = "/api/v1/namespaces/ray-train"
        app.router.add_get(base + "/pods", self._pods)
        app.router.add_get(base + "/secrets/{name}", self._secret)
        app.router.add_get(base + "/pods/{name}/portforward", self._forward)
        cluster = "/apis/ray.io/v1/namespaces/ray-train/rayclusters/ray-train"
        app.router.add_get(cluster, self._ray_cluster)
        app.router.add_patch(cluster, self._patch)
        self.kubernetes.routes(app)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path.startswith("/api"):
            self.bearers.add(request.headers.get("authorization", ""))
            if self.kube_status:
                return web.json_response({"kind": "Status", "code": self.kube_status}, status=self.kube_status)
            if status := self.kubernetes.denied(request.path):
                return web.json_response({"kind": "Status", "code": status}, status=status)
        return await handler(request)

    async def _describe(self, request: web.Request) -> web.Response:
        if self.eks["error"]:
            headers = {"x-amzn-errortype": self.eks["error"]}
            return web.json_response({"message": "no"}, status=self.eks["status"], headers=headers)
        return web.json_response(
            {
                "cluster": {
                    "name": request.match_info["name"], "status": self.eks["state"], "endpoint": self.eks["endpoint"] or self.url,
                    "certificateAuthority": {"data": base64.b64encode(b"not used over http").decode()},
                    "resourcesVpcConfig": {"endpointPublicAccess": False, "endpointPrivateAccess": True, "publicAccessCidrs": []},
                }
            }
        )  # fmt: skip

    async def _query(self, request: web.Request) -> web.Response:
        """The services that ask by form: STS and CloudFormation."""
        asked = await request.post()
        if asked["Action"] == "DescribeStacks":
            return self._stack(str(asked["StackName"]))
        answer = (
            '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>'
            "<Arn>arn:aws:iam::111122223333:role/Trainer</Arn><UserId>A</UserId><Account>111122223333</Account>"
            "</GetCallerIdentityResult></GetCallerIdentityResponse>"
        )
        return web.Response(text=answer, content_type="text/xml")

    def _stack(self, name: str) -> web.Response:
        space = 'xmlns="http://cloudformation.amazonaws.com/doc/2010-05-15/"'
        if self.stacks is None or name not in self.stacks:
            denied = self.stacks is None
            code, text = ("AccessDenied", "no") if denied else ("ValidationError", f"Stack with id {name} does not exist")
            error = f"<ErrorResponse {space}><Error><Type>Sender</Type><Code>{code}</Code><Message>{text}</Message></Error></ErrorResponse>"
            return web.Response(status=403 if denied else 400, text=error, content_type="text/xml")
        outputs = "".join(
            f"<member><OutputKey>{key}</OutputKey><OutputValue>{value}</OutputValue></member>" for key, value in self.stacks[name].items()
        )
        answer = (
            f"<DescribeStacksResponse {space}><DescribeStacksResult><Stacks><member><StackName>{name}</StackName><StackId>arn:{name}</StackId>"
            f"<CreationTime>2026-11-29T20:00:00Z</CreationTime><StackStatus>CREATE_COMPLETE</StackStatus><Outputs>{outputs}</Outputs></member>"
            "</Stacks></DescribeStacksResult></DescribeStacksResponse>"
        )
        return web.Response(text=answer, content_type="text/xml")

    async def _pods(self, request: web.Request) -> web.Response:
        labels = request.query["labelSelector"].split(",")
        assert labels[0] == "ray.io/cluster=ray-train"
        items = self.pods if "ray.io/node-type=head" in labels else [*self.pods, *self.kubernetes.workers]
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})

    async def _secret(self, request: web.Request) -> web.Response:
        values = self.secrets.get(request.match_info["name"])
        if values is None:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        data = {key: base64.b64encode(str(value).encode()).decode() for key, value in values.items()}
        return web.json_response({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "ray-train"}, "data": data})

    async def _ray_cluster(self, _: web.Request) -> web.Response:
        if not self.kubernetes.has_ray_cluster:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        return web.json_response(self.kubernetes.ray_cluster(self.annotations))

    async def _patch(self, request: web.Request) -> web.Response:
        assert request.content_type.endswith("merge-patch+json")
        for key, value in (json.loads(await request.text()))["metadata"]["annotations"].items():
            self.marks.append(value)
            if value is None:
                self.annotations.pop(key, None)
            else:
                self.annotations[key] = value
        return await self._ray_cluster(request)

    async def _forward(self, request: web.Request) -> web.WebSocketResponse:
        """The port-forward protocol: channel 0 data, channel 1 errors, each begins with the port (two bytes, little end first)."""
        self.forwards += 1
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        assert request.query["ports"] == "8265"
        port = (8265).to_bytes(2, "little")
        await socket.send_bytes(b"\x00" + port)
        await socket.send_bytes(b"\x01" + port)
        reader, writer = await asyncio.open_connection(*self.dashboard)

        limit = self.break_after.pop(0) if self.break_after else None

        async def back() -> None:
            sent = 0
            while data := await reader.read(8192):
                await socket.send_bytes(b"\x00" + data)
                sent += len(data)
                if limit is not None and sent > limit:
                    assert request.transport is not None
                    request.transport.abort()
                    return
            await socket.close()

        task = asyncio.create_task(back())
        async for message in socket:
            if message.type is WSMsgType.BINARY and message.data[:1] == b"\x00":
                writer.write(message.data[1:])
                await writer.drain()
        writer.close()
        task.cancel()
        return socket


def head_pod(*, ready: bool = True, name: str = "ray-train-head-abcde", message: str | None = None) -> dict[str, Any]:
    """A Ray head's pod as KubeRay makes it, as far as the command line reads it."""
    condition: dict[str, Any] = {"type": "Ready", "status": "True" if ready else "False"}
    if message:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    reference = {"secretKeyRef": {"name": "ray-train", "key": "auth_token"}}
    return {
        "metadata": {
            "name": name, "creationTimestamp": "2026-11-29T20:00:00Z",
            "labels": {"ray.io/cluster": "ray-train", "ray.io/node-type": "head"},
        },
        "spec": {"nodeName": "system-1", "containers": [{"name": "ray-head", "image": IMAGE, "env": [{"name": "RAY_AUTH_TOKEN", "valueFrom": reference}]}]},
        "status": {
            "phase": "Running" if ready else "Pending", "conditions": [condition],
            "containerStatuses": [{"name": "ray-head", "state": {"running": {}}, "imageID": POD_IMAGE_ID, "image": IMAGE, "ready": ready, "restartCount": 0}],
        },
    }  # fmt: skip


@contextlib.contextmanager
def serve(app: web.Application) -> Iterator[int]:
    """Run an application in a thread on a free port of 127.0.0.1; yields the port."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    port: list[int] = []
    started = threading.Event()

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        port.append(site._server.sockets[0].getsockname()[1])  # type: ignore[attr-defined]
        started.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(start())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield port[0]
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


class Terminal(io.StringIO):
    """Standard input of somebody who sits there."""

    def isatty(self) -> bool:
        return True


def press_ctrl_c(monkeypatch: pytest.MonkeyPatch, answer: str | None, *, at: Callable[[], bool] = lambda: True) -> list[int]:
    """Ctrl-C when the job's state is next asked for and ``at()`` holds, once. ``answer``: to the question that comes; None: no terminal.

    Returns a list that has one item once it was pressed.
    """
    from eks_ray_train.cli import follow

    pressed: list[int] = []
    real = follow._Watch.poll

    def poll(watch: Any, log: Any) -> Any:
        if not pressed and at():
            pressed.append(1)
            raise KeyboardInterrupt
        return real(watch, log)

    monkeypatch.setattr(follow._Watch, "poll", poll)
    monkeypatch.setattr("sys.stdin", io.StringIO() if answer is None else Terminal(answer))
    return pressed
