"""Who this process is among the ranks: read from Ray Train in a job, from the environment under torchrun and in tests."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """One process's place. ``node`` is a name that people know (IP address or host), ``local_*`` count within it."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    node: str
    device: torch.device

    @property
    def is_first(self) -> bool:
        """True on rank 0, which speaks for the job."""
        return self.rank == 0

    @property
    def num_nodes(self) -> int:
        """Nodes, counted by equal shares; 1 where the ranks do not divide evenly over nodes."""
        return max(1, self.world_size // self.local_world_size) if self.is_regular else 1

    @property
    def is_regular(self) -> bool:
        """True where this node's share divides the world (checked over all ranks when the mesh is made)."""
        return self.world_size % self.local_world_size == 0


def from_ray() -> Ranks:
    """This Ray Train worker's place."""
    import ray
    import ray.train
    from ray.train.torch import get_device

    context = ray.train.get_context()
    return Ranks(
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        local_rank=context.get_local_rank(),
        local_world_size=context.get_local_world_size(),
        node_rank=context.get_node_rank(),
        node=ray.util.get_node_ip_address(),
        device=get_device(),
    )


def from_environment() -> Ranks:
    """The place that torchrun (or a test) put into RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and GROUP_RANK."""
    get = os.environ.get
    world = int(get("WORLD_SIZE", "1"))
    local_rank = int(get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    return Ranks(
        rank=int(get("RANK", "0")),
        world_size=world,
        local_rank=local_rank,
        local_world_size=int(get("LOCAL_WORLD_SIZE", str(world))),
        node_rank=int(get("GROUP_RANK", "0")),
        node=socket.gethostname(),
        device=device,
    )


def broadcast_from_first(value: object, group: dist.ProcessGroup | None = None) -> object:
    """``value`` of rank 0 on every rank (any picklable object; over a CPU group)."""
    box = [value]
    dist.broadcast_object_list(box, src=0, group=group, device=torch.device("cpu"))
    return box[0]
