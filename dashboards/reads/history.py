"""Recorded history of one node, job or project, and of waiting times and users."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Sum
from django.utils.translation import gettext as _

from controlplane.models import AuditEntry, Device, Node, Project, User
from controlplane.telemetry.metrics import (
    GPU_MEMORY,
    GPU_UTILIZATION,
    GPUS_ALLOCATED,
)
from controlplane.telemetry.queries import Series, gpu_hours, queue_waits, series
from dashboards.charts.figures import Mark
from dashboards.charts.series import Line, Point
from dashboards.charts.waiting import Waited
from jobs.models import Job

JOB_USES = {"gpu_utilization": GPU_UTILIZATION, "gpu_memory": GPU_MEMORY}
MOST_EDITS = 400
# Longest range of a running job's chart, in seconds: so long that live points never push out its beginning.
LONGEST_JOB_SECONDS = 400 * 86400
WAIT_BARS = 48
# Length of a line without any sample, in steps.
EMPTY_STEPS = 100
# A line is interrupted after this many steps without a sample, so that a late sample leaves no gap.
GAP_STEPS = 3
LEAST = timedelta(minutes=1)
GIB = 1 / 1024

NodeLines = tuple[Line, list[Line]]


def node_utilisation(node: Node, start: datetime, end: datetime) -> NodeLines:
    """Return the utilisation of a node and of each of its devices, as shares (0 to 1)."""
    return _node_lines(node, GPU_UTILIZATION, start, end, {})


def node_memory(node: Node, start: datetime, end: datetime) -> NodeLines:
    """Return the used GPU memory of a node and of each of its devices, as shares (0 to 1)."""
    devices = Device.objects.filter(node=node)
    sizes = {_device(node, index): mib for index, mib in devices.values_list("index", "memory_mib")}
    whole = devices.aggregate(sum=Sum("memory_mib"))["sum"] or 0
    return _node_lines(node, GPU_MEMORY, start, end, sizes | {node.name: whole})


NODE_LINES: Mapping[str, Callable[[Node, datetime, datetime], NodeLines]] = {
    "utilisation": node_utilisation,
    "memory": node_memory,
}


def job_use(job: Job, name: str, now: datetime) -> dict[str, Any]:
    """Return the keyword arguments of `job_use_chart` except `theme`: the use `name` (a key of JOB_USES) of a job
    from its first start until `now` or its end."""
    attempts = job.attempts.order_by("number").values_list("number", "started_at", "ended_at")
    starts = [(number, at) for number, at, _ended in attempts if at is not None]
    end = max(job.finished_at or now, job.created_at + LEAST)
    start = min(starts[0][1] if starts else job.created_at, end - LEAST)
    found = next(iter(series(JOB_USES[name], "job", [str(job.pk)], start, end)), None)
    points = [(point.at, point.mean) for point in found.points] if found else []
    marks = [Mark(at, f"attempt {number}") for number, at in starts[1:]]
    step = timedelta(seconds=found.step_seconds) if found else (end - start) / EMPTY_STEPS
    gap = GAP_STEPS * step
    if name == "gpu_utilization":
        spans = [(at, ended or end) for _number, at, ended in attempts if at is not None]
        points = with_rests(points, spans, step, is_idle=not job.is_final and job.gpu_utilization == 0)
    shared = {"points": points, "marks": marks, "span": (start, end), "longest_gap": gap, "key": name}
    shared["live_seconds"] = None if job.is_final else LONGEST_JOB_SECONDS
    if name == "gpu_utilization":
        return shared | {"name": _("GPU use"), "unit": "%", "scale": 100.0, "top": 100.0}
    highest = max((value for _at, value in points), default=0.0) * GIB
    return shared | {"name": _("GPU memory"), "unit": "GiB", "scale": GIB, "top": max(1.0, highest)}


def with_rests(
    points: list[tuple[datetime, float]],
    spans: Sequence[tuple[datetime, datetime]],
    step: timedelta,
    *,
    is_idle: bool,
) -> list[tuple[datetime, float]]:
    """Return the points with the missing zeros added. While a value stays 0, only its first sample is stored, so a 0
    is repeated every `step` until the next sample. `spans`: (start, end) of each attempt; zeros are added only inside
    them. `is_idle`: the newest attempt is at 0 now; without any sample it was at 0 from its start."""
    filled = []
    for start, end in spans:
        is_last = (start, end) == spans[-1]
        inside = [point for point in points if start - step <= point[0] <= end]
        rests = is_idle and is_last and not inside
        at = start
        for point in [*inside, None]:
            until = end if point is None else point[0]
            while rests and at < until:
                filled.append((at, 0.0))
                at += step
            if point is not None:
                filled.append(point)
                at, rests = point[0] + step, point[1] == 0
        if rests:
            filled.append((end, 0.0))
    return sorted({*points, *filled})


def project_levels(project: Project, start: datetime, end: datetime) -> tuple[list[Point], list[Point]]:
    """Return the change points of a project's allocated GPUs and of its quota, in GPUs. The quota's history comes
    from the audit log."""
    found = next(iter(series(GPUS_ALLOCATED, "project", [project.name], start, end)), None)
    return _points(found), _quota_points(project)


def waits(start: datetime, end: datetime) -> tuple[list[Waited], int]:
    """Return the waiting times of the jobs of all clusters that started in start..end, by interval, and the
    interval's length in seconds."""
    step, found = queue_waits(start, end, WAIT_BARS)
    spans = [
        Waited(at, extent.total / extent.count, extent.maximum, extent.count)
        for at, extent in sorted(found.items())
    ]
    return spans, step


