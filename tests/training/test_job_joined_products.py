"""Narrow products of one input are computed as one, and nothing else about a block changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._dynamo.backends.debugging import aot_eager  # noqa: E402

from fsdp_job import fuse  # noqa: E402


class Attention(nn.Module):
    """Three projections of one state, two of them narrow, and two wide ones of another."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (
            nn.Linear(32, 64, bias=bias),
            nn.Linear(32, 16, bias=bias),
            nn.Linear(32, 16, bias=bias),
        )
        self.wide_a, self.wide_b = nn.Linear(64, 2048, bias=False), nn.Linear(64, 2048, bias=False)

    def forward(self, x: Any) -> Any:
        q, k, v = self.q(x), self.k(x), self.v(x)
        mixed = q + torch.cat([k, v, k * v, k - v], -1)
        return self.wide_a(mixed) * torch.sigmoid(self.wide_b(mixed))


def run(module: Any, x: Any, *, change: Callable[[Any], int] | None) -> tuple[list[Any], int]:
    """([output, gradients...], what ``change`` counted)."""
    torch._dynamo.reset()
    counts: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        counts.append(change(graph) if change else 0)
        return aot_eager(graph, inputs)

    module.zero_grad()
    x = x.clone().requires_grad_()
    out = torch.compile(module, backend=backend)(x)
    out.square().sum().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in module.parameters())], sum(counts)


@pytest.mark.parametrize("bias", [True, False])
def test_joined_products_give_the_values_and_gradients_of_the_separate_ones(bias: bool) -> None:
    torch.manual_seed(0)
    module, x = Attention(bias).double(), torch.randn(3, 5, 32, dtype=torch.float64)
    plain, none = run(module, x, change=None)
    ours, joined = run(module, x, change=fuse.join_products)
    assert (none, joined) == (0, 3)  # the wide pair is left as it is
    for a, b in zip(plain, ours, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_joined_products_leave_parameters_and_their_names() -> None:
    module = Attention(True)
    names = [name for name, _ in module.named_parameters()]
    run(module, torch.randn(2, 32), change=fuse.join_products)
    assert [name for name, _ in module.named_parameters()] == names
