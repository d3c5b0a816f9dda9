"""Hooks by which an app counts, guards and removes its data when a project is deleted or moved, a cluster
detached, or a node pool deleted; declared as `HOLDINGS` in its module `holdings`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from controlplane.models import Cluster, NodePool, Project
from controlplane.registration import app_modules


class Holdings:
    """What one app keeps in projects and on clusters. An app overrides the hooks that concern it; by default each
    hook reports nothing and does nothing. The `check_` methods raise Conflict to refuse the operation."""

    # Kinds of work that a project can restrict to node pools, and those of them that are always displayed.
    kinds: tuple[str, ...] = ()
    shown_kinds: tuple[str, ...] = ()

    def statuses(self, project_ids: list[int]) -> Mapping[int, Mapping[str, int]]:
        """Return for each project id its `allocated` and `waiting` milli-GPUs and its numbers of `running` and
        `queued` jobs. Projects without unfinished work may be missing."""
        return {}

    def counts(self, project: Project) -> Mapping[str, int]:
        """Return the number of objects that would be deleted with the project or that forbid its deletion, by REST
        field name."""
        return {}

    def check_deletion(self, project: Project) -> None: ...

    def check_move(self, project: Project) -> None:
        """Raise Conflict if the project may not move to another cluster. Changes nothing."""

    def leave(self, project: Project) -> None:
        """Record what must be removed from the old cluster when the project moves to another. Runs in the caller's
        transaction."""

    def remove(self, project: Project, actor: Any) -> None:
        """Delete the app's data that deleting the project's row does not cascade to. Runs in the caller's
        transaction. `actor`: a `controlplane.access.Actor`; this module cannot import that type."""

    def check_detach(self, cluster: Cluster) -> None: ...

    def check_pool_deletion(self, pool: NodePool) -> None: ...

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


def project_statuses(project_ids: Iterable[int]) -> Mapping[int, Mapping[str, int]]:
    """Return the sums of `Holdings.statuses` over all apps, by project id. Projects without unfinished work are left
    out."""
    ids, sums = list(project_ids), dict[int, Counter[str]]()
    for one in holdings():
        for pk, status in one.statuses(ids).items():
            sums.setdefault(pk, Counter()).update(status)
    return dict(sums)


def counts_of(project: Project) -> dict[str, Any]:
    return {name: count for one in holdings() for name, count in one.counts(project).items()}
