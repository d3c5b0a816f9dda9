"""Numbers over time, for charts and their tables: recorded samples, and a job's curves from its own log."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from django.conf import settings
from django.db.models import Max, QuerySet

from controlplane.logs import log_path, read_page
from controlplane.models import Project, Sample
from controlplane.progress import Progress, parse_progress
from dashboards.charts.series import Line, Point
from jobs.models import Job

MOST_ROWS = 5000  # of one metric; a coarser step is read where a finer one would be more
CURVE_PAGES, CURVE_LINES = 16, 20_000  # how much of a log is looked through for curves


def cluster_points(metric: str, start: datetime, end: datetime) -> list[Point]:
    """The mean of a metric of the cluster over time, at the finest step that is not too much."""
    rows = Sample.objects.filter(metric=metric, by="cluster", at__gte=start, at__lte=end, step_seconds__gt=0)
    step = _step(rows, end - start)
    found = rows.filter(step_seconds=step).order_by("at").values_list("at", "total", "count")
    return [(at, total / count) for at, total, count in found[:MOST_ROWS] if count]


def allocation_lines(start: datetime, end: datetime) -> list[Line]:
    """Allocated GPUs of every project as change points: what held at the start, and every change since."""
    changes = Sample.objects.filter(metric="gpus_allocated", by="project", step_seconds=0)
    points: dict[str, list[Point]] = defaultdict(list)
    before = changes.filter(at__lte=start).values_list("subject").annotate(last=Max("at"))
    for subject, at, value in changes.filter(at__in=[last for _subject, last in before]).values_list(
        "subject", "at", "maximum"
    ):
        if (subject, at) in set(before):
            points[subject].append((at, value))
    inside = changes.filter(at__gt=start, at__lte=end).order_by("at").values_list("subject", "at", "maximum")
    for subject, at, value in inside:
        points[subject].append((at, value))
    projects = Project.objects.order_by("palette_index", "name").values_list("name", "palette_index")
    return [Line(name, name, tuple(sorted(points[name])), index) for name, index in projects]


def job_points(job: Job, name: str) -> list[Point]:
    """A curve of the job's latest attempt, from the progress lines of rank 0: (step or time, value)."""
    path = log_path(settings.LOG_DIR, str(job.pk), max(job.attempt, 1), 0)
    reports = _reports(path, path.stat().st_size if path.exists() else 0)
    values = [(report, getattr(report, name)) for report in reports]
    if name == "gpu_utilization":
        return [
            (datetime.fromtimestamp(report.time_ms / 1000, UTC), value)
            for report, value in values
            if value is not None
        ]
    return [
        (float(report.step), value)
        for report, value in values
        if value is not None and report.step is not None
    ]


@lru_cache(maxsize=32)
def _reports(path: Path, size: int) -> tuple[Progress, ...]:
    """Every progress line of a log of that size; a page asks for three curves of one log at once."""
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


def _step(rows: QuerySet[Sample], span: timedelta) -> int:
    """The finest recorded step with which a span has few enough rows; the coarsest when none has."""
    steps = sorted(rows.values_list("step_seconds", flat=True).distinct().order_by())
    fitting = [step for step in steps if span.total_seconds() / step <= MOST_ROWS]
    return next(iter(fitting), steps[-1] if steps else 1)
