"""Bytes that each node sends to the other in a training step, by the network interface's own counter.

Two network namespaces joined by a veth pair stand for two machines, with four ranks each (gloo, CPU); ranks run the job's own
model, sharding and step. The lower bound is one all-reduce of the gradients between two nodes, which sends their size once
from each. Needs Linux, root and iproute2. Run: python bench/traffic_between_nodes.py
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO / "bench"), str(REPO / "job")]

from two_machines import two_machines  # noqa: E402

RESULT = REPO / "bench" / "results" / "traffic_between_nodes.json"
MODEL = {
    "model_type": "qwen2", "vocab_size": 260, "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip
SEQ_LEN = 32
CASES = [
    {"sharding": "full", "precision": "fp32", "accumulate": 1},
    {"sharding": "hybrid", "precision": "fp32", "accumulate": 1},
    {"sharding": "full", "precision": "bf16", "accumulate": 1},
    {"sharding": "hybrid", "precision": "bf16", "accumulate": 1},
    {"sharding": "hybrid", "precision": "fp32", "accumulate": 4},
    {"sharding": "full", "precision": "fp32", "accumulate": 4},
]
LIMITS = {"hybrid of full, fp32": 0.30, "hybrid of full, bf16 compute and fp32 reduction": 0.40}
QUARTER, TOLERANCE = 0.25, 0.03
PORT, TIMEOUT_S = 29551, 480


def measure(per_node: int, steps: int) -> list[dict[str, Any]]:
    """One row a case, with the bytes that each node sent per step."""
    with two_machines() as machines:
        nodes = [
            subprocess.Popen(
                machines.inside(index, sys.executable, __file__, "--node", str(index), "--master", machines.addresses[0],
                                "--ranks-per-node", str(per_node), "--steps", str(steps)),
                stdout=subprocess.PIPE, text=True, env={**os.environ, "GLOO_SOCKET_IFNAME": f"v{index}"},
            )
            for index in (0, 1)
        ]  # fmt: skip
        try:
            told = [node.communicate(timeout=TIMEOUT_S)[0] for node in nodes]
        finally:
            for node in nodes:
                node.kill()
        if any(node.returncode for node in nodes):
            raise SystemExit(f"a node failed: exit codes {[node.returncode for node in nodes]}")
    first, second = (json.loads(text.splitlines()[-1]) for text in told)
    rows = []
    for case, mine, other in zip(CASES, first["sent"], second["sent"], strict=True):
        size = 4 * first["parameters"]
        rows.append({
            **case, "parameters": first["parameters"], "bytes_per_step": [mine, other],
            "bytes_per_micro_batch": round((mine + other) / 2 / case["accumulate"]),
            "parameter_sizes_per_step": round((mine + other) / 2 / size, 3), "lower_bound_bytes_per_step": size,
        })  # fmt: skip
    return rows


def run_node(node: int, master: str, per_node: int, steps: int) -> int:
    """This machine's ranks, forked from a process that has everything imported; the first says what the machine sent."""
    import torch  # noqa: F401
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    from fsdp_job import train_func  # noqa: F401

    children = []
    for local in range(1, per_node):
        child = os.fork()
        if child == 0:
            _run_rank(node, local, master, per_node, steps)
            os._exit(0)
        children.append(child)
    answer = _run_rank(node, 0, master, per_node, steps)
    failed = [child for child in children if os.waitpid(child, 0)[1]]
    print(json.dumps(answer), flush=True)
    return 1 if failed else 0


