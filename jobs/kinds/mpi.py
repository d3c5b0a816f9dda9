"""MPI: a launcher starts one rank in each of `workers` pods. The launcher runs in the pod of rank 0, which is a rank as
well, so a gang is made of equal pods and no pod without a GPU waits beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.kinds.base import PodEnd, PodShape, refuse_worker_bounds
from jobs.kinds.checks import FieldError

LAUNCHER_RANK = 0


@dataclass(frozen=True, slots=True)
class Mpi:
    """See jobs.kinds.base.Kind."""

    name: str = "mpi"
    label: str = "MPI"
    is_preemptible: bool = True
    priority: int = 50
    has_interactive_limits: bool = False

    def check(self, spec: Mapping[str, Any], body: Mapping[str, Any]) -> list[FieldError]:
        return refuse_worker_bounds(spec)

    def pods(self, spec: Mapping[str, Any]) -> tuple[PodShape, ...]:
        hosts = (PodShape(rank, "worker", is_host=True) for rank in range(1, spec["workers"]))
        return (PodShape(LAUNCHER_RANK, "launcher", is_launcher=True), *hosts)

    def outcome(self, ends: Sequence[PodEnd]) -> str | None:
        """The launcher's end decides: it starts and collects the ranks. A lost host is a failure before that."""
        launcher = next((end for end in ends if end.rank == LAUNCHER_RANK), None)
        if launcher is not None and launcher.state in ("succeeded", "failed"):
            return launcher.state
        return "failed" if any(end.state == "failed" for end in ends) else None
