"""The workers of an elastic job: who they were when, the generations, and what each operation cost."""

from datetime import datetime
from typing import Any

from dashboards.charts.figures import Mark
from dashboards.charts.palette import Theme
from dashboards.charts.series import Chart
from dashboards.charts.workers import Span, worker_chart
from jobs.kinds.membership import OPEN_STATES
from jobs.kinds.registry import KINDS
from jobs.models import Generation, Job, Pod, ScaleOperation

MARKS_MOST, ROWS_MOST = 12, 50
Row = dict[str, Any]


def generation_marks(job: Job) -> list[Mark]:
    """Return where the present attempt changed its size, by step; only the newest, so that they stay
    readable."""
    if not KINDS[job.kind].is_elastic:
        return []
    rows = _generations(job).filter(step__gt=0).order_by("-number")[:MARKS_MOST]
    found = [Mark(float(row.step or 0), f"{len(row.members)} workers") for row in rows]
    return found[::-1]


def timeline(job: Job, now: datetime, theme: Theme) -> Chart:
    """Return workers and generations of the present attempt over time."""
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
    """Return what the page of an elastic job's workers shows."""
    rows = list(_generations(job).order_by("-number")[:ROWS_MOST])
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
        "pause_seconds": sum(row.pause_seconds or 0.0 for row in rows),
        "epochs_done": max((row.epochs_done for row in rows), default=0),
        "epochs_exact": max((row.epochs_exact for row in rows), default=0),
        "lost_steps": sum(row.lost_steps or 0 for row in rows),
        "repeated_steps": sum(row.repeated_steps or 0 for row in rows),
    }


def _generations(job: Job) -> Any:
    return Generation.objects.filter(attempt__job=job, attempt__number=job.attempt)
