"""Join the other ranks of a job, whatever started them: torchrun, an MPI launcher, Trainyard's own pods, or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import distributed
from torch._C._distributed_c10d import HashStore

DEFAULT_PORT = "29400"
# (rank, world size, rank on this node) as each launcher names them; the first whose names are all set counts
LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),  # Open MPI
    # MPICH and Intel MPI.
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process stands among the ranks of its job."""

    rank: int
    world_size: int
    local_rank: int

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def place_from(env: Mapping[str, str]) -> Place:
    """Return the place that a launcher gave this process, rank 0 of 1 where none did. Raises ValueError for a rank that
    is not below the world size."""
    for rank_name, size_name, local_name in LAUNCHERS:
        if rank_name in env and size_name in env:
            place = Place(int(env[rank_name]), int(env[size_name]), int(env.get(local_name, "0")))
            if not 0 <= place.rank < place.world_size:
                raise ValueError(f"{rank_name}={place.rank} is not below {size_name}={place.world_size}.")
            return place
    return Place(0, 1, 0)


@contextmanager
def joined_ranks(device: torch.device) -> Iterator[Place]:
    """Join the process group for the time of a `with` block: NCCL on GPUs, gloo on CPUs. A lone rank joins a group of
    one, so that programs have one path. MASTER_ADDR and MASTER_PORT say where rank 0 listens."""
    place = place_from(os.environ)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", DEFAULT_PORT)
    backend = "nccl" if device.type == "cuda" else "gloo"
    # a lone rank needs no port, which another program could hold
    store = HashStore() if place.world_size == 1 else None
    distributed.init_process_group(
        backend,
        rank=place.rank,
        world_size=place.world_size,
        store=store,
        device_id=device if device.type == "cuda" else None,
    )
    try:
        yield place
    finally:
        distributed.destroy_process_group()
