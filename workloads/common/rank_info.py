"""Read the rank that a launcher assigned to this process: torchrun, an MPI launcher, Trainyard's own pods, or
none. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Variables with (rank, world size, rank on this node) by launcher; the first launcher with all variables set
# is used.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),  # Open MPI
    # MPICH and Intel MPI.
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)


@dataclass(frozen=True, slots=True)
class RankInfo:
    """The rank of a process in its job, the number of ranks, and its rank on its node."""

    rank: int
    world_size: int
    local_rank: int

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def rank_info_from(env: Mapping[str, str]) -> RankInfo:
    """Return the rank that a launcher assigned to this process, rank 0 of 1 if there is none. Raises
    ValueError for a rank that is not below the world size."""
    for rank_name, size_name, local_name in LAUNCHERS:
        if rank_name in env and size_name in env:
            rank_info = RankInfo(int(env[rank_name]), int(env[size_name]), int(env.get(local_name, "0")))
            if not 0 <= rank_info.rank < rank_info.world_size:
                raise ValueError(
                    f"{rank_name}={rank_info.rank} is not below {size_name}={rank_info.world_size}."
                )
            return rank_info
    return RankInfo(0, 1, 0)
