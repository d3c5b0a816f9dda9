"""Train: runs to its end, in one pod or in a gang of equal workers; may borrow, and may be preempted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.kinds.base import PodEnd, PodShape, all_must_succeed, refuse_worker_bounds
from jobs.kinds.checks import FieldError


@dataclass(frozen=True, slots=True)
class Train:
    """See jobs.kinds.base.Kind."""

    name: str = "train"
    label: str = "Train"
    is_preemptible: bool = True
    priority: int = 50
    has_interactive_limits: bool = False

    def check(self, spec: Mapping[str, Any], body: Mapping[str, Any]) -> list[FieldError]:
        return refuse_worker_bounds(spec)

    def pods(self, spec: Mapping[str, Any]) -> tuple[PodShape, ...]:
        return tuple(PodShape(rank, "worker") for rank in range(spec["workers"]))

    def outcome(self, ends: Sequence[PodEnd]) -> str | None:
        return all_must_succeed(ends)
