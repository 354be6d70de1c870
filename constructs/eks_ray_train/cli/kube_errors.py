"""How a call to the Kubernetes API can fail, told apart by what to do about it."""

from __future__ import annotations

import re
from typing import Any

from eks_ray_train.errors import ClusterNotReadyError


class NotThere(ClusterNotReadyError):
    """The API server knows no such object."""


class UnknownCaller(ClusterNotReadyError):
    """The cluster has no access entry for this identity."""


class Forbidden(ClusterNotReadyError):
    """This identity may not do that."""


def status_of(error: Any) -> int:
    """HTTP status of a refused call; where a WebSocket was refused (exec, port forwarding) the client only puts it into the text."""
    found = re.search(r"Handshake status (\d+)", str(error.reason)) if not error.status else None
    return int(found[1]) if found else int(error.status or 0)
