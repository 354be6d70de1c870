"""Compile a block with its small matrix products of one input computed as one.

Queries, keys and values are three products of one hidden state; with few key and value heads two of them are so narrow
that they run at a third of the chip's rate (measured on H200: 250 of 780 TFLOP/s at 256 columns). They are joined in the
compiler's graph, so parameters, their names, checkpoints and exports stay what they are; the price is a copy of the
weights side by side, a few µs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

NARROW = 1024
"""Products with at most this many columns are worth joining with others of the same input."""

_LINEAR = {F.linear, torch._C._nn.linear}


def join_products(module: fx.GraphModule) -> int:
    """Join linear products of the same input in this graph and the graphs inside it (in place); returns how many joined.

    Groups of at least two with one of at most ``NARROW`` columns; gradients are those of the separate products, up to
    the rounding of the input's (one product's sum instead of the sum of several rounded ones).
    """
    joined = 0
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            found = _join(part)
            if found:
                part.recompile()
            joined += found
    return joined


def _join(module: fx.GraphModule) -> int:
    groups: dict[tuple[fx.Node, bool], list[fx.Node]] = {}
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in _LINEAR:
            _, weight, bias = _operands(node)
            given = [weight] if bias is None else [weight, bias]
            if all(
                isinstance(x, fx.Node) and x.op in ("placeholder", "get_attr") and "example_value" in x.meta
                for x in given
            ):
                groups.setdefault((_operands(node)[0], bias is None), []).append(node)
    joined = 0
    for (source, plain), nodes in groups.items():
        columns = [_operands(node)[1].meta["example_value"].shape[0] for node in nodes]
        if len(nodes) < 2 or min(columns) > NARROW:
            continue
        joined += len(nodes)
        with module.graph.inserting_before(nodes[0]):
            weights = module.graph.call_function(torch.cat, ([_operands(node)[1] for node in nodes],))
            bias = None if plain else module.graph.call_function(torch.cat, ([_operands(node)[2] for node in nodes],))
            whole = module.graph.call_function(F.linear, (source, weights, bias))
            parts = module.graph.call_function(torch.split, (whole, columns), {"dim": -1})
            items = [module.graph.call_function(_part, (parts, number)) for number in range(len(nodes))]
        for node, item in zip(nodes, items, strict=True):
            node.replace_all_uses_with(item)
            module.graph.erase_node(node)
    return joined


def _part(parts: tuple[torch.Tensor, ...], number: int) -> torch.Tensor:
    """A copy, so that what the backward pass keeps of one part does not keep them all."""
    return parts[number].contiguous()


def _operands(node: fx.Node) -> tuple[Any, Any, Any]:
    """(input, weight, bias or None) of a linear node."""
    given = [*node.args, None, None, None][:3]
    return node.kwargs.get("input", given[0]), node.kwargs.get("weight", given[1]), node.kwargs.get("bias", given[2])


def backend(module: fx.GraphModule, inputs: list[Any]) -> Any:
    """A backend of torch.compile: inductor after ``join_products``."""
    from torch._inductor.compile_fx import compile_fx

    join_products(module)
    return compile_fx(module, inputs)