def _run_rank(node: int, local: int, master: str, per_node: int, steps: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    from fsdp_job.ranks import Ranks

    torch.set_num_threads(1)
    ranks = Ranks(
        rank=node * per_node + local, world_size=2 * per_node, local_rank=local, local_world_size=per_node, node_rank=node,
        node=f"node-{node}", device=torch.device("cpu"),
    )  # fmt: skip
    dist.init_process_group("gloo", init_method=f"tcp://{master}:{PORT}", rank=ranks.rank, world_size=ranks.world_size)
    counter = Path(f"/sys/class/net/v{node}/statistics/tx_bytes")
    sent, parameters = [], 0
    for case in CASES:
        step, parameters = _prepare(case, ranks)
        step()  # the first makes connections
        dist.barrier()
        before = int(counter.read_text())
        dist.barrier()  # nobody begins before all have read
        for _ in range(steps):
            step()
        dist.barrier()
        sent.append((int(counter.read_text()) - before) // steps)
    dist.barrier()
    dist.destroy_process_group()
    return {"sent": sent, "parameters": parameters}


def _prepare(case: dict[str, Any], ranks: Any) -> tuple[Any, int]:
    """(a function that trains one optimizer step, parameters of the model)."""
    import torch

    from fsdp_job import model as models
    from fsdp_job import optim, sharding, weights
    from fsdp_job.config import JobConfig
    from fsdp_job.step import Stepper

    cfg = JobConfig(
        model_config="given", sharding=case["sharding"], precision=case["precision"], seq_len=SEQ_LEN, batch_size=1,
        accumulate=case["accumulate"],
    )  # fmt: skip
    built = models.build(cfg, "cpu", dict(MODEL))
    total, _ = models.count_parameters(built.model)
    root = models.CausalLMLoss(built.model)
    mesh = sharding.make_mesh(case["sharding"], ranks)
    sharding.apply(root, built.blocks, mesh, checkpointing="none", compiled=False, bf16=case["precision"] == "bf16")
    weights.materialize(root, built, ranks.device)
    optimizer = optim.ShardedAdamW(list(built.model.parameters()), cfg, ranks.device)
    weights.initialize(built, ranks.device, 0)
    stepper = Stepper(root, optimizer, mesh, case["sharding"], ranks, 1.0)
    tokens = torch.randint(0, 256, (1, SEQ_LEN), generator=torch.Generator().manual_seed(ranks.rank))
    batch = {"input_ids": tokens, "labels": tokens, "position_ids": torch.arange(SEQ_LEN)[None]}
    return lambda: stepper.train([batch] * case["accumulate"], 1e-4).read(), total


def judge(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The ratios that the documentation promises, each with its limit."""

    def sent(sharding: str, precision: str, accumulate: int = 1) -> float:
        wanted = {"sharding": sharding, "precision": precision, "accumulate": accumulate}
        return next(row["bytes_per_micro_batch"] for row in rows if wanted.items() <= row.items())

    ratios = [sent("hybrid", "fp32") / sent("full", "fp32"), sent("hybrid", "bf16") / sent("full", "bf16")]
    checks: dict[str, dict[str, Any]] = {
        name: {"ratio": round(ratio, 4), "at_most": limit, "holds": ratio <= limit}
        for (name, limit), ratio in zip(LIMITS.items(), ratios, strict=True)
    }
    quarter = sent("hybrid", "fp32", 4) / sent("hybrid", "fp32")
    limit = round(QUARTER * (1 + TOLERANCE), 4)
    checks["hybrid fp32, --accumulate 4, per micro-batch"] = {
        "ratio": round(quarter, 4), "at_most": limit, "holds": quarter <= limit,
    }  # fmt: skip
    return checks


def show(rows: list[dict[str, Any]], checks: dict[str, dict[str, Any]]) -> None:
    print("sharding  compute  accumulate  MB per step and node  per micro-batch  lower bound per step  in sizes of the model")
    for row in rows:
        step = sum(row["bytes_per_step"]) / 2e6
        print(
            f"{row['sharding']:8}  {row['precision']:7}  {row['accumulate']:10}  {step:20.2f}  "
            f"{row['bytes_per_micro_batch'] / 1e6:15.2f}  {row['lower_bound_bytes_per_step'] / 1e6:20.2f}  "
            f"{row['parameter_sizes_per_step']:20.2f}"
        )
    for name, check in checks.items():
        print(f"{name}: {check['ratio']} (at most {check['at_most']}): {'holds' if check['holds'] else 'DOES NOT HOLD'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks-per-node", type=int, default=4, help="default 4")
    parser.add_argument("--steps", type=int, default=3, help="steps counted in each case (default 3)")
    parser.add_argument("--out", type=Path, default=RESULT, help="result file (default bench/results/)")
    parser.add_argument("--node", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--master", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.node is not None:
        return run_node(words.node, words.master, words.ranks_per_node, words.steps)
    rows = measure(words.ranks_per_node, words.steps)
    checks = judge(rows)
    show(rows, checks)
    import torch

    result = {
        "command": " ".join(["python bench/traffic_between_nodes.py", *sys.argv[1:]]),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__},
        "nodes": 2, "ranks_per_node": words.ranks_per_node, "backend": "gloo", "rows": rows, "checks": checks,
    }  # fmt: skip
    words.out.parent.mkdir(parents=True, exist_ok=True)
    words.out.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if all(check["holds"] for check in checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
