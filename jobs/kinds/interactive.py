"""The interactive kind: a user works in it. Never preempted, and therefore limited to the project's quota."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.fields import FieldError
from jobs.kinds.base import Batch, refuse_worker_bounds


@dataclass(frozen=True, slots=True)
class Interactive(Batch):
    """The kind `interactive`: one pod, high priority, and the time and idle limits of the project."""

    name: str = "interactive"
    label: str = "Interactive"
    is_preemptible: bool = False
    priority: int = 100
    has_interactive_limits: bool = True
    reports_progress: bool = False
    pools_label: str = "Node pools for interactive work"
    command_flags: tuple[str, ...] = ("--interactive",)

    def check(self, spec: Mapping[str, Any], body: Mapping[str, Any]) -> list[FieldError]:
        errors = refuse_worker_bounds(spec)
        if spec["workers"] > 1:
            errors.append(FieldError("/workers", "one_worker", "An interactive job has exactly one worker."))
        if body.get("preemptible") is True:
            errors.append(
                FieldError(
                    "/preemptible",
                    "never_preemptible",
                    "An interactive job is never preempted; leave it out.",
                )
            )
        return errors