def user_hours(
    start: datetime, end: datetime, project_ids: Collection[int] | None
) -> list[tuple[str, float]]:
    """Return (user, GPU hours) in start..end of jobs in these projects (None: all), largest first."""
    hours = gpu_hours(start, end, project_ids)
    names = dict(User.objects.filter(pk__in=hours).values_list("pk", "username"))
    named = [(names.get(key, _("deleted user %(id)s") % {"id": key}), value) for key, value in hours.items()]
    return sorted(named, key=lambda one: (-one[1], one[0]))


def _node_lines(
    node: Node, metric: str, start: datetime, end: datetime, sizes: Mapping[str, int]
) -> NodeLines:
    indices = list(Device.objects.filter(node=node).order_by("index").values_list("index", flat=True))
    names = {_device(node, index): f"GPU {index}" for index in indices}
    whole = next(iter(series(metric, "node", [node.name], start, end)), None)
    devices = {line.subject: line for line in series(metric, "device", list(names), start, end)}
    lines = [
        Line(f"device:{key}", name, _share(devices.get(key), sizes.get(key))) for key, name in names.items()
    ]
    return Line("node", node.name, _share(whole, sizes.get(node.name))), lines


def _share(line: Series | None, whole: int | None) -> tuple[Point, ...]:
    """Return a line's points as shares. `whole`: the value of 100 %, None if the values are shares already;
    without points if it is 0."""
    if whole is None:
        return tuple(_points(line))
    return tuple((at, value / whole) for at, value in _points(line)) if whole else ()


def _points(line: Series | None) -> list[Point]:
    return [(point.at, point.mean) for point in line.points] if line else []


def _device(node: Node, index: int) -> str:
    return f"{node.name}/{index}"


def _quota_points(project: Project) -> list[Point]:
    """Return (time, quota in GPUs) from the project's creation to its newest edit. Only edits in the audit log
    count; the program's own changes are not there."""
    edits = AuditEntry.objects.filter(
        object_type="project", object_name=project.name, verb="project.edit", at__gte=project.created_at
    ).order_by("-at")
    points: list[Point] = []
    quota = project.gpu_quota_milli
    for at, before in edits.values_list("at", "before")[:MOST_EDITS]:
        known = before.get("gpu_quota_milli", quota)
        if known != quota:
            points.append((at, quota / 1000))
            quota = known
    points.append((project.created_at, quota / 1000))
    return points[::-1]
