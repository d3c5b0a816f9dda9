"""Read the overview's numbers and lists. The database computes the sums, so they are exact for any number of
rows; callers limit the lists.

`sees`: the projects whose jobs may be listed, None for all.
"""

import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, F, Min, Q, QuerySet, Sum

from controlplane.models import Device, Node, Project
from controlplane.notation import decimal
from controlplane.scheduling.mentions import Sees
from jobs.lifecycle import ACTIVE_STATES, QUEUED
from jobs.models import Allocation, Job, Pod
from jobs.queries import reason_of

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeviceSums:
    """Sums over all devices. A device without a measurement counts as neither idle nor busy. `held_milli`: allocated
    milli-GPUs. `measured`: the number of devices with a measured utilisation, `use`: the sum of these utilisations (0
    to 1 each). `used_mib`: memory in use."""

    gpus: int
    held_milli: int
    # Allocated on devices whose last measurement was 0.
    idle_milli: int
    measured: int
    use: float
    # Devices whose last measurement was above 0.
    busy: int
    used_mib: int
    # Memory of the devices whose memory use is measured.
    known_mib: int


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """Numbers of nodes. `cordoned`: nodes that are ready but cordoned."""

    nodes: int
    ready: int
    cordoned: int


@dataclass(frozen=True, slots=True)
class JobGroup:
    """The number of jobs of one project, kind and state. Each active state of a project has a group of its own, with
    `is_queued` False."""

    is_queued: bool
    project: str
    kind: str
    count: int
    # When the group's first job was queued.
    oldest: datetime

    def is_in(self, sees: Sees) -> bool:
        return sees is None or self.project in sees


def device_sums() -> DeviceSums:
    idle, measured = Q(utilization=0.0), Q(memory_used_mib__isnull=False)
    sums = Device.objects.aggregate(
        gpus=Count("pk"),
        held_milli=Sum("allocated_milli", default=0),
        idle_milli=Sum("allocated_milli", filter=idle, default=0),
        measured=Count("utilization"),
        use=Sum("utilization", default=0.0),
        busy=Count("pk", filter=Q(utilization__gt=0)),
        used_mib=Sum("memory_used_mib", default=0),
        known_mib=Sum("memory_mib", filter=measured, default=0),
    )
    return DeviceSums(**sums)


def node_counts() -> NodeCounts:
    ready = Q(is_ready=True, cluster__is_reachable=True)
    closed = Q(is_cordoned=True) | Q(is_closed=True)
    counts = Node.objects.aggregate(
        nodes=Count("pk"), ready=Count("pk", filter=ready), cordoned=Count("pk", filter=ready & closed)
    )
    return NodeCounts(**counts)


def device_models(most: int) -> list[tuple[str, int]]:
    """Return (model, memory in MiB) of the `most` most frequent kinds of device, the most frequent first."""
    found = Device.objects.values_list("model", "memory_mib").annotate(count=Count("pk"))
    return [(model, memory) for model, memory, _ in found.order_by("-count", "model", "memory_mib")[:most]]


def job_groups() -> list[JobGroup]:
    """Return the numbers of queued and of active jobs by project, kind and state."""
    shown = Job.objects.filter(state__in=(QUEUED, *ACTIVE_STATES))
    rows = shown.values_list("state", "project__name", "kind").order_by()
    return [
        JobGroup(state == QUEUED, project, kind, count, oldest)
        for state, project, kind, count, oldest in rows.annotate(count=Count("pk"), oldest=Min("queued_at"))
    ]


def held_by_project() -> dict[int, int]:
    """Return the allocated milli-GPUs by project id; omits projects without any."""
    live = Allocation.objects.filter(released_at=None).values_list("pod__job__project_id")
    return dict(live.annotate(held=Sum("milli_gpus")).order_by())


def project_shares() -> dict[str, Row]:
    """Return each project by name, sorted: {"name", "gpu_quota", "allocated_gpus", "fair_share_gpus", "palette_index"
    (its colour)}, in GPUs."""
    held = held_by_project()
    columns = ("id", "name", "gpu_quota_milli", "fair_share_milli", "palette_index")
    return {
        row["name"]: {
            "name": row["name"],
            "gpu_quota": decimal(row["gpu_quota_milli"]),
            "allocated_gpus": decimal(held.get(row["id"], 0)),
            "fair_share_gpus": decimal(row["fair_share_milli"]),
            "palette_index": row["palette_index"],
        }
        for row in Project.objects.order_by("name").values(*columns)
    }


