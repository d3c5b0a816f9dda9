"""Time series for charts and their tables: recorded samples, and a job's curves from its own log."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path

from django.conf import settings
from django.db.models import Count, Q, Sum
from django.utils import timezone

from controlplane.logstore.progress import Progress, parse_progress
from controlplane.logstore.reader import log_path, read_page
from controlplane.models import Device, Project
from controlplane.telemetry.metrics import GPU_CAPACITY, GPU_MEMORY, GPU_UTILIZATION, GPUS_ALLOCATED
from controlplane.telemetry.queries import first_sample, series
from dashboards.charts.allocation import summed
from dashboards.charts.curves import Run
from dashboards.charts.series import Line, Point
from dashboards.reads.current import SAMPLE_SECONDS, Use, current_use
from jobs.log_ranks import default_log_ranks
from jobs.models import Job

# Shortest range of a chart, because one that begins with the first sample would have no width at first.
LEAST = timedelta(minutes=1)
# A range that ends so recently ends now.
NOW = timedelta(seconds=5)
# Limit on the log that is read for curves, so that a page does not wait for a log of any length.
CURVE_PAGES, CURVE_LINES = 16, 20_000
# Number of newest attempts that a job's curves include, because each has a log of its own to be read.
RUNS_MOST = 20


def first_seen(now: datetime, span_seconds: float) -> datetime:
    """Return the start of a chart of the last `span_seconds`; later if the cluster's data begin later."""
    return max(now - timedelta(seconds=span_seconds), min(first_sample(now), now - LEAST))


def utilisation_points(start: datetime, end: datetime) -> tuple[list[Point], list[Point]]:
    """Return (GPU utilisation, memory utilisation) of all clusters together, each as (time, share from 0 to 1):
    of the measured GPUs, and of the total memory. A range that ends now ends with the present values."""
    current = current_use() if timezone.now() - end < NOW else {}
    used = _means(GPU_UTILIZATION, start, end, current)
    measured = Count("pk", filter=Q(utilization__isnull=False))
    clusters = (
        Device.objects.values_list("node__cluster__name")
        .annotate(gpus=measured, mib=Sum("memory_mib"))
        .order_by()
    )
    size = {name: (gpus, mib) for name, gpus, mib in clusters}
    # Weighted by the devices that are measured now, since samples do not store their number; at least 1,
    # since the cluster did have measurements.
    gpu = _weighed(used, {name: gpus or 1 for name, (gpus, _mib) in size.items()})
    memory = _summed(_means(GPU_MEMORY, start, end, current), sum(mib for _gpus, mib in size.values()))
    return gpu, memory


def allocation_lines(start: datetime, end: datetime) -> list[Line]:
    """Return the allocated GPUs of every project, deleted ones included: the value at the start and every change
    since."""
    held = {found.subject: found.points for found in series(GPUS_ALLOCATED, "project", None, start, end)}
    projects = Project.objects.order_by("palette_index", "name").values_list("name", "palette_index")
    shown: list[tuple[str, str, int | None]] = [(name, name, index) for name, index in projects]
    names = {name for name, _label, _index in shown}
    # Deleted projects too, so that the sum of the lines is the total use.
    gone = sorted(name for name in held if name not in names and any(point.mean for point in held[name]))
    shown += [(name, f"{name} (deleted)", None) for name in gone]
    return [
        Line(name, label, tuple((point.at, point.mean) for point in held.get(name, ())), index, index is None)
        for name, label, index in shown
    ]


def capacity_points(start: datetime, end: datetime) -> list[Point]:
    """Return (time, number of GPUs on ready nodes), over all clusters, as change points; at least one."""
    lines = []
    for line in series(GPU_CAPACITY, "cluster", None, start, end):
        changes = [(point.at, point.mean) for point in line.points]
        # A cluster has no data before its first nodes were found.
        if len(changes) > 1 and not changes[0][1]:
            changes[:2] = [(start, changes[1][1])]
        lines.append(changes)
    # Nodes unchanged since before the version that records capacity.
    if not any(value for line in lines for _at, value in line):
        return [(start, float(Device.objects.filter(node__is_ready=True).count()))]
    return list(summed(lines))


def job_runs(job: Job, name: str) -> list[Run]:
    """Return the values of the metric `name` for each of the newest attempts, from the progress lines of the pods
    that represent it (see jobs.log_ranks)."""
    runs = []
    for attempt in range(max(1, job.attempt - RUNS_MOST + 1), max(1, job.attempt) + 1):
        values = [(report.step, getattr(report, name)) for report in job_reports(job, attempt)]
        known = [(float(step), value) for step, value in values if step is not None and value is not None]
        runs.append(Run(attempt, tuple(known)))
    return runs


def job_reports(job: Job, attempt: int) -> tuple[Progress, ...]:
    """Return the progress lines of one attempt in order of time: of rank 0, and of the first member of each
    later generation."""
    found = [_rank_reports(job, attempt, rank) for rank in default_log_ranks(job, attempt)]
    if len(found) == 1:
        return found[0]
    return tuple(
        sorted((report for reports in found for report in reports), key=lambda report: report.time_ms)
    )


def _rank_reports(job: Job, attempt: int, rank: int) -> tuple[Progress, ...]:
    path = log_path(settings.LOG_DIR, str(job.pk), attempt, rank)
    return _reports(path, path.stat().st_size if path.exists() else 0)


@lru_cache(maxsize=64)
def _reports(path: Path, size: int) -> tuple[Progress, ...]:
    """Return all progress lines of a log, oldest first. Cached by path and `size` in bytes, so that the
    curves of one page share a read, and a log that has grown is read again."""
    found: list[Progress] = []
    offset = 0
    for _page in range(CURVE_PAGES):
        page = read_page(path, offset, CURVE_LINES, '"trainyard"')
        reports = (parse_progress(line.text, line.time_ms) for line in page.lines)
        found.extend(report for report in reports if report is not None)
        if page.next_offset <= offset or page.next_offset >= size:
            break
        offset = page.next_offset
    return tuple(found)


def _means(
    metric: str, start: datetime, end: datetime, current: Mapping[str, Use]
) -> dict[str, dict[datetime, float]]:
    """Return the means of a metric by cluster name and time, and at `end` the value in `current`, by cluster name."""
    means = {}
    for line in series(metric, "cluster", None, start, end):
        means[line.subject] = found = {point.at: point.mean for point in line.points}
        value = current[line.subject].value(metric) if line.subject in current else None
        # Older samples: the cluster answers, and its devices cannot be measured.
        longest = timedelta(seconds=SAMPLE_SECONDS + line.step_seconds)
        if value is not None and end - max(found) <= longest:
            found[end] = value
    return means


def _weighed(means: dict[str, dict[datetime, float]], weights: dict[str, int]) -> list[Point]:
    """Return the mean over clusters at each time, weighted by `weights` (by cluster); omits times with a weight of
    0. `means`: by cluster and time."""
    sums: dict[datetime, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name, values in means.items():
        weight = weights.get(name, 0)
        for at, value in values.items():
            sums[at][0] += value * weight
            sums[at][1] += weight
    return [(at, total / weight) for at, (total, weight) in sorted(sums.items()) if weight]


def _summed(means: dict[str, dict[datetime, float]], whole: int) -> list[Point]:
    """Return the sum over clusters at each time, as a share of `whole`; [] if `whole` is 0. `means`: by cluster and
    time."""
    sums: dict[datetime, float] = defaultdict(float)
    for values in means.values():
        for at, value in values.items():
            sums[at] += value
    return [(at, total / whole) for at, total in sorted(sums.items())] if whole else []
