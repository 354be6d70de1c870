"""The Ray cluster as the job finds it: connecting, waiting for what it needs, and how many ranks that makes."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from fsdp_job.config import JobConfig
from fsdp_job.ending import listen
from fsdp_job.errors import ClusterWaitError, JobUsageError

EXPECTED_GPUS = "EKS_RAY_TRAIN_EXPECTED_GPUS"
"""Environment variable: how many GPUs the cluster has when all nodes have joined."""

EXPECTED_GPUS_FILE = "EKS_RAY_TRAIN_EXPECTED_GPUS_FILE"
"""Environment variable of the pods: the file that holds that number (a mounted ConfigMap, which follows a scaling)."""


def connect(cfg: JobConfig) -> None:
    """Join the cluster that RAY_ADDRESS names (a submitted job's always does), else start one on this machine.

    ``local`` is said explicitly: without it Ray would join a cluster that someone left running on this machine.
    """
    import ray

    address = os.environ.get("RAY_ADDRESS")
    if address:
        ray.init(address=address, logging_level=logging.WARNING, log_to_driver=True)
    else:
        cpus = max(os.cpu_count() or 1, cfg.num_workers or 1)
        ray.init(
            address="local", num_cpus=cpus, include_dashboard=False, logging_level=logging.WARNING, log_to_driver=True
        )
    listen()


def expected_gpus(environment: Any = os.environ) -> int | None:
    """GPUs that the manifest promises; None where it does not say. A value that is no number is an error."""
    name, text = EXPECTED_GPUS, environment.get(EXPECTED_GPUS, "").strip()
    file = environment.get(EXPECTED_GPUS_FILE, "").strip()
    if not text and file and Path(file).is_file():
        name, text = file, Path(file).read_text().strip()
    if not text:
        return None
    if not text.isdigit():
        raise JobUsageError(f"{name} must say a whole number, got {text!r}; set it to the cluster's GPUs, or leave it out")
    return int(text)


def wait_for_workers(cfg: JobConfig) -> tuple[int, bool]:
    """(ranks, on GPUs?) once the cluster has them; raises ClusterWaitError after ``cfg.wait_seconds``.

    Ranks: ``--num-workers``, else all GPUs the manifest promises or the cluster shows, else one per node with CPUs.
    """
    import ray

    promised = expected_gpus()
    on_gpus = bool(promised) if promised is not None else ray.cluster_resources().get("GPU", 0) > 0
    kind = "GPU" if on_gpus else "CPU"
    if on_gpus:
        wanted = cfg.num_workers or promised or int(ray.cluster_resources().get("GPU", 0))
    else:
        wanted = cfg.num_workers or max(1, len(_nodes_with("CPU")))
    enough = cfg.min_workers or wanted
    deadline = time.monotonic() + cfg.wait_seconds
    said = -1.0
    while (have := ray.cluster_resources().get(kind, 0)) < wanted:
        if time.monotonic() >= deadline:
            if have >= enough:
                return wanted, on_gpus
            raise ClusterWaitError(
                f"{wanted} {kind}s are needed, {have:.0f} joined within {cfg.wait_seconds:.0f} s "
                f"({_describe(kind)}); start more nodes, or give --num-workers {max(1, int(have))}"
            )
        if have != said:
            print(f"waiting for {kind}s: {have:.0f} of {wanted} have joined", file=sys.stderr, flush=True)
            said = have
        time.sleep(min(1.0, max(0.05, deadline - time.monotonic())))
    return wanted, on_gpus


def _nodes_with(kind: str) -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get(kind, 0) >= 1]


def _describe(kind: str) -> str:
    nodes = [f"{node['NodeManagerAddress']}: {node['Resources'][kind]:.0f}" for node in _nodes_with(kind)]
    return ", ".join(nodes) or f"no node has a {kind}"
