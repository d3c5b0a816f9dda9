"""Data of an elastic job's workers: their runs, the generations, and the cost of each scale operation."""

from datetime import datetime
from typing import Any

from django.db.models import Sum

from dashboards.charts.figures import Mark
from dashboards.charts.palette import Theme
from dashboards.charts.series import Chart
from dashboards.charts.workers import Span, worker_chart
from jobs.kinds.membership import OPEN_STATES
from jobs.kinds.registry import KINDS
from jobs.models import Generation, Job, Pod, ScaleOperation

MARKS_MOST, ROWS_MOST = 12, 50
TOTALS = ("pause_seconds", "lost_steps", "repeated_steps")
Row = dict[str, Any]


def generation_marks(job: Job) -> list[Mark]:
    """Return marks at the steps where the current attempt changed its size: only the newest MARKS_MOST, to keep
    them readable. [] for a job that is not elastic."""
    if not KINDS[job.kind].is_elastic:
        return []
    rows = _generations(job).filter(step__gt=0).order_by("-number")[:MARKS_MOST]
    found = [Mark(float(row.step or 0), f"{len(row.members)} workers") for row in rows]
    return found[::-1]


def timeline(job: Job, now: datetime, theme: Theme) -> Chart:
    """Return the chart of the workers of the current attempt, and of its newest MARKS_MOST generations."""
    pods = Pod.objects.filter(job=job, attempt__number=job.attempt).select_related("node").order_by("rank")
    spans = [
        Span(
            pod.rank,
            pod.node.name,
            pod.started_at,
            pod.finished_at or (pod.released_at or now),
            pod.state == "failed" and pod.reason != "stopped",
        )
        for pod in pods
        if pod.started_at is not None
    ]
    rows = _generations(job).order_by("-number")[:MARKS_MOST]
    generations = [(row.created_at, row.number, len(row.members)) for row in rows][::-1]
    start = min((span.start for span in spans), default=now)
    end = max((span.end for span in spans), default=now)
    return worker_chart(spans, generations, theme=theme, start=start, end=end)


def workers(job: Job) -> Row:
    """Return the template context of the page of an elastic job's workers: the allowed sizes and the present "size";
    the newest "generations" and scale "operations", at most ROWS_MOST each, and the open one ("running", None without
    one); sums over all attempts of what changes of size have cost (TOTALS); and the epochs done."""
    rows = list(_generations(job).order_by("-number")[:ROWS_MOST])
    # Of all attempts: what the job lost when it started again counts, too.
    every = Generation.objects.filter(attempt__job=job)
    bounds = KINDS[job.kind].bounds(job.spec) or (1, 1)
    operations = list(ScaleOperation.objects.filter(job=job).order_by("-created_at")[:ROWS_MOST])
    return {
        "is_member": bool(rows),
        "fewest": bounds[0],
        "most": bounds[1],
        "sizes": KINDS[job.kind].sizes(job.spec),
        "size": len(rows[0].members) if rows else job.pods_started or job.pods_wanted,
        "generations": rows,
        "operations": operations,
        "running": next((one for one in operations if one.state in OPEN_STATES), None),
        **every.aggregate(**{name: Sum(name, default=0) for name in TOTALS}),
        "epochs_done": max((row.epochs_done for row in rows), default=0),
        "epochs_exact": max((row.epochs_exact for row in rows), default=0),
    }


def _generations(job: Job) -> Any:
    return Generation.objects.filter(attempt__job=job, attempt__number=job.attempt)
