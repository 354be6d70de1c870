"""``bench nccl`` and ``bench transport`` on two GPUs, each on a machine of its own: two network namespaces joined by a cable.

    python bench/transport_two_gpus.py        # two GPUs; root and iproute2 for the namespaces; about three minutes

The commands are those of a user, through the dashboard of a Ray cluster of two nodes. NCCL finds two hosts and no EFA, so runs go
over its sockets, which the gate must prove before a run counts; what crossed is also counted by the interface's own counter. Where
namespaces are not allowed, both nodes are on the host's loopback and NCCL is still told that they are two hosts. Beside it, the
same benchmark within one host (NVLink), by ``job/nccl_bench.py``. Writes ``bench/results/transport_two_gpus.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO / "bench"), str(REPO / "constructs")]

from two_machines import RayOnTwoMachines, namespaces_problem, ray_on_two_machines  # noqa: E402

from eks_ray_train.cli.bench_figures import bandwidths  # noqa: E402


def command(cluster: RayOnTwoMachines, folder: Path, *words: str) -> dict[str, Any]:
    """One ``bench`` command on the first machine; its document, with the bytes that each machine sent meanwhile."""
    kind, *rest = words
    said = [sys.executable, "-m", "eks_ray_train.cli", "bench", kind, "--address", cluster.address, "--job-dir", str(REPO / "job"), "--json", *rest]
    before = [cluster.machines.sent(index) for index in (0, 1)]
    done = subprocess.run(cluster.machines.inside(0, *said), cwd=folder, env=cluster.environment(), capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        raise RuntimeError(f"bench {kind} ended with {done.returncode} and no document: {done.stderr[-3000:]}")
    print(done.stderr[-1500:], file=sys.stderr, flush=True)
    document: dict[str, Any] = json.loads(done.stdout)
    document.pop("report", None)
    sent = [cluster.machines.sent(index) - before[index] for index in (0, 1)]
    return {"command": f"eks-ray-train bench {' '.join(words)}", **document, "interface_bytes_sent": sent}


def within_one_host(folder: Path) -> list[dict[str, Any]]:
    """Bus bandwidth by message size between the GPUs of this host, as NCCL connects them by itself."""
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, str(REPO / "job" / "nccl_bench.py"), "--num-workers", "2"], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"event"')]
    if done.returncode:
        raise RuntimeError(f"nccl_bench.py ended with {done.returncode}: {done.stderr[-2000:]}")
    return bandwidths([event for event in events if event["event"] == "bandwidth"], line_gbps=None)


def main() -> int:
    """Run all; 0 where every run that was asked for counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--max-bytes", type=int, default=2**28, help="largest message over sockets")
    parser.add_argument("--gpus", type=int, choices=(0, 1), default=1, help="of each machine; 0: gloo on CPUs, to try the script")
    parser.add_argument("--out", type=Path, default=REPO / "bench" / "results" / "transport_two_gpus.json")
    args = parser.parse_args()
    problem = namespaces_problem()
    if problem:
        print(f"both nodes on one network: {problem}", file=sys.stderr)
    from eks_ray_train.plan.known_models import known_config

    over = "tcp" if args.gpus else "none"
    result: dict[str, Any] = {"command": "python bench/transport_two_gpus.py", "network": problem or "two namespaces and a cable"}
    with tempfile.TemporaryDirectory(prefix="two-gpus-", dir="/tmp") as name:
        folder = Path(name)
        config = folder / "config.json"
        config.write_text(json.dumps({**known_config(args.model), "max_position_embeddings": 8192}))
        with ray_on_two_machines(gpus=args.gpus, apart=problem is None) as cluster:
            result["nccl"] = command(cluster, folder, "nccl", "--over", over, "--", "--max-bytes", str(args.max_bytes), "--iterations", "5", "--repeat", "3")
            _write(args.out, result)
            result["transport"] = command(
                cluster, folder, "transport", "--over", over, "--repeat", str(args.repeat), "--", f"--model-config={config}", "--dataset=random",
                "--tokenizer=bytes", "--seq-len=512", "--batch-size=4", f"--steps={args.steps}", "--warmup-steps=5", "--no-compile",
                f"--storage-path={folder / 'runs'}",
            )  # fmt: skip
            _write(args.out, result)
        if args.gpus:
            result["within_one_host"] = within_one_host(folder)
    _write(args.out, result)
    for row in result.get("within_one_host", []):
        print(f"one host {row['bytes']:>12,} B  bus {row['bus_gb_s']['median']:8.2f} GB/s")
    print(f"bytes sent by each node's interface: {[result[kind]['interface_bytes_sent'] for kind in ('nccl', 'transport')]}")
    steps = result["transport"]["transports"][over]["median_step_s"]
    print(f"median step over {over}: {steps['median']} s over {steps['count']} runs that count")
    return 0 if all(run["counts"] for kind in ("nccl", "transport") for run in result[kind]["runs"]) else 1


def _write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
