"""The rates that ``plan``'s constants are made of, measured on this machine's GPUs (constructs/eks_ray_train/plan/hardware.py).

    python bench/chip_constants.py            # about a minute; writes bench/results/chip_constants.json

Matrix products of real models' shapes (forward, gradient of the input, gradient of the weight), attention forward and
backward, a device copy, and NCCL all-gather and reduce-scatter between all GPUs of the machine; medians of repeated runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO / "bench"), str(REPO / "constructs")]

MODELS = ("HuggingFaceTB/SmolLM2-135M", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-7B")
TOKENS = (512, 4096, 16384)


def median_s(work: Callable[[], Any], times: int = 12) -> float:
    """Median seconds of ``work`` on the device, three warm-up calls before."""
    import torch

    for _ in range(3):
        work()
    spans = []
    for _ in range(times):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        spans.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(spans)


def products() -> list[dict[str, Any]]:
    """Seconds of each model's products at each number of tokens."""
    import torch

    from eks_ray_train.plan import find_model

    rows = []
    for name in MODELS:
        s = find_model(name)
        shapes = {
            (s.hidden, s.query_width),
            (s.hidden, s.kv_width),
            (s.hidden, s.intermediate),
            (s.intermediate, s.hidden),
        }
        if s.hidden == 1536:
            shapes.add((s.hidden, s.vocab))
        for inner, outer in sorted(shapes):
            for tokens in TOKENS if outer < 100_000 else (3533,):
                x = torch.randn(tokens, inner, device="cuda", dtype=torch.bfloat16)
                w = torch.randn(outer, inner, device="cuda", dtype=torch.bfloat16)
                g = torch.randn(tokens, outer, device="cuda", dtype=torch.bfloat16)
                spans = [
                    median_s(partial(torch.mm, x, w.t())),
                    median_s(partial(torch.mm, g, w)),
                    median_s(partial(torch.mm, g.t(), x)),
                ]
                rows.append(
                    {
                        "model": name,
                        "tokens": tokens,
                        "inner": inner,
                        "outer": outer,
                        "forward_s": spans[0],
                        "input_s": spans[1],
                        "weight_s": spans[2],
                    }
                )
    return rows


def attention() -> list[dict[str, Any]]:
    """Seconds of causal attention as the models have it, forward and backward, by torch's default choice of kernel."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attend

    rows = []
    for heads, kv, width in ((12, 2, 128), (14, 2, 64), (9, 3, 64), (28, 4, 128)):
        for batch, seq in ((32, 512), (8, 2048), (2, 8192)):
            q = torch.randn(batch, heads, seq, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            k, v = (
                torch.randn(batch, kv, seq, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                for _ in range(2)
            )
            g = torch.randn_like(q)
            forward = median_s(partial(attend, q, k, v, is_causal=True, enable_gqa=True))
            out = attend(q, k, v, is_causal=True, enable_gqa=True)
            backward = median_s(partial(torch.autograd.grad, out, (q, k, v), g, retain_graph=True))
            flops = 2.0 * batch * seq * seq * heads * width  # causal half of 4·B·S²·H·D
            rows.append({
                "heads": heads, "kv_heads": kv, "width": width, "batch": batch, "seq": seq, "forward_s": forward, "backward_s": backward,
                "forward_tflops": flops / forward / 1e12, "backward_tflops": 2.5 * flops / backward / 1e12,
            })  # fmt: skip
    return rows


def elementwise() -> dict[str, float]:
    """GB/s (read + written) of a copy, of a compiled gated activation, and of fused AdamW with fp32 state."""
    import torch

    big = torch.randn(2**30, device="cuda", dtype=torch.bfloat16)
    to = torch.empty_like(big)
    copy = median_s(lambda: to.copy_(big))
    gate, up = big.view(-1, 8192)[:65536], to.view(-1, 8192)[:65536]
    gated = torch.compile(lambda a, b: torch.nn.functional.silu(a) * b)
    act = median_s(lambda: gated(gate, up))
    parameter = torch.nn.Parameter(torch.randn(2**28, device="cuda"))
    parameter.grad = torch.randn_like(parameter)
    adam = torch.optim.AdamW([parameter], fused=True)
    step = median_s(adam.step)
    return {
        "copy_gb_s": 4 * big.numel() / copy / 1e9,
        "gated_gb_s": 6 * gate.numel() / act / 1e9,
        "adamw_gb_s": 28 * 2**28 / step / 1e9,
    }


def collectives_worker(_settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Seconds of all-gather and reduce-scatter between all ranks, by bytes of the whole tensor."""
    import torch
    import torch.distributed as dist

    world, rows = dist.get_world_size(), []
    for megabytes in (1, 8, 32, 96, 256, 1024):
        whole = torch.randn(megabytes * 2**20 // 4 // world * world, device="cuda")
        part = whole[: whole.numel() // world].clone()
        row: dict[str, Any] = {"bytes": whole.numel() * 4, "ranks": world}
        for name, work in (
            ("all_gather_s", partial(dist.all_gather_into_tensor, whole, part)),
            ("reduce_scatter_s", partial(dist.reduce_scatter_tensor, part, whole)),
            ("all_reduce_s", partial(dist.all_reduce, whole)),
        ):
            dist.barrier()
            row[name] = median_s(work, 20)
        rows.append(row)
    return rows


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=REPO / "bench" / "results" / "chip_constants.json")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        parser.error("no GPU found")
    import train_speed

    result: dict[str, Any] = {
        "command": "python bench/chip_constants.py", "device": torch.cuda.get_device_name(0), "torch": torch.__version__,
        "gpus": torch.cuda.device_count(), "ceilings": train_speed.ceilings(), "elementwise": elementwise(),
        "products": products(), "attention": attention(),
    }  # fmt: skip
    torch.cuda.empty_cache()
    if torch.cuda.device_count() > 1:
        with train_speed.ray_cluster(torch.cuda.device_count()):
            result["collectives"] = train_speed.through_ray(collectives_worker, {}, torch.cuda.device_count())
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: result[k] for k in ("ceilings", "elementwise")}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
