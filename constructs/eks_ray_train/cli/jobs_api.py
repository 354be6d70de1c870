"""Client of Ray's Jobs REST API and of the dashboard's log API. No Ray on this side, only HTTP.

Routes: ray/dashboard/modules/job/job_head.py and modules/state/state_head.py (Ray 2.58). Logs come from the state API as
bytes: the Jobs API's own log routes decode the file strictly as UTF-8 and end with an error at the first byte that is not.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import time
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, LocationParseError, NewConnectionError, ReadTimeoutError
from urllib3.util import Timeout, parse_url

from eks_ray_train.errors import ClusterNotReadyError, JobFailedError, UsageError

from .job_info import JobInfo, odd_answer
from .package_dir import Package

CONNECT_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 30.0
PROBE_SECONDS = 7.0  # the contract gives an unreachable dashboard 10 s


class Unreachable(ClusterNotReadyError):
    """No answer from the dashboard (exit code 6); where a job is running already, callers try again for a while."""


class NoSuchJob(JobFailedError):
    """The cluster knows no such job: never submitted there, or lost with the head that held it (exit code 4)."""


def normalize_address(address: str) -> str:
    """``host:port`` or a URL -> base URL without a trailing slash. Raises UsageError for anything but http and https."""
    url = address if "://" in address else f"http://{address}"
    try:
        parts = urlsplit(url)  # a ValueError for half an IPv6 address
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError
    except ValueError:
        raise UsageError(f"--address must be the URL of a Ray dashboard such as http://127.0.0.1:8265, got {address!r}; correct it") from None
    try:
        parts.port  # noqa: B018 (reading it checks it)
    except ValueError:
        raise UsageError(f"--address has a wrong port: {address!r}; use for example http://127.0.0.1:8265") from None
    try:
        parse_url(url)
    except LocationParseError:
        raise UsageError(f"--address names no host that can exist: {address!r}; use for example http://127.0.0.1:8265") from None
    return url.rstrip("/")


class JobsClient:
    """One Ray dashboard. Safe for several threads. ``token``: Ray's own token, where the cluster asks for one.

    ``remedy`` ends the message of every error that means "cannot be reached". ``typed``: the user's own ``--address``,
    None where none was given; commands that messages advise repeat it.
    """

    def __init__(self, address: str, *, token: str | None = None, remedy: str = "", typed: str | None = None) -> None:
        self.address = normalize_address(address)
        self._typed = typed
        self._sent: set[str] = set()
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._remedy = remedy or "check the address, and that Ray's dashboard listens there (ray start --head prints it)"
        self._pool = urllib3.PoolManager(maxsize=4, retries=False)

    def close(self) -> None:
        """Close idle connections."""
        self._pool.clear()

    def command(self, *words: str) -> str:
        """A command for the user that reaches this same cluster: ``eks-ray-train stop ID --address URL``."""
        return shlex.join(["eks-ray-train", *words, *(["--address", self._typed] if self._typed is not None else [])])

    # ---- plumbing --------------------------------------------------------------------------------------------------
    def _request(self, method: str, path: str, *, read_timeout_s: float = READ_TIMEOUT_S, **kwargs: Any) -> urllib3.BaseHTTPResponse:
        headers = {**self._headers, **kwargs.pop("headers", {})}
        timeout = Timeout(connect=CONNECT_TIMEOUT_S, read=read_timeout_s)
        try:
            response = self._pool.request(method, self.address + path, headers=headers, timeout=timeout, redirect=False, **kwargs)
        except (HTTPError, OSError) as error:
            raise Unreachable(f"no Ray dashboard answers at {self.address} ({_reason(error)}); {self._remedy}") from error
        if response.status in (401, 403):
            response.close()
            raise ClusterNotReadyError(
                f"the Ray dashboard at {self.address} asks for {'another' if self._headers else 'a'} token (HTTP {response.status}); "
                "set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH (KubeRay keeps it in the secret named like the RayCluster, key auth_token)"
            )
        if response.status in (502, 503, 504):
            response.close()
            raise Unreachable(f"the way to the Ray dashboard at {self.address} is broken (HTTP {response.status}); {self._remedy}")
        return response

    def _json(self, response: urllib3.BaseHTTPResponse, what: str) -> Any:
        text = response.data.decode("utf-8", "replace")
        if response.status >= 400:
            # A question is made here, not by the user: whatever is wrong with it, correcting the command is no help.
            raise ClusterNotReadyError(_not_answered(response.status, text, what))
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise ClusterNotReadyError(
                f"{self.address} answered {what} with something that is not JSON ({text[:80]!r}); check that it is a Ray dashboard: {self._remedy}"
            ) from None

    def _failure(self, status: int, text: str, what: str) -> Exception:
        reason = _last_line(text)
        if status == 400:
            return UsageError(f"Ray refuses {what}: {reason}; correct that and submit again")
        if status == 413:
            return UsageError(f"Ray refuses {what} as too large (HTTP 413: {reason}); make the job's folder smaller (--dataset and --storage-path read and write elsewhere)")
        return ClusterNotReadyError(_not_answered(status, text, what))

    def _job_of(self, response: urllib3.BaseHTTPResponse, job_id: str) -> None:
        """Raises NoSuchJob where Ray itself says so: a 404 of a proxy in between says nothing of the job."""
        if response.status == 404 and re.search(rf"{re.escape(job_id)}'? does not exist", response.data.decode("utf-8", "replace")):
            raise NoSuchJob(f"the cluster at {self.address} knows no job {job_id!r}; `{self.command('status')}` lists its jobs")

    # ---- calls -----------------------------------------------------------------------------------------------------
    def version(self, *, within_s: float = PROBE_SECONDS) -> str:
        """Ray's version; the first call, so it bounds how long a wrong address takes. Raises Unreachable in ``within_s``."""
        give_up = time.monotonic() + within_s
        while True:
            try:
                left = max(0.5, give_up - time.monotonic())
                response = self._request("GET", "/api/version", read_timeout_s=left)
                break
            except Unreachable:
                if time.monotonic() + 1.0 + CONNECT_TIMEOUT_S > give_up:
                    raise
                time.sleep(1.0)
        if response.status == 404:
            raise ClusterNotReadyError(f"{self.address} is no Ray dashboard (no /api/version there); {self._remedy}")
        data = self._json(response, "the question for its version")
        if not isinstance(data, dict) or "ray_version" not in data:
            raise ClusterNotReadyError(f"{self.address} is no Ray dashboard (it names no ray_version); {self._remedy}")
        return str(data["ray_version"])

    def upload(self, package: Package) -> bool:
        """Store a zipped folder in the cluster; False where it is there already. Asking also keeps it from being evicted."""
        path = f"/api/packages/gcs/{package.name}"
        if self._request("GET", path).status == 200:
            return False
        response = self._request("PUT", path, body=package.data, read_timeout_s=300)
        if response.status != 200:
            raise self._failure(response.status, response.data.decode("utf-8", "replace"), "the upload of the job's folder")
        return True

    def may_have(self, submission_id: str) -> bool:
        """False where the cluster surely has no such job of ours: it was never sent, or refused."""
        return submission_id in self._sent

    def submit(
        self, *, submission_id: str, entrypoint: str, runtime_env: dict[str, Any], metadata: dict[str, str], within_s: float = 60
    ) -> None:
        """Submit once: the id is ours, so an answer that got lost is looked up, not sent again blindly."""
        body = {"submission_id": submission_id, "entrypoint": entrypoint, "runtime_env": runtime_env, "metadata": metadata}
        give_up = time.monotonic() + within_s
        unanswered = False
        while True:
            try:
                self._sent.add(submission_id)
                response = self._request(
                    "POST", "/api/jobs/", body=json.dumps(body), headers={"Content-Type": "application/json"}, read_timeout_s=60
                )
                text = response.data.decode("utf-8", "replace")
                # The id is random and new: a job that has it already is this one, from a request whose answer got lost.
                if response.status == 200 or ("submission_id" in text and "already exists" in text):
                    return
                error: Exception = self._failure(response.status, text, "the job")
                # The agent on the head comes up a little after the dashboard.
                refused = response.status != 500 or "agent" not in text.lower()
            except Unreachable as unreachable:
                error, refused = unreachable, False
                unanswered = unanswered or not isinstance(unreachable.__cause__, NewConnectionError | ConnectTimeoutError)
            except ClusterNotReadyError as no_token:
                error, refused = no_token, True
            if not unanswered:
                self._sent.discard(submission_id)
                if refused:
                    raise error
            with contextlib.suppress(NoSuchJob, ClusterNotReadyError):
                self.info(submission_id)
                self._sent.add(submission_id)
                return
            if refused:
                raise error
            if time.monotonic() > give_up:
                if unanswered:
                    raise Unreachable(
                        f"{error}; whether the cluster has taken job {submission_id} is unknown: look with `{self.command('status', submission_id)}` "
                        "before you submit again"
                    ) from error
                raise error
            time.sleep(1.0)

    def info(self, job_id: str) -> JobInfo:
        """State of one job. Raises NoSuchJob, and ClusterNotReadyError for every answer that is not Ray's."""
        response = self._request("GET", f"/api/jobs/{quote(job_id, safe='')}")
        self._job_of(response, job_id)
        return JobInfo.from_json(self._json(response, "the question for the job's state"))

    def jobs(self) -> list[JobInfo]:
        """All jobs that were submitted to this cluster, oldest first."""
        data = self._json(self._request("GET", "/api/jobs/"), "the question for the list of jobs")
        if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
            raise odd_answer("a list of jobs", data)
        jobs = [JobInfo.from_json(item) for item in data if item.get("type") == "SUBMISSION"]
        return sorted(jobs, key=lambda job: job.started_at or 0.0)

    def stop(self, job_id: str) -> bool:
        """Ask a job to stop; False where it had ended already. Raises NoSuchJob."""
        response = self._request("POST", f"/api/jobs/{quote(job_id, safe='')}/stop", read_timeout_s=60)
        self._job_of(response, job_id)
        if response.status == 400:  # a job that some driver started, not one that was submitted
            reason = _last_line(response.data.decode("utf-8", "replace"))
            raise UsageError(f"Ray refuses to stop job {job_id!r}: {reason}; `{self.command('status')}` lists the jobs that can be stopped")
        data = self._json(response, "the stop")
        if not isinstance(data, dict) or not isinstance(data.get("stopped"), bool):
            raise odd_answer('{"stopped": true} or false', data)
        return bool(data["stopped"])

    def nodes(self, *, read_timeout_s: float = READ_TIMEOUT_S) -> list[dict[str, Any]]:
        """Ray's nodes that are alive: address, resources (as the dashboard gives them)."""
        data = self._json(self._request("GET", "/nodes?view=summary", read_timeout_s=read_timeout_s), "the question for the nodes")
        try:
            return [node for node in data["data"]["summary"] if node.get("raylet", {}).get("state") == "ALIVE"]
        except (KeyError, TypeError, AttributeError):
            raise odd_answer("a list of nodes", data) from None

    def open_log(self, info: JobInfo, *, follow: bool, read_timeout_s: float) -> urllib3.BaseHTTPResponse:
        """The job's log from its first byte, as an open response; ``follow`` keeps it open for what is still to come.

        Raises Unreachable, and ClusterNotReadyError while there is no log file yet.
        """
        query = {
            "node_id": info.driver_node_id or "",
            "filename": f"job-driver-{info.submission_id}.log",
            "lines": "-1",
            "timeout": "3600",  # seconds, of a whole read that does not follow
        }
        if follow:
            query["interval"] = "0.25"  # seconds between looks at the end of the file; an error without following
        media = "stream" if follow else "file"
        response = self._request("GET", f"/api/v0/logs/{media}?{urlencode(query)}", preload_content=False, read_timeout_s=read_timeout_s)
        if response.status != 200:
            text = response.read(2000, decode_content=True).decode("utf-8", "replace")
            response.close()
            raise ClusterNotReadyError(f"no log of job {info.submission_id} yet (HTTP {response.status}: {text.strip()[-300:]}); try again once it runs")
        return response


def _last_line(text: str) -> str:
    """The dashboard answers with a traceback; its last line is the reason."""
    return next((line for line in reversed(text.strip().splitlines()) if line.strip()), "no reason given")[:500]


def _not_answered(status: int, text: str, what: str) -> str:
    return f"Ray failed at {what} (HTTP {status}): {_last_line(text)}; try again, or look at the head's log (kubectl logs)"


def _reason(error: BaseException) -> str:
    if isinstance(error, NewConnectionError) or error.__cause__ is not None:
        text = str(error.__cause__ or error)
        return text.rpartition("] ")[2] or text
    if isinstance(error, ReadTimeoutError):
        return "it accepted the connection and said nothing"
    return f"{type(error).__name__}: {error}"[:300]
