"""MPI: a launcher starts one rank in each of `workers` pods. The launcher runs in the pod of rank 0, which is a rank as
well, so a gang is made of equal pods and no pod without a GPU waits beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.kinds.base import Batch, PodEnd, PodShape

LAUNCHER_RANK = 0


@dataclass(frozen=True, slots=True)
class Mpi(Batch):
    """See jobs.kinds.base.Kind."""

    name: str = "mpi"
    label: str = "MPI"

    def pods(self, spec: Mapping[str, Any]) -> tuple[PodShape, ...]:
        hosts = (PodShape(rank, "worker", is_host=True) for rank in range(1, spec["workers"]))
        return (PodShape(LAUNCHER_RANK, "launcher", is_launcher=True), *hosts)

    def outcome(self, ends: Sequence[PodEnd]) -> str | None:
        """The launcher's end decides: it starts and collects the ranks. A lost host is a failure before that."""
        launcher = next((end for end in ends if end.rank == LAUNCHER_RANK), None)
        if launcher is not None and launcher.state in ("succeeded", "failed"):
            return launcher.state
        return "failed" if any(end.state == "failed" for end in ends) else None
