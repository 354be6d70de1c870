"""The chunked loss against torch's cross entropy of whole logits."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from fsdp_job import loss
from fsdp_job.loss import IGNORED, linear_cross_entropy

N, DIM, VOCAB = 23, 8, 37


def make(dtype: torch.dtype = torch.float64, *, bias: bool = False) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    hidden = torch.randn(N, DIM, dtype=dtype, requires_grad=True)
    weight = torch.randn(VOCAB, DIM, dtype=dtype, requires_grad=True)
    offset = torch.randn(VOCAB, dtype=dtype, requires_grad=bias)
    labels = torch.randint(0, VOCAB, (N,))
    labels[::5] = IGNORED
    return hidden, weight, offset, labels


def plain(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, labels: torch.Tensor, cap: float | None, factor: float
) -> torch.Tensor:  # fmt: skip
    logits = F.linear(hidden, weight, bias) * factor
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")


@pytest.mark.parametrize("rows", [1, 4, 7, N, 1000])
@pytest.mark.parametrize(("bias", "cap", "factor"), [(False, None, 1.0), (True, None, 0.5), (False, 3.0, 1.0)])
def test_loss_and_gradients_equal_whole_logits(rows: int, bias: bool, cap: float | None, factor: float) -> None:
    hidden, weight, offset, labels = make(torch.float32, bias=bias)
    scale = torch.tensor(0.25)
    given = offset if bias else None
    scaled, total = linear_cross_entropy(
        hidden, weight, labels, scale=scale, bias=given, softcap=cap, factor=factor, chunk_logits=rows * VOCAB
    )
    (2 * scaled).backward()
    inputs = [hidden, weight, *([offset] if bias else [])]
    got = [value.grad for value in inputs]
    expected = plain(hidden, weight, given, labels, cap, factor)
    want = torch.autograd.grad(0.5 * expected, inputs)
    torch.testing.assert_close(total, expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scaled.detach(), 0.25 * expected.detach(), rtol=1e-5, atol=1e-5)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_plain_sum_has_no_gradient_and_no_grad_mode_makes_none() -> None:
    hidden, weight, _, labels = make(torch.float32)
    scaled, total = linear_cross_entropy(hidden, weight, labels)
    assert scaled.requires_grad and not total.requires_grad
    with torch.no_grad():
        scaled, total = linear_cross_entropy(hidden, weight, labels)
    assert not scaled.requires_grad
    assert scaled.item() == total.item()


def test_whole_logits_never_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = F.linear

    def spy(*args: torch.Tensor) -> torch.Tensor:
        out = original(*args)
        seen.append(out.numel())
        return out

    monkeypatch.setattr("fsdp_job.loss.F.linear", spy)
    hidden, weight, _, labels = make(torch.float32)
    linear_cross_entropy(hidden, weight, labels, chunk_logits=5 * VOCAB)[0].backward()
    assert len(seen) == 5
    assert max(seen) <= 5 * VOCAB


class LiveChunks(TorchDispatchMode):
    """Counts how many buffers of ``size`` elements are alive at once."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.most = size, 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.numel() == self.size:
            storage = out.untyped_storage()
            self._alive[storage._cdata] = weakref.ref(storage)
            self.most = max(self.most, sum(alive() is not None for alive in self._alive.values()))
        return out


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_at_most_one_chunk_of_logits_lives_at_a_time(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """With the kernel of CUDA, which needs no more buffers: logits become their gradient in place."""
    monkeypatch.setattr(loss, "_kernel", lambda *_: lambda logits, *_more: logits.sum())
    hidden, weight, _, labels = make(torch.float32)
    with LiveChunks(4 * VOCAB) as chunks:
        linear_cross_entropy(hidden, weight, labels, factor=factor, chunk_logits=4 * VOCAB)
    assert chunks.most == 1


def test_in_bf16_many_chunks_lose_no_more_than_one() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(512, 64).bfloat16().requires_grad_()
    weight = torch.randn(100, 64).bfloat16().requires_grad_()
    labels = torch.randint(0, 100, (512,))
    exact = torch.autograd.grad(
        plain(hidden.float(), weight.float(), None, labels, None, 1.0), [weight]
    )[0]  # fmt: skip
    errors = []
    for rows in (512, 8):
        weight.grad = None
        linear_cross_entropy(hidden, weight, labels, chunk_logits=rows * 100)[0].backward()
        assert weight.grad is not None
        errors.append(((weight.grad.float() - exact).norm() / exact.norm()).item())
    assert errors[1] < 2 * errors[0] < 0.02


def test_only_ignored_labels_give_zero_loss_and_gradient() -> None:
    hidden, weight, _, labels = make(torch.float32)
    scaled, total = linear_cross_entropy(hidden, weight, torch.full_like(labels, IGNORED))
    scaled.backward()
    assert total.item() == 0
    assert hidden.grad is not None and hidden.grad.abs().max() == 0
