"""Record GPU capacity and allocation as change points: one row per change gives exact values over any range."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime

from django.db.models import OuterRef, QuerySet, Subquery, Sum

from controlplane.models import Cluster, Device, Project, Sample
from controlplane.models.prepared import AnyModel, Rows, prepared
from controlplane.telemetry.metrics import CHANGE_POINT, GPU_CAPACITY, GPUS_ALLOCATED
from jobs.models import Allocation


def record_allocation(now: datetime, changes: Mapping[int, int] | None = None) -> None:
    """Write a change point, at the time `now`, for every project and cluster whose allocated GPUs differ from its last
    change point. Call it in the transaction that takes or releases allocations, after the write.

    `changes`: milli-GPUs that the transaction took (negative: released), by project id; they are added to the last
    change points. Concurrent transactions on one project may each miss the other's change, so without `changes` the
    allocations of all are summed, once a minute.
    """
    if changes is None:
        _write(GPUS_ALLOCATED, "project", _last_of_projects(), dict(_held_by_project()), now)
        _write(GPUS_ALLOCATED, "cluster", _last_of_clusters(), dict(_held_by_cluster()), now)
        return
    # The sums read every allocation of the cluster: 12 ms for 10,000.
    projects = Project.objects.filter(pk__in=[key for key, milli in changes.items() if milli])
    by_cluster: dict[int, int] = defaultdict(int)
    for key, cluster in projects.values_list("pk", "cluster"):
        by_cluster[cluster] += changes[key]
    for by, last, more in (
        ("project", _last_of(projects), changes),
        ("cluster", _last_of(Cluster.objects.filter(pk__in=by_cluster)), by_cluster),
    ):
        rows = list(last)
        held = {key: round(1000 * (before or 0)) + more[key] for key, _, before, _ in rows}
        _write(GPUS_ALLOCATED, by, rows, held, now)


@prepared
def _held_by_project() -> Rows[Allocation]:
    held = Allocation.objects.filter(released_at=None).values_list("pod__job__project_id")
    return held.annotate(sum=Sum("milli_gpus")).order_by()


@prepared
def _held_by_cluster() -> Rows[Device]:
    devices = Device.objects.values_list("node__cluster_id")
    return devices.annotate(sum=Sum("allocated_milli")).order_by()


@prepared
def _last_of_projects() -> Rows[Project]:
    return _last_of(Project.objects.all())


@prepared
def _last_of_clusters() -> Rows[Cluster]:
    return _last_of(Cluster.objects.all())


def _last_of(subjects: QuerySet[AnyModel]) -> Rows[AnyModel]:
    # The subject is a project's name, so that the history of a deleted project can still be drawn.
    return _with_last(GPUS_ALLOCATED, subjects.model._meta.model_name or "", subjects)


def record_capacity(cluster: Cluster, now: datetime) -> None:
    """Write a change point if the number of GPUs on the cluster's ready nodes differs from its last one.

    Call it in the transaction that changes nodes, after the write.
    """
    gpus = Device.objects.filter(node__cluster=cluster, node__is_ready=True).count()
    last = _with_last(GPU_CAPACITY, "cluster", Cluster.objects.filter(pk=cluster.pk))
    _write(GPU_CAPACITY, "cluster", last, {cluster.pk: gpus * 1000}, now)


def _with_last(metric: str, by: str, subjects: QuerySet[AnyModel]) -> Rows[AnyModel]:
    """Return (id, name, last value, time of the last value) of `metric` for each subject; the values are None
    without a change point. `by`: the kind of subject, such as "project". The index of Sample serves each look-up."""
    points = Sample.objects.filter(metric=metric, by=by, subject=OuterRef("name"), step_seconds=CHANGE_POINT)
    newest = points.order_by("-at")
    columns = {"last": Subquery(newest.values("total")[:1]), "last_at": Subquery(newest.values("at")[:1])}
    rows: Rows[AnyModel] = subjects.annotate(**columns).values_list("pk", "name", *columns)
    return rows


def _write(
    metric: str,
    by: str,
    subjects: Iterable[tuple[int, str, float | None, datetime | None]],
    held: dict[int, int],
    now: datetime,
) -> None:
    points = []
    for key, name, last, last_at in subjects:
        gpus = held.get(key, 0) / 1000
        if gpus != (last or 0):
            # Not before the last point, in case the clock was set back.
            points.append(_point(metric, by, name, gpus, max(now, last_at) if last_at else now))
    Sample.objects.bulk_create(
        points,
        update_conflicts=True,
        unique_fields=["metric", "by", "subject", "step_seconds", "at"],
        update_fields=["minimum", "maximum", "total"],
    )


def _point(metric: str, by: str, subject: str, gpus: float, at: datetime) -> Sample:
    return Sample(
        metric=metric,
        by=by,
        subject=subject,
        step_seconds=CHANGE_POINT,
        at=at,
        minimum=gpus,
        maximum=gpus,
        total=gpus,
    )
