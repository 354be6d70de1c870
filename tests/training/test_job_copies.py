"""The copies between FSDP's buffers and parameters give what torch's own give, padding included."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fsdp_job import copies  # noqa: E402

SHAPES = [(8, 3), (8,), (4, 5), (12, 2)]
UNEVEN = [(7, 3), (3,), (4, 5), (1, 2)]


def _capturing(monkeypatch: pytest.MonkeyPatch, value: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: value)


@pytest.mark.parametrize("capturing", [False, True])
@pytest.mark.parametrize(("shapes", "ranks"), [(SHAPES, 2), (SHAPES, 4), (UNEVEN, 2), (UNEVEN, 4)])
def test_gradients_are_laid_out_by_rank_as_torch_does(
    shapes: list[tuple[int, ...]], ranks: int, capturing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _capturing(monkeypatch, capturing)
    tensors = [torch.randn(shape, dtype=torch.bfloat16) for shape in shapes]
    size = sum(-(-shape[0] // ranks) * torch.Size(shape).numel() // shape[0] for shape in shapes)
    theirs, ours = torch.full((ranks, size), 7.0), torch.full((ranks, size), 9.0)
    torch._chunk_cat(tensors, 0, ranks, out=theirs)
    copies.copy_in(tensors, 0, ranks, out=ours)
    assert torch.equal(theirs, ours)


@pytest.mark.parametrize("capturing", [False, True])
def test_gathered_parameters_are_taken_apart_as_torch_does(capturing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    _capturing(monkeypatch, capturing)
    gathered, sizes = torch.randn(4, 20), [3, 7, 1, 9]
    theirs, ours = ([torch.empty(4, size) for size in sizes] for _ in range(2))
    torch.split_with_sizes_copy(gathered, sizes, dim=1, out=theirs)
    copies.copy_out(gathered, sizes, 1, out=ours)
    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
