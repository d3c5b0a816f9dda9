"""Refuse to remove projects and node pools that datasets, volumes, snapshots or cache locations still use."""

from django.db.models import Q, QuerySet

from controlplane.actions.errors import Conflict
from controlplane.app_holdings import Holdings
from controlplane.models import NodePool, Project
from datasets.actions.caches import lose_volumes
from datasets.models import CacheLocation, DatasetVersion, Snapshot, Volume
from datasets.models.volumes import DELETING
from datasets.queries.caches import users_of, uses_of


class DataHoldings(Holdings):
    def check_deletion(self, project: Project) -> None:
        _refuse_volumes(project, project.volumes.all(), project.snapshots.all(), "; delete them first.")
        uses = uses_of(DatasetVersion.objects.filter(dataset__project=project))
        if uses.exists():
            users = users_of(uses, project)
            raise Conflict(
                "project_in_use", f"Datasets of {project.name} are used by {users}; delete it afterwards."
            )

    def check_move(self, project: Project) -> None:
        words = (
            f" in {project.cluster.name}; delete them first, or make another project in the other cluster."
        )
        # Objects that are being deleted are not counted: their deletion may never end if the cluster is gone.
        kept = ~Q(state=DELETING)
        _refuse_volumes(project, project.volumes.filter(kept), project.snapshots.filter(kept), words)

    def leave(self, project: Project) -> None:
        lose_volumes(project)

    def check_pool_deletion(self, pool: NodePool) -> None:
        locations = CacheLocation.objects.filter(cluster=pool.cluster_id).order_by("name")
        pools_of = locations.values_list("name", "node_pools")
        if names := [name for name, pools in pools_of if pool.name in pools]:
            found = f"Cache locations name {pool.name} ({', '.join(names[:5])})"
            raise Conflict("node_pool_in_use", f"{found}; take it out of their node pools first.")


def _refuse_volumes(project: Project, kept: QuerySet[Volume], taken: QuerySet[Snapshot], words: str) -> None:
    volumes, snapshots = kept.count(), taken.count()
    if volumes or snapshots:
        found = f"{project.name} has {volumes} volumes and {snapshots} snapshots{words}"
        raise Conflict("project_has_volumes", found)


HOLDINGS = DataHoldings()
