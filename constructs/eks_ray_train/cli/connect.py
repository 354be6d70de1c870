"""Where a command's Ray cluster is: a dashboard by ``--address``, or the deployed one through the EKS API."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eks_ray_train.errors import UsageError

if TYPE_CHECKING:
    from eks_ray_train.instances import InstanceType

    from .jobs_api import JobsClient
    from .waiting import ClusterWait


def _no_mark(_run: str) -> None:
    """A cluster by its address has no object that could be marked as busy."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A reachable dashboard and what is declared about the cluster behind it (None: nothing is known of it).

    ``mark_busy(submission_id)`` says that a run is active, so that an update which would restart its pods is refused;
    ``clear_busy(submission_id)`` takes that back, unless another run has put its own mark there.
    """

    client: JobsClient
    name: str
    ray_version: str
    nodes: int | None = None
    instance: InstanceType | None = None
    mark_busy: Callable[[str], None] = _no_mark
    clear_busy: Callable[[str], None] = _no_mark

    def to_json(self) -> dict[str, Any]:
        """What is known of the cluster, for a run's document and report."""
        return {
            "cluster": self.name,
            "ray_version": self.ray_version,
            "instance_type": self.instance.name if self.instance else None,
            "gpu_nodes": self.nodes,
            "usd_per_hour": self.usd_per_hour,
        }

    @property
    def usd_per_hour(self) -> float | None:
        """Price of the declared GPU nodes, on demand."""
        if self.instance is None or self.nodes is None or self.instance.usd_per_hour is None:
            return None
        return self.instance.usd_per_hour * self.nodes


def add_address(parser: argparse.ArgumentParser) -> None:
    """``--address``, the same for every command that talks to a dashboard."""
    parser.add_argument(
        "--address", metavar="URL",
        help="Ray dashboard, for example http://127.0.0.1:8265 (default: the cluster that cdk.json declares, through the EKS API); "
        "its token is read from RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH",
    )  # fmt: skip


def token_of_environment(environ: dict[str, str] | None = None) -> str | None:
    """Ray's token by Ray's own variables: RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, and ~/.ray/auth_token in token mode."""
    env = os.environ if environ is None else environ
    if token := env.get("RAY_AUTH_TOKEN"):
        return _fit_for_a_header(token, "RAY_AUTH_TOKEN")
    path = env.get("RAY_AUTH_TOKEN_PATH")
    if path is None and env.get("RAY_AUTH_MODE") == "token":
        path = str(Path.home() / ".ray" / "auth_token")
        if not Path(path).exists():
            return None
    if path is None:
        return None
    try:
        return _fit_for_a_header(Path(path).read_text(encoding="utf-8"), f"RAY_AUTH_TOKEN_PATH: {path}")
    except OSError as error:
        raise UsageError(f"RAY_AUTH_TOKEN_PATH: cannot read {path} ({error.strerror}); write Ray's token there") from None
    except UnicodeDecodeError:
        raise UsageError(f"RAY_AUTH_TOKEN_PATH: {path} is not text; write Ray's token there, and nothing else") from None


def _fit_for_a_header(text: str, source: str) -> str:
    """The token without the white space around it. Raises UsageError, which does not show it, where no HTTP header can carry it."""
    token = text.strip()
    if not (token.isascii() and token.isprintable()):
        what = "more than one line" if "\n" in token or "\r" in token else "a character that is not printable ASCII"
        raise UsageError(f"{source} has {what}, and a token is one word of ASCII; set it to Ray's token alone")
    return token


@contextlib.contextmanager
def connect(
    address: str | None, *, cdk_json: Path | None = None, token: str | None = None, local_port: int = 0, wait: ClusterWait | None = None
) -> Iterator[Target]:
    """A target that answers. ``local_port``: where the deployed cluster's dashboard appears here (0: a free port).

    ``wait``: wait for the deployed cluster's nodes, pods and GPUs (a cluster by its address is taken as it is). Raises
    ClusterNotReadyError (exit code 6), within 10 s where it cannot be reached.
    """
    if address is None:
        from .kube import deployed_target

        with deployed_target(cdk_json or Path("cdk.json"), local_port=local_port, wait=wait) as target:
            yield target
        return
    from .jobs_api import JobsClient

    client = JobsClient(address, token=token or token_of_environment(), typed=address)
    try:
        yield Target(client=client, name=client.address, ray_version=client.version())
    finally:
        client.close()
