"""Find the active jobs whose state may have to change, without a look at all of them in every cycle."""

from collections.abc import Iterable
from uuid import UUID

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from controlplane.models import Cluster, Project
from controlplane.models.prepared import Rows, prepared
from jobs import lifecycle
from jobs.change_list import Changed, Moment, among, array_of, changes_since
from jobs.models import Job, Pod

_ENDED = Q(released_at__isnull=False) | Q(state__in=("succeeded", "failed"))
_BEGUN = ~Q(reason="") | Q(state="running")
_HAS_LIMIT = (
    Q(max_runtime_seconds__gt=0)
    | Q(project__interactive_max_seconds__gt=0)
    | Q(project__interactive_idle_seconds__gt=0)
)


class UnsettledJobs:
    """The unsettled jobs of one cluster: stopping jobs; jobs with an ended pod in the current attempt; starting jobs
    with a pod that runs or reports a reason; jobs under a time limit. Used by one thread."""

    def __init__(self) -> None:
        self._since: Moment | None = None
        self._found: frozenset[UUID] = frozenset()
        self._limits: list[tuple[int, ...]] = []

    def read(self, cluster: Cluster) -> list[Job]:
        """Return the unsettled jobs by primary key, which is the order of locks. On PostgreSQL only jobs that were
        unsettled before, and jobs that changed or whose pods changed, are examined."""
        following, changed = changes_since(self._since, Changed.ROW_OR_PODS)
        limits = [] if following is None else _limits(cluster.pk)
        if changed is None or limits != self._limits:
            jobs = _all(cluster.pk)
        else:
            jobs = _of(cluster.pk, self._found.union(map(UUID, changed)))
        self._since, self._limits, self._found = following, limits, frozenset(job.pk for job in jobs)
        return jobs


@prepared
def _limits(cluster: int) -> Rows[Project]:
    """Return the time limits of the projects that have any. A change of them lists no job."""
    has_limit = Q(interactive_max_seconds__gt=0) | Q(interactive_idle_seconds__gt=0)
    columns = ("pk", "interactive_max_seconds", "interactive_idle_seconds")
    return Project.objects.filter(has_limit, cluster=cluster).order_by("pk").values_list(*columns)


@prepared
def _all(cluster: int) -> QuerySet[Job]:
    active = Job.objects.filter(project__cluster=cluster, state__in=lifecycle.ACTIVE_STATES)
    pods = Pod.objects.filter(job__project__cluster=cluster, job__state__in=lifecycle.ACTIVE_STATES)
    of_attempt = pods.filter(attempt__number=F("job__attempt"))
    ended = of_attempt.filter(_ENDED)
    begun = of_attempt.filter(_BEGUN, job__state=lifecycle.STARTING)
    others = active.filter(Q(state=lifecycle.STOPPING) | _HAS_LIMIT)
    # A union: PostgreSQL would join all pods of active jobs for one subquery with both conditions on pods, and start
    # parallel workers for one condition on all active jobs.
    unsettled = others.values("pk").union(ended.values("job"), begun.values("job"))
    # Every writer of several job rows locks them in key order, so that writers cannot deadlock.
    return Job.objects.filter(pk__in=unsettled).order_by("pk").select_related("project", "user")


def _of(cluster: int, jobs: Iterable[UUID]) -> list[Job]:
    """Return those of these jobs that are unsettled."""
    keys = array_of(jobs)
    return [] if keys == "{}" else _some(cluster, keys)


@prepared
def _some(cluster: int, jobs: str) -> QuerySet[Job]:
    active = Job.objects.filter(
        pk__in=among(jobs), project__cluster=cluster, state__in=lifecycle.ACTIVE_STATES
    )
    pods = Pod.objects.filter(job=OuterRef("pk"), attempt__number=OuterRef("attempt"))
    unsettled = active.filter(
        Q(state=lifecycle.STOPPING)
        | _HAS_LIMIT
        | Exists(pods.filter(_ENDED))
        | (Q(state=lifecycle.STARTING) & Exists(pods.filter(_BEGUN)))
    )
    return unsettled.order_by("pk").select_related("project", "user")
