"""What datasets, volumes and snapshots keep in projects."""

from controlplane.actions.errors import Conflict
from controlplane.app_holdings import Holdings
from controlplane.models import Project
from datasets.models import DatasetVersion
from datasets.queries.caches import users_of, uses_of


class DataHoldings(Holdings):
    def check_deletion(self, project: Project) -> None:
        volumes, snapshots = project.volumes.count(), project.snapshots.count()
        if volumes or snapshots:
            raise Conflict(
                "project_has_volumes",
                f"{project.name} has {volumes} volumes and {snapshots} snapshots; delete them first.",
            )
        uses = uses_of(DatasetVersion.objects.filter(dataset__project=project))
        if uses.exists():
            users = users_of(uses, project)
            raise Conflict(
                "project_in_use", f"Datasets of {project.name} are used by {users}; delete it afterwards."
            )


HOLDINGS = DataHoldings()
