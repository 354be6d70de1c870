"""Which products of a block are computed in fp8: those whose weight is large, and whose sizes the hardware takes."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from fsdp_job.precision import FP8_ELEMENTS, use_float8  # noqa: E402


def test_large_products_are_computed_in_fp8_and_small_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []

    def convert(block: Any, *, config: Any, module_filter_fn: Any) -> None:
        chosen.extend(name for name, module in block.named_modules() if module_filter_fn(module, name))

    fake = ModuleType("torchao.float8")
    fake.Float8LinearConfig = SimpleNamespace(from_recipe_name=lambda _name: None)  # type: ignore[attr-defined]
    fake.convert_to_float8_training = convert  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.float8", fake)
    with torch.device("meta"):
        block = nn.ModuleDict(
            {
                "square": nn.Linear(1536, 1536), "narrow": nn.Linear(1536, 256), "up": nn.Linear(1536, 8960), "norm": nn.LayerNorm(1536),
                "odd": nn.Linear(3001, 3001), "just": nn.Linear(2048, FP8_ELEMENTS // 2048),
            }
        )  # fmt: skip
    assert use_float8([block]) == 2
    assert chosen == ["up", "just"]
