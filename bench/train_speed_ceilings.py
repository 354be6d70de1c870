"""What a GPU can do at most: a large matrix product, briefly and for seconds, and a copy."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

SUSTAINED_S = 4.0
"""Seconds of the long product: the chip's power limit has lowered its clock by then, as it does in training."""


def ceilings() -> dict[str, float]:
    """Measured ceilings of GPU 0: TFLOP/s of a bf16 product of 8192³ on random data, for 40 ms and for ``SUSTAINED_S`` (when
    the chip's power limit has lowered its clock, as in training), and GB/s of a copy (read + written)."""
    import torch

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    big = torch.empty(2**31, device="cuda", dtype=torch.bfloat16).normal_()
    to = torch.empty_like(big)

    def median_ms(work: Callable[[], Any], times: int) -> float:
        for _ in range(3):
            work()
        spans = []
        for _ in range(times):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize()
            spans.append(begin.elapsed_time(end))
        return statistics.median(spans)

    def sustained(times: int) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for number in range(2 * times):
            if number == times:
                begin.record()
            torch.mm(a, b, out=result)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / times

    result = torch.empty_like(a)
    product, copy = median_ms(lambda: a @ b, 30), median_ms(lambda: to.copy_(big), 20)
    long = sustained(int(SUSTAINED_S * 1e3 / product / 2))
    return {
        "matmul_tflops": 2 * 8192**3 / product / 1e9, "matmul_sustained_tflops": 2 * 8192**3 / long / 1e9,
        "copy_gb_s": 2 * big.numel() * 2 / copy / 1e6,
    }  # fmt: skip
