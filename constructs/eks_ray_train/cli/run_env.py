"""What a submitted run finds in its environment: which network NCCL must use, and logs that show it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from eks_ray_train.errors import UsageError

Expect = Literal["efa", "tcp", "none"]

ALWAYS = {
    # Without these Ray folds similar lines of different ranks together, and Ray Train prints each line twice.
    "RAY_DEDUP_LOGS": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
}
# NCCL's levels from quiet to loud; only from INFO on are transports told
# (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug).
SHOWS_TRANSPORT = ("INFO", "TRACE")


def parse_env(pairs: Iterable[str]) -> dict[str, str]:
    """``K=V`` words -> mapping. Raises UsageError for a word without ``=`` or without a name."""
    env: dict[str, str] = {}
    for pair in pairs:
        name, sep, value = pair.partition("=")
        if not sep or not name or any(c.isspace() for c in name):
            raise UsageError(f"--env takes NAME=VALUE, got {pair!r}; write for example --env {_named(name)}=1")
        env[name] = value
    return env


def parse_runtime_env(text: str | None) -> dict[str, Any]:
    """``--runtime-env-json`` -> mapping. Raises UsageError for what is no object, or sets what ``submit`` itself sets."""
    if not text:
        return {}
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"--runtime-env-json is not JSON: {error}; write it in single quotes, for example '{{\"pip\": [\"einops\"]}}'"
        ) from None
    if not isinstance(data, dict):
        raise UsageError(f"--runtime-env-json must be an object, got {text[:80]}; for example '{{\"pip\": [\"einops\"]}}'")
    if "working_dir" in data:
        raise UsageError("--runtime-env-json must not set working_dir: that is the job's folder; choose it with --job-dir")
    env = data.get("env_vars", {})
    if not isinstance(env, dict) or not all(isinstance(v, str) for v in env.values()):
        raise UsageError('--runtime-env-json: env_vars must be an object of text values; for example {"HF_HUB_OFFLINE": "1"}')
    return data


def _named(text: str) -> str:
    """A name for an example: the user's own where it is one."""
    return text if text.isidentifier() else "NAME"


def build_env(*, user: Mapping[str, str], expect: Expect, allow_tcp: bool, gate: bool) -> dict[str, str]:
    """Environment of the run. What the user sets wins, but for what would blind the gate: that is a UsageError.

    ``expect`` efa sets ``NCCL_NET=Libfabric`` unless ``allow_tcp``: NCCL then refuses to start instead of falling back to
    TCP. ``expect`` tcp forces sockets, for the comparison run.
    """
    env = {**ALWAYS, **user}
    judged = gate and expect != "none"
    level = user.get("NCCL_DEBUG")
    if level is not None and judged and level.upper() not in SHOWS_TRANSPORT:
        raise UsageError(
            f"NCCL_DEBUG={level} hides the lines that show the transport, so the gate could not judge the run; "
            "use NCCL_DEBUG=INFO (the default here), or --no-gate"
        )
    parts = [part.strip().upper() for part in user.get("NCCL_DEBUG_SUBSYS", "").split(",") if part.strip()]
    if parts and judged and "ALL" not in parts and not {"INIT", "NET"} <= set(parts):
        raise UsageError(
            f"NCCL_DEBUG_SUBSYS={user['NCCL_DEBUG_SUBSYS']} leaves out the lines that show the transport; "
            "it must name INIT and NET (or ALL), or use --no-gate"
        )
    env.setdefault("NCCL_DEBUG", "INFO")
    if "NCCL_NET" not in user:
        if expect == "tcp":
            env["NCCL_NET"] = "Socket"
        elif expect == "efa" and not allow_tcp:
            env["NCCL_NET"] = "Libfabric"
    return env