def totals(devices: DeviceSums, nodes: NodeCounts, jobs: Sequence[JobGroup]) -> Row:
    """Return the cluster's totals in the form of the REST API."""
    counts = Counter[bool]()
    for group in jobs:
        counts[group.is_queued] += group.count
    return {
        "nodes": nodes.nodes,
        "nodes_ready": nodes.ready,
        "gpus": devices.gpus,
        "gpus_allocated": decimal(devices.held_milli),
        "gpus_idle_allocated": decimal(devices.idle_milli),
        "gpu_utilization": _ratio(devices.use, devices.measured),
        "gpu_memory_utilization": _ratio(devices.used_mib, devices.known_mib),
        "jobs_running": counts[False],
        "jobs_queued": counts[True],
    }


def idle_jobs(sees: Sees, most: int) -> list[str]:
    """Return the names of at most `most` jobs, of projects in `sees` (None: all), that hold a device at 0 %
    utilisation, sorted."""
    idle = Allocation.objects.filter(released_at=None, device__utilization=0.0)
    if sees is not None:
        idle = idle.filter(pod__job__project__name__in=sees)
    names = idle.values_list("pod__job__name", flat=True).distinct().order_by("pod__job__name")
    return list(names[:most])


def running_rows(sees: Sees, most: int) -> list[Row]:
    """Return at most `most` active jobs of projects in `sees` (None: all): starting ones first, then the latest
    started. Two queries."""
    jobs = _visible(Job.objects.filter(state__in=ACTIVE_STATES), sees)
    rows = list(
        _columns(jobs.order_by(F("started_at").desc(nulls_first=True), "name")[:most], _RUNNING_COLUMNS)
    )
    where = _nodes_of([row["id"] for row in rows])
    return [_running(row, where[row["id"]]) for row in rows]


def queued_rows(sees: Sees, most: int, *, newest_first: bool = False) -> list[Row]:
    """Return at most `most` queued jobs of projects in `sees` (None: all), in queue order, or the latest
    submitted first if `newest_first`."""
    jobs = _visible(Job.objects.filter(state=QUEUED), sees)
    order = ("-submit_rank",) if newest_first else (F("queue_position").asc(nulls_last=True), "submit_rank")
    return [_queued(row, sees) for row in _columns(jobs.order_by(*order)[:most], _QUEUED_COLUMNS)]


_HEAD_COLUMNS = ("id", "name", "project_name", "username", "kind")
_RUNNING_COLUMNS = (*_HEAD_COLUMNS, "state", "allocated_milli", "started_at", "progress", "gpu_utilization")
_QUEUED_COLUMNS = (
    *_HEAD_COLUMNS,
    "milli_gpus",
    "gpu_memory_mib",
    "pods_wanted",
    "queued_at",
    "queue_position",
    "reason",
    "message",
    "details",
)


def _visible(jobs: QuerySet[Job], sees: Sees) -> QuerySet[Job]:
    return jobs if sees is None else jobs.filter(project__name__in=sees)


def _columns(jobs: QuerySet[Job], columns: Sequence[str]) -> Any:
    return jobs.annotate(project_name=F("project__name"), username=F("user__username")).values(*columns)


def _running(row: Row, nodes: list[str]) -> Row:
    return _head(row) | {
        "state": row["state"],
        "node": ", ".join(nodes) or None,
        "gpus": decimal(row["allocated_milli"]),
        "started_at": row["started_at"],
        "progress": row["progress"],
        "gpu_utilization": row["gpu_utilization"],
    }


def _queued(row: Row, sees: Sees) -> Row:
    return _head(row) | {
        "gpus": decimal(row["milli_gpus"] * row["pods_wanted"]),
        "gpu_memory_mib": row["gpu_memory_mib"],
        "queued_at": row["queued_at"],
        "queue_position": row["queue_position"],
        "reason": row["reason"],
        "message": reason_of(row, sees)["message"],
        "start_estimate": None,
    }


def _head(row: Row) -> Row:
    return {
        "id": str(row["id"]),
        "name": row["name"],
        "project": row["project_name"],
        "user": row["username"],
        "kind": row["kind"],
    }


def _nodes_of(job_ids: list[uuid.UUID]) -> dict[uuid.UUID, list[str]]:
    """Return the nodes of each job's unreleased pods, in rank order without repeats."""
    where: dict[uuid.UUID, list[str]] = defaultdict(list)
    live = Pod.objects.filter(job_id__in=job_ids, released_at=None).order_by("rank")
    for job_id, node in live.values_list("job_id", "node__name"):
        if node not in where[job_id]:
            where[job_id].append(node)
    return where


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None
