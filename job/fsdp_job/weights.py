"""Memory and values for a sharded model: no rank ever holds more than one block in full."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from fsdp_job.errors import ModelError
from fsdp_job.model import BuiltModel
from fsdp_job.ranks import Ranks


def materialize(root: nn.Module, built: BuiltModel, device: torch.device) -> None:
    """Give the meta parameters memory for this rank's shards, put the buffers' values back and tie what was tied."""
    shared = _shared_parameters(built.model)
    root.to_empty(device=device)
    for places in shared:
        (owner, first), *others = places
        for module, name in others:
            setattr(module, name, getattr(owner, first))
    for name, value in built.buffers.items():
        built.model.get_buffer(name).copy_(value)
    # FSDP looks up its sharded parameters again, now that tied ones are one object.
    root._apply(lambda tensor: tensor)


def _shared_parameters(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((module, name))
    return [found for found in places.values() if len(found) > 1]


def initialize(built: BuiltModel, device: torch.device, seed: int) -> None:
    """Random weights by the architecture's own rule, the same at every world size and sharding.

    Unit by unit (each block, then the rest): full tensors, drawn with a generator seeded by (seed, unit), then this
    rank's slice of each is kept.
    """
    done: set[int] = set()
    units = [(f"block-{number}", block) for number, block in enumerate(built.blocks)] + [("rest", built.model)]
    for unit, module in units:
        todo = {id(p): p for p in module.parameters() if id(p) not in done}
        done |= todo.keys()
        _initialize_unit(built.model, module, todo, device, _seed_of(seed, unit))


def _seed_of(seed: int, unit: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{unit}".encode()).digest()[:7], "big")


def _initialize_unit(
    model: Any, module: nn.Module, todo: dict[int, nn.Parameter], device: torch.device, seed: int
) -> None:
    full = {key: nn.Parameter(torch.empty(p.shape, dtype=torch.float32, device=device)) for key, p in todo.items()}
    places = [
        (part, name, id(p))
        for part in module.modules()
        for name, p in part._parameters.items()
        if p is not None and id(p) in todo
    ]
    touched = {id(part) for part, _, _ in places}
    for part, name, key in places:
        part._parameters[name] = full[key]
    cuda = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda), torch.no_grad():
        torch.manual_seed(seed)
        # Children before their parents: some architectures set a child's weight from the parent's rule.
        for part in reversed(list(module.modules())):
            if id(part) in touched or any(id(child) in touched for child in part.children()):
                model._init_weights(part)
        for part, name, key in places:
            part._parameters[name] = todo[key]
        for key, parameter in todo.items():
            _keep_slice(parameter, full[key].data)


def _keep_slice(parameter: nn.Parameter, full: torch.Tensor) -> None:
    """Copy this rank's part of ``full``, which every rank has computed alike, into the parameter."""
    data = parameter.data
    if isinstance(data, DTensor):
        same = DTensor.from_local(full, data.device_mesh, [Replicate()] * data.device_mesh.ndim, run_check=False)
        data.to_local().copy_(same.redistribute(placements=data.placements).to_local())
    else:
        data.copy_(full)


def load_pretrained(built: BuiltModel, ranks: Ranks, mesh: DeviceMesh) -> None:
    """Published weights: rank 0 reads them once for the whole job and each tensor is scattered as shards.

    Once a node would ask the hub as often as there are nodes, over one NAT gateway, and hold the model in every node's memory;
    between the ranks a shard travels once either way.
    transformers itself reads (and renames and converts) the files, on rank 0's CPU and in the files' own precision.
    """
    from transformers import AutoModelForCausalLM

    state: dict[str, torch.Tensor] = {}
    problem: str | None = None
    if ranks.is_first:
        try:
            whole = AutoModelForCausalLM.from_pretrained(built.source or "", dtype="auto", low_cpu_mem_usage=True)
            state = {name: p.data for name, p in whole.named_parameters()}
            missing = [name for name, _ in built.model.named_parameters() if name not in state]
            problem = f"the weights of {built.source} lack {missing[:3]}" if missing else None
        except (OSError, ValueError) as error:
            problem = f"cannot read the weights of {built.source}: {error}"
    from fsdp_job.ranks import broadcast_from_first

    problem = str(broadcast_from_first(problem) or "")
    if problem:
        raise ModelError(problem)
    with torch.no_grad():
        for name, parameter in built.model.named_parameters():
            data = parameter.data
            assert isinstance(data, DTensor)
            local_source = state.pop(name) if ranks.is_first else torch.empty(0)
            source = _full_tensor(local_source, parameter.shape, ranks)
            sharded = distribute_tensor(source, mesh, data.placements, src_data_rank=0)
            data.to_local().copy_(sharded.to_local())


def _full_tensor(source: torch.Tensor, shape: torch.Size, ranks: Ranks) -> torch.Tensor:
    """Rank 0's tensor in fp32 on the device; elsewhere an empty one of that shape (its values are never read)."""
    if ranks.is_first:
        return source.to(device=ranks.device, dtype=torch.float32)
    return torch.empty(shape, dtype=torch.float32, device=ranks.device)
