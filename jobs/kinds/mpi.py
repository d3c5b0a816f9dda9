"""The MPI kind: a launcher starts one rank in each of `workers` pods. It runs in the pod of rank 0, which is
also a worker, so that no pod of the gang waits without a GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.kinds.base import Batch, PodEnd, PodShape

LAUNCHER_RANK = 0


@dataclass(frozen=True, slots=True)
class Mpi(Batch):
    """The kind `mpi`: rank 0 runs the launcher, the other pods wait for it to start their ranks."""

    name: str = "mpi"
    label: str = "MPI"
    command: str = "submit-mpi"

    def pods(self, spec: Mapping[str, Any]) -> tuple[PodShape, ...]:
        hosts = (PodShape(rank, "worker", is_host=True) for rank in range(1, spec["workers"]))
        return (PodShape(LAUNCHER_RANK, "launcher", is_launcher=True), *hosts)

    def outcome(self, ends: Sequence[PodEnd]) -> str | None:
        """Return the state in which the launcher ended; `failed` if another pod failed before; else None."""
        # The launcher starts and collects the ranks, so its end is that of the attempt.
        launcher = next((end for end in ends if end.rank == LAUNCHER_RANK), None)
        if launcher is not None and launcher.state in ("succeeded", "failed"):
            return launcher.state
        return "failed" if any(end.state == "failed" for end in ends) else None
