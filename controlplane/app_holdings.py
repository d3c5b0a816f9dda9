"""What apps keep in projects and on clusters. An app declares it as `HOLDINGS` of its `holdings`."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from controlplane.models import Cluster, Project
from controlplane.registration import app_modules


class Holdings:
    """What one app keeps; it overrides what concerns it. Each `check_` raises Conflict."""

    # Kinds of work that a project may tie to node pools, and those of them that are always shown.
    kinds: tuple[str, ...] = ()
    shown_kinds: tuple[str, ...] = ()

    def statuses(self, project_ids: list[int]) -> Mapping[int, Mapping[str, int]]:
        """Return sums by project: `allocated` and `waiting` in milli-GPUs, jobs `running` and `queued`."""
        return {}

    def counts(self, project: Project) -> Mapping[str, int]:
        """Return what a deletion of the project removes or is refused for, by REST's names."""
        return {}

    def check_deletion(self, project: Project) -> None: ...

    def check_move(self, project: Project) -> None:
        """Check that the project may go to another cluster."""

    def leave(self, project: Project) -> None:
        """Record what the project loses in its cluster when it moves to another one, in the caller's transaction."""

    def remove(self, project: Project, actor: Any) -> None:
        """Delete what the database does not delete with the project, in the caller's transaction. `actor`: of
        `controlplane.access`, which is above this module."""

    def check_detach(self, cluster: Cluster) -> None: ...

    def pods_on(self, cluster: Cluster) -> int:
        """Return the number of pods that hold resources there."""
        return 0


@cache
def holdings() -> tuple[Holdings, ...]:
    return tuple(module.HOLDINGS for module in app_modules("holdings"))


def known_kinds() -> list[str]:
    return sorted(kind for one in holdings() for kind in one.kinds)


def shown_kinds() -> list[str]:
    return [kind for one in holdings() for kind in one.shown_kinds]


def project_statuses(project_ids: Iterable[int]) -> dict[int, Mapping[str, int]]:
    """Return each project's sums over its unfinished work; omits projects without any."""
    ids = list(project_ids)
    return {pk: status for one in holdings() for pk, status in one.statuses(ids).items()}


def counts_of(project: Project) -> dict[str, Any]:
    return {name: count for one in holdings() for name, count in one.counts(project).items()}
