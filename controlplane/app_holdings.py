"""Hooks by which an app counts, guards and removes its data when a project is deleted or moved, or a cluster
detached; declared as `HOLDINGS` in its module `holdings`."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from controlplane.models import Cluster, Project
from controlplane.registration import app_modules


class Holdings:
    """The hooks of one app, which overrides those that concern it; the `check_` methods raise Conflict to refuse the
    operation."""

    # Kinds of work that a project can restrict to node pools, and those of them that are always displayed.
    kinds: tuple[str, ...] = ()
    shown_kinds: tuple[str, ...] = ()

    def statuses(self, project_ids: list[int]) -> Mapping[int, Mapping[str, int]]:
        """Return sums by project id: `allocated` and `waiting` in milli-GPUs, and the numbers of `running`
        and `queued` jobs."""
        return {}

    def counts(self, project: Project) -> Mapping[str, int]:
        """Return by REST field name how many objects would be deleted with the project, or forbid its deletion."""
        return {}

    def check_deletion(self, project: Project) -> None: ...

    def check_move(self, project: Project) -> None:
        """Raise Conflict if the project may not move to another cluster."""

    def leave(self, project: Project) -> None:
        """Record, in the caller's transaction, what has to be removed from the old cluster when the project
        moves to another."""

    def remove(self, project: Project, actor: Any) -> None:
        """Delete, in the caller's transaction, what the database does not delete with the project by itself.

        `actor`: a `controlplane.access.Actor`; this module cannot import that type.
        """

    def check_detach(self, cluster: Cluster) -> None: ...

    def pods_on(self, cluster: Cluster) -> int:
        """Return the number of pods on the cluster that are not proven gone."""
        return 0


@cache
def holdings() -> tuple[Holdings, ...]:
    return tuple(module.HOLDINGS for module in app_modules("holdings"))


def known_kinds() -> list[str]:
    return sorted(kind for one in holdings() for kind in one.kinds)


def shown_kinds() -> list[str]:
    return [kind for one in holdings() for kind in one.shown_kinds]


def project_statuses(project_ids: Iterable[int]) -> dict[int, Mapping[str, int]]:
    """Return `Holdings.statuses` by project id. Projects without unfinished work are left out. At most one app may
    report a project: reports are not added up."""
    ids = list(project_ids)
    return {pk: status for one in holdings() for pk, status in one.statuses(ids).items()}


def counts_of(project: Project) -> dict[str, Any]:
    return {name: count for one in holdings() for name, count in one.counts(project).items()}
