"""How long a checkpoint holds the training loop up, and what its upload costs the steps beside it.

A 50-million-parameter model with its AdamW state (fp32, one process) is trained and saved by the job's own code; beside it
stands a plain clone of the same state to the host's memory, made anew each time as torch's ``clone`` does. Steps while a
checkpoint is written are compared with steps while none is, by the median. Run: python bench/checkpoint_blocking.py
On a busy machine every number is the neighbours'. On a machine with a GPU: --device cuda --seq-len 2048.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / "job"))
RESULT = REPO / "bench" / "results" / "checkpoint_blocking.json"
MODEL = {
    "model_type": "qwen2", "vocab_size": 16000, "hidden_size": 640, "intermediate_size": 1792, "num_hidden_layers": 9,
    "num_attention_heads": 10, "num_key_value_heads": 5, "max_position_embeddings": 128, "tie_word_embeddings": True,
}  # fmt: skip
BLOCKED_AT_MOST, SLOWER_AT_MOST = 1.5, 1.1


class Trained:
    """The job's model, step and checkpointer in this process alone; checkpoints go below ``folder``."""

    def __init__(self, folder: str, seq_len: int, device_type: str, share: float | None) -> None:
        import torch
        import torch.distributed as dist

        from fsdp_job import model as models
        from fsdp_job import optim, sharding, state, weights
        from fsdp_job.checkpoint import Checkpointer
        from fsdp_job.config import JobConfig
        from fsdp_job.ranks import Ranks
        from fsdp_job.step import Stepper
        from fsdp_job.storage import RunFolder

        on_gpu = device_type == "cuda"
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, init_method=f"file://{folder}/group", rank=0, world_size=1)
        device = torch.device(device_type, 0) if on_gpu else torch.device("cpu")
        ranks = Ranks(
            rank=0, world_size=1, local_rank=0, local_world_size=1, node_rank=0, node="here", device=device
        )  # fmt: skip
        cfg = JobConfig(model_config="given", precision="bf16" if on_gpu else "fp32", seq_len=seq_len)
        built = models.build(cfg, device_type, {**MODEL, "max_position_embeddings": max(128, seq_len)})
        self.parameters, _ = models.count_parameters(built.model)
        root = models.CausalLMLoss(built.model)
        mesh = sharding.make_mesh("full", ranks)
        sharding.apply(root, built.blocks, mesh, checkpointing="none", compiled=False, bf16=on_gpu)
        weights.materialize(root, built, device)
        optimizer = optim.ShardedAdamW(list(built.model.parameters()), cfg, device)
        weights.initialize(built, device, 0)
        stepper = Stepper(root, optimizer, mesh, "full", ranks, 1.0)
        tokens = torch.randint(0, 16000, (1, seq_len), generator=torch.Generator().manual_seed(0))
        batch = {"input_ids": tokens, "labels": tokens, "position_ids": torch.arange(seq_len)[None]}
        self.step = lambda: stepper.train([batch], 1e-5).read()
        self.state = lambda: state.tensors_of(built.model, optimizer, ranks)
        self.checkpointer = Checkpointer(
            RunFolder(folder, "blocking"), attempt=1, keep=1, device=device, timeout_s=300, share=share
        )  # fmt: skip


def timed(function: Any) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def clone_all(tensors: dict[str, Any]) -> Any:
    from fsdp_job.optim import local_of

    return {name: local_of(value).to("cpu", copy=True) for name, value in tensors.items()}


def measure(saves: int, quiet_steps: int, seq_len: int, device_type: str, share: float | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        job = Trained(folder, seq_len, device_type, share)
        for _ in range(5):
            job.step()
        state_bytes = sum(t.nbytes for t in clone_all(job.state()).values())
        job.checkpointer.prepare(job.state())
        blocked, cloned, quiet, beside, written = [], [], [], [], []
        for number in range(1, saves + 1):
            quiet += [timed(job.step) for _ in range(quiet_steps)]
            cloned.append(timed(lambda: clone_all(job.state())))
            blocked.append(timed(lambda n=number: job.checkpointer.save(n, job.state(), {})))
            while job.checkpointer.in_flight:
                seconds = timed(job.step)
                if job.checkpointer.in_flight:  # a step that outlasted the writing was beside it for a part only
                    beside.append(seconds)
            result = job.checkpointer.wait()
            assert result is not None and result.committed, result
            written.append(result.seconds)
    told = {"blocked": blocked, "clone": cloned, "quiet_step": quiet, "step_during_upload": beside, "checkpoint": written}
    seconds = {
        name: {"median": round(statistics.median(values), 4), "low": round(min(values), 4), "high": round(max(values), 4), "count": len(values)}
        for name, values in told.items() if values
    }  # fmt: skip
    return {"parameters": job.parameters, "state_bytes": state_bytes, "seconds": seconds}


def judge(measured: dict[str, Any]) -> dict[str, dict[str, Any]]:
    seconds = measured["seconds"]
    blocked = seconds["blocked"]["median"] / seconds["clone"]["median"]
    checks = {"loop blocked, in plain clones": {"ratio": round(blocked, 3), "at_most": BLOCKED_AT_MOST, "holds": blocked <= BLOCKED_AT_MOST}}
    if "step_during_upload" in seconds:
        slower = seconds["step_during_upload"]["median"] / seconds["quiet_step"]["median"]
        checks["step during upload, in quiet steps"] = {"ratio": round(slower, 3), "at_most": SLOWER_AT_MOST, "holds": slower <= SLOWER_AT_MOST}
    return checks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saves", type=int, default=7, help="checkpoints (default 7)")
    parser.add_argument("--quiet-steps", type=int, default=6, help="steps before each (default 6)")
    parser.add_argument("--seq-len", type=int, default=16, help="tokens of a step: short steps, so that many fit beside a write")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to train (default cpu)")
    parser.add_argument("--share", type=float, help="share of the time that the writer works (default: the job's own choice)")
    parser.add_argument("--out", type=Path, default=RESULT, help="result file (default bench/results/)")
    words = parser.parse_args()
    import torch

    torch.set_num_threads(1)  # training on one core, so that writing has the other, as a GPU node's CPUs are free
    measured = measure(words.saves, words.quiet_steps, words.seq_len, words.device, words.share)
    checks = judge(measured)
    for name, numbers in measured["seconds"].items():
        print(f"{name:20} {numbers['median']:8.4f} s (low {numbers['low']}, high {numbers['high']}, {numbers['count']} times)")
    for name, check in checks.items():
        print(f"{name}: {check['ratio']} (at most {check['at_most']}): {'holds' if check['holds'] else 'DOES NOT HOLD'}")
    result = {
        "command": " ".join(["python bench/checkpoint_blocking.py", *sys.argv[1:]]),
        "machine": {
            "device": torch.cuda.get_device_name(0) if words.device == "cuda" else "cpu", "cpus": len(os.sched_getaffinity(0)), "python": platform.python_version(), "torch": torch.__version__, "load_1min": os.getloadavg()[0],
        },
        **measured, "checks": checks,
    }  # fmt: skip
    words.out.parent.mkdir(parents=True, exist_ok=True)
    words.out.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if all(check["holds"] for check in checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
