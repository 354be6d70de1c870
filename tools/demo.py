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
# A common model to predict a step of, at the job's own flags for a real run.
MODEL, SEQ_LEN, BATCH_SIZE = "Qwen/Qwen2.5-1.5B", 2048, 1


def synthesize() -> list[Path]:
    """Run app.py into cdk.out and return the stacks' templates in deployment order.

    Raises SystemExit with app.py's exit code where it refuses the settings; it has said why.
    """
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=REPO, check=False, env={**os.environ, "CDK_OUTDIR": str(OUT)}
    )
    if done.returncode:
        raise SystemExit(done.returncode)
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
    """Print what a deploy would create (resources a stack, zones, price an hour) and what a step would take there."""
    from eks_ray_train.instances import get_instance_type, get_system_instance_type
    from eks_ray_train.plan import Run, cluster_of, compare, find_model
    from eks_ray_train.plan.cost import run_cost
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
    zones = ", ".join(settings.availability_zones) or "the region's first two zones"
    zone = settings.gpu_zone or "one of them, chosen at deploy by the capacity claim"
    pod = gpu.worker_pod
    print(f"  network in {zones}; GPU nodes in {zone}")
    print(
        f"  {settings.gpu_node_count} x {gpu.name} ({gpu.gpus} x {gpu.gpu_model}, {gpu.efa_interfaces} EFA); "
        f"{system} x {settings.system_instance_type} for Ray's head and the operator"
    )
    print(
        f"  a worker pod: {pod.gpus} GPU, {pod.efa_interfaces} EFA, {pod.cpu} CPU, {pod.memory_gib} GiB; image {settings.dlc_image}"
    )
    gpus = None if gpu.usd_per_hour is None else settings.gpu_node_count * gpu.usd_per_hour
    cost = run_cost(gpu_usd_per_hour=gpus, nodes=settings.gpu_node_count, seconds=3600, tokens=0)
    if cost.usd_per_hour is None:
        print(f"  price: {gpu.name} has no on-demand price in the catalogue")
    else:
        limit = f"GPU nodes go to zero after {settings.max_hours} h" if settings.max_hours else "no spending limit"
        print(
            f"  about {cost.usd_per_hour:.2f} USD an hour: GPU nodes {gpus:.2f}, all else {cost.other_usd_per_hour:.2f} "
            f"(control plane, NAT gateway, one system node, volumes; us-east-1, on demand, traffic not counted); {limit}"
        )
    [step] = compare(
        Run(shape=find_model(MODEL), seq_len=SEQ_LEN, batch_size=BATCH_SIZE),
        [cluster_of(gpu, settings.gpu_node_count, "efa")],
        tokens=None,
        steps=1,
    )
    fits = "" if step.fits else ", which does not fit"
    print(
        f"  predicted for {MODEL} at {SEQ_LEN} tokens a sequence: {step.time.total:.2f} s a step, {step.tokens_per_s:,.0f} tokens/s, "
        f"{step.memory.needed_gib:.1f} of {step.cluster.gpu_memory_gib:.1f} GiB a GPU{fits} (eks-ray-train plan says more)"
    )


def main(arguments: list[str]) -> int:
    print("== what `cdk deploy --all` would create", flush=True)
    show(synthesize())
    print("\n== the same job on this machine: one Ray head, two worker nodes, real text", flush=True)
    return subprocess.call([sys.executable, "-m", "eks_ray_train.cli", "train", *arguments], cwd=REPO)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
