"""Reports what jobs still use in a project or cluster, so that removing it can be refused."""

from collections.abc import Mapping

from controlplane.access import Actor
from controlplane.actions.errors import Conflict
from controlplane.app_holdings import Holdings
from controlplane.models import Cluster, Project
from controlplane.notation import some_of
from jobs.kinds.registry import KINDS, POOL_KINDS
from jobs.lifecycle import FINAL_STATES
from jobs.models import Job, Pod
from jobs.project_status import project_sums
from jobs.transitions import remove


class JobHoldings(Holdings):
    kinds = tuple(KINDS)
    shown_kinds = tuple(kind.name for kind in POOL_KINDS)

    def statuses(self, project_ids: list[int]) -> Mapping[int, Mapping[str, int]]:
        return project_sums(project_ids)

    def counts(self, project: Project) -> Mapping[str, int]:
        jobs = Job.objects.filter(project=project)
        kept = Pod.objects.filter(job__project=project).values("job", "rank").distinct()
        return {
            "working_directories": kept.count(),
            "unfinished_jobs": jobs.unfinished().count(),
            "finished_jobs": jobs.filter(state__in=FINAL_STATES).count(),
        }

    def check_deletion(self, project: Project) -> None:
        unfinished = Job.objects.filter(project=project).unfinished().count()
        if unfinished:
            raise Conflict(
                "project_in_use", f"{project.name} has {unfinished} unfinished jobs; stop them first."
            )

    def check_move(self, project: Project) -> None:
        self.check_deletion(project)
        if finished := Job.objects.filter(project=project).count():
            raise Conflict(
                "project_has_history",
                f"The records of {finished} finished jobs of {project.name} belong to nodes of {project.cluster.name};"
                " delete them first (yard delete), or make another project there.",
            )

    def remove(self, project: Project, actor: Actor) -> None:
        for job in Job.objects.filter(project=project).select_related("project"):
            remove(job, actor)

    def check_detach(self, cluster: Cluster) -> None:
        if Job.objects.filter(project__cluster=cluster).unfinished().exists():
            words = "stop them first." if cluster.is_reachable else _way_out(cluster)
            raise Conflict("cluster_in_use", f"{cluster.name} has unfinished jobs; {words}")

    def pods_on(self, cluster: Cluster) -> int:
        return Pod.objects.filter(node__cluster=cluster, released_at=None).count()


def _way_out(cluster: Cluster) -> str:
    """Return advice on ending jobs of an unreachable cluster, whose pods cannot be proven gone."""
    held = Pod.objects.filter(released_at=None, node__cluster=cluster).order_by("node__name")
    nodes = list(held.values_list("node__name", flat=True).distinct())
    named = f" ({some_of(nodes)})" if nodes else ""
    return f"stop them, and confirm that their nodes are dead{named}, since the cluster does not answer."


HOLDINGS = JobHoldings()
