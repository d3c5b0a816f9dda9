"""What datasets, volumes and snapshots keep in projects."""

from controlplane.actions.errors import Conflict
from controlplane.app_holdings import Holdings
from controlplane.models import Project
from datasets.actions.caches import lose_volume
from datasets.models import DatasetVersion
from datasets.queries.caches import users_of, uses_of


class DataHoldings(Holdings):
    def check_deletion(self, project: Project) -> None:
        _refuse_volumes(project, "; delete them first.")
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
        _refuse_volumes(project, words)

    def leave(self, project: Project) -> None:
        lose_volume(project)


def _refuse_volumes(project: Project, words: str) -> None:
    volumes, snapshots = project.volumes.count(), project.snapshots.count()
    if volumes or snapshots:
        found = f"{project.name} has {volumes} volumes and {snapshots} snapshots{words}"
        raise Conflict("project_has_volumes", found)


HOLDINGS = DataHoldings()
