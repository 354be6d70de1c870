"""``make demo``: show what a deploy would create, then train and resume the very same job on a local Ray cluster.

Synthesis runs ``app.py`` as CI does (no account, region or credentials); training goes through ``eks-ray-train train``,
which submits ``job/`` with the code that ``submit`` uses on EKS.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
OUT = REPO / "cdk.out"
# USD an hour, us-east-1, checked 2026-11-29; instance prices come from the catalogue.
EKS_CONTROL_PLANE = 0.10
NAT_GATEWAY = 0.045


def synthesize() -> list[Path]:
    """Run app.py into cdk.out and return the stacks' templates in deployment order."""
    started = time.monotonic()
    subprocess.run([sys.executable, "app.py"], cwd=REPO, check=True, env={**os.environ, "CDK_OUTDIR": str(OUT)})
    manifest = json.loads((OUT / "manifest.json").read_text(encoding="utf-8"))
    templates = [
        OUT / artifact["properties"]["templateFile"]
        for artifact in manifest["artifacts"].values()
        if artifact["type"] == "aws:cloudformation:stack"
    ]
    print(
        f"synthesized {len(templates)} stacks in {time.monotonic() - started:.1f} s (no account, region or credentials)"
    )
    return templates


def show(templates: list[Path]) -> None:
    """Print resources a stack, zones and the hourly price of what a deploy would create."""
    from eks_ray_train.instances import get_instance_type, get_system_instance_type
    from eks_ray_train.settings import load_settings
    from eks_ray_train.system_sizing import required_system_nodes

    settings = load_settings(REPO / "cdk.json")
    for path in templates:
        resources = json.loads(path.read_text(encoding="utf-8"))["Resources"]
        kinds = Counter(r["Type"].removeprefix("AWS::").removeprefix("Custom::") for r in resources.values())
        top = ", ".join(f"{count} x {kind}" if count > 1 else kind for kind, count in kinds.most_common(7))
        print(f"  {path.stem.removesuffix('.template'):<28} {len(resources):>3} resources: {top}, …")
    gpu = get_instance_type(settings.gpu_instance_type, accept_unverified_layout=settings.accept_unverified_layout)
    system = settings.system_node_count or required_system_nodes(
        get_system_instance_type(settings.system_instance_type)
    )
    zone = settings.gpu_zone or "one zone, chosen at deploy by the capacity claim"
    pod = gpu.worker_pod
    print(
        f"  {settings.gpu_node_count} x {gpu.name} ({gpu.gpus} x {gpu.gpu_model}, {gpu.efa_interfaces} EFA) in {zone}; "
        f"{system} x {settings.system_instance_type} for Ray's head and the operator"
    )
    print(
        f"  a worker pod: {pod.gpus} GPU, {pod.efa_interfaces} EFA, {pod.cpu} CPU, {pod.memory_gib} GiB; image {settings.dlc_image}"
    )
    if gpu.usd_per_hour is None:
        print(f"  price: {gpu.name} has no on-demand price in the catalogue")
        return
    gpus = settings.gpu_node_count * gpu.usd_per_hour
    print(
        f"  about {gpus + EKS_CONTROL_PLANE + NAT_GATEWAY:.2f} USD an hour and the system nodes: GPU nodes {gpus:.2f}, control plane "
        f"{EKS_CONTROL_PLANE:.2f}, NAT gateway {NAT_GATEWAY:.3f} and its traffic (us-east-1, on demand); "
        f"GPU nodes go to zero after {settings.max_hours} h"
    )


def main(arguments: list[str]) -> int:
    print("== what `cdk deploy --all` would create", flush=True)
    show(synthesize())
    print("\n== the same job on this machine: one Ray head, two worker nodes, real text", flush=True)
    return subprocess.call([sys.executable, "-m", "eks_ray_train.cli", "train", *arguments], cwd=REPO)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
