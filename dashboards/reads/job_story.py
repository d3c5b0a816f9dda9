"""History of a job: the steps of its newest start, its attempts on one time line, the progress of each, and
what stopping it would cost."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.access import Actor, visible_project_names
from controlplane.logstore.progress import latest_progress
from controlplane.logstore.reader import log_path, read_page
from controlplane.scheduling.reasons import PREEMPTED, STARTED_OVER_QUOTA
from dashboards import formats
from jobs.lifecycle import ACTIVE_STATES, QUEUED, STARTING, SUSPENDED
from jobs.models import Attempt, Job, Pod

# Number of newest attempts whose logs are read for their last progress, because each is a file to be read.
ATTEMPTS_MOST = 10

Row = dict[str, Any]
DONE, NOW, AHEAD, MISSED = "done", "now", "ahead", "missed"


def start_steps(job: Job) -> list[Row]:
    """Return the four steps of the job's newest or coming start: {"name", "state", "since", "text"}, some with "title",
    the tooltip.

    `state`: done, now, ahead, or missed (an ended attempt never reached the step). `since`: when the current step
    began, None for all others. `text`: the duration of a done step, the node, or a note.
    """
    is_waiting = job.state in (QUEUED, SUSPENDED)
    attempt = None if is_waiting else job.attempts.filter(number=job.attempt).first()
    pods = list(Pod.objects.filter(attempt=attempt).order_by("rank")) if attempt else []
    moments = [
        job.queued_at,
        attempt.created_at if attempt else None,
        _last_start(pods),
        _first_output(job, attempt),
    ]
    names = [
        _("Suspended") if job.state == SUSPENDED else _("Queued"),
        _("Scheduled"),
        _("Started"),
        _("First output"),
    ]
    return [
        _step(name, moments, at, is_over=job.state not in (*ACTIVE_STATES, QUEUED, SUSPENDED))
        | _detail(job, pods, at)
        for at, name in enumerate(names)
    ]


def attempts(job: Job, reached: Mapping[int, Row]) -> list[Row]:
    """Return the job's attempts as parts of a time line, in percent of the time since submission: "x" and "width"
    of the run, "wait_x" and "wait" of the start-up before it, and "text", the outcome. `reached`: the last
    progress by attempt."""
    first, last = job.created_at, job.finished_at or timezone.now()
    total = max(1.0, (last - first).total_seconds())

    def percent(at: datetime | None) -> float:
        return round(100 * max(0.0, ((at or last) - first).total_seconds()) / total, 2)

    rows = job.attempts.order_by("number")
    return [
        _span(attempt, percent) | {"text": _became(attempt, reached), **_borrowed(job, attempt)}
        for attempt in rows
    ]


def reached_by_attempt(job: Job) -> dict[int, Row]:
    """Return the last progress of each of the newest attempts, by number; omits attempts that reported none.
    The current attempt's comes from the job's row, that of earlier ones from their logs."""
    found: dict[int, Row] = {}
    for number in range(max(1, job.attempt - ATTEMPTS_MOST + 1), job.attempt + 1):
        path = log_path(settings.LOG_DIR, str(job.pk), number, 0)
        progress = job.progress if number == job.attempt else _last_report(path, _size(path))
        if progress:
            found[number] = dict(progress)
    return found


def stop_cost(actor: Actor, job: Job, detail: Row) -> Row:
    """Return what stopping a job affects. `detail`: the job in REST form.

    "pods": those that have not ended, in REST form; "gpus": what it holds; "checkpoint_at", "checkpoint_step": its last
    checkpoint, None if it has reported none; "running_since": None unless it is active; "waiting": the number of the
    cluster's other queued jobs; "first": {"project", "id", "name"} of the first of them, id and name None if the actor
    may not see it; None without one.
    """
    progress = detail["status"]["progress"] or {}
    checkpoint = progress.get("checkpoint_at")
    queued = Job.objects.filter(project__cluster=job.project.cluster, state=QUEUED).exclude(pk=job.pk)
    order = (F("queue_position").asc(nulls_last=True), "submit_rank")
    first = queued.order_by(*order).values("id", "name", "project__name").first()
    sees = visible_project_names(actor)
    return {
        "pods": [pod for pod in detail["status"]["pods"] if pod["finished_at"] is None],
        "gpus": detail["status"]["allocated_gpus"],
        "checkpoint_at": datetime.fromtimestamp(checkpoint, UTC) if checkpoint else None,
        "checkpoint_step": progress.get("checkpoint_step"),
        "running_since": detail["status"]["started_at"] if job.state in ACTIVE_STATES else None,
        "waiting": queued.count(),
        "first": first and _named(first, is_visible=sees is None or first["project__name"] in sees),
    }


def _named(row: Mapping[str, Any], *, is_visible: bool) -> Row:
    own = {"id": row["id"], "name": row["name"]} if is_visible else {"id": None, "name": None}
    return {"project": row["project__name"], **own}


def _step(name: str, moments: Sequence[datetime | None], at: int, *, is_over: bool) -> Row:
    """Return step `at` (0 to 3) of a start. `moments`: the times between the steps, None while unknown.
    `is_over`: the attempt has ended, so that missing steps are missed."""
    begins = (moments[0], moments[1], moments[1], moments[2])[at]
    ends = (moments[1], moments[1], moments[2], moments[3])[at]
    if ends is not None:
        took = max(0.0, (ends - begins).total_seconds()) if begins else 0.0
        # Step 1 begins and ends at the same time, so it has no duration to show.
        return {"name": name, "state": DONE, "since": None, "text": _short(took) if at != 1 else ""}
    if is_over:
        return {"name": name, "state": MISSED, "since": None, "text": formats.NOTHING}
    if begins is None:
        return {"name": name, "state": AHEAD, "since": None, "text": formats.NOTHING}
    return {"name": name, "state": NOW, "since": begins, "text": _("none for") if at == 3 else ""}


def _detail(job: Job, pods: Sequence[Pod], at: int) -> Row:
    """Return the note beside the time of step `at`, as {"text", "title"}: the node where the pod was placed, or what
    a start waits for; {} for other steps."""
    if at == 1 and pods:
        nodes = sorted({pod.node.name for pod in pods})
        return {
            "text": nodes[0] if len(nodes) == 1 else _("{count} nodes").format(count=len(nodes)),
            "title": ", ".join(nodes),
        }
    if at == 2 and job.state == STARTING and any(pod.reason for pod in pods):
        return {"title": job.message}
    return {}


def _short(seconds: float) -> str:
    return f"{seconds:.1f}{formats.NBSP}s" if seconds < 10 else formats.duration(seconds)


def _last_start(pods: Sequence[Pod]) -> datetime | None:
    """Return when the last pod of the gang began; None until all have."""
    starts = [pod.started_at for pod in pods]
    known = [at for at in starts if at is not None]
    return max(known) if known and len(known) == len(starts) else None


def _first_output(job: Job, attempt: Attempt | None) -> datetime | None:
    if attempt is None:
        return None
    path = log_path(settings.LOG_DIR, str(job.pk), attempt.number, 0)
    time_ms = _first_line(path) if _size(path) else None
    return datetime.fromtimestamp(time_ms / 1000, UTC) if time_ms is not None else None


@lru_cache(maxsize=256)
def _known_first_line(path: Path) -> int:
    lines = read_page(path, 0, 1).lines
    if not lines:
        # A log that begins with a gap or is still empty: not cached, read again next time.
        raise LookupError(path)
    return lines[0].time_ms


def _first_line(path: Path) -> int | None:
    try:
        return _known_first_line(path)
    except (LookupError, OSError):
        return None


@lru_cache(maxsize=256)
def _last_report(path: Path, size: int) -> Row:
    """Return the last progress in a log, {} if it has none or cannot be read. `size`: in bytes; part of the
    cache's key, so that a log that has grown is read again."""
    try:
        found = latest_progress(path) if size else None
    except OSError:
        return {}
    return found.as_json() if found is not None else {}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _span(attempt: Attempt, percent: Any) -> Row:
    start, end = attempt.started_at, attempt.ended_at
    return {
        "number": attempt.number,
        "is_over": end is not None,
        "is_good": attempt.outcome == "succeeded",
        "wait_x": percent(attempt.created_at),
        "wait": round(percent(start or end) - percent(attempt.created_at), 2),
        "x": percent(start),
        "width": max(0.5, round(percent(end) - percent(start), 2)) if start else 0,
    }


def _borrowed(job: Job, attempt: Attempt) -> Row:
    return {"is_borrowed": attempt.ended_at is None and job.reason == STARTED_OVER_QUOTA}


def _became(attempt: Attempt, reached: Mapping[int, Row]) -> str:
    """Return the outcome of an attempt as text, with the last step that it reached: "suspended at step 766",
    "running"."""
    outcome = _("running") if attempt.started_at else _("starting")
    if attempt.ended_at is not None:
        outcome = _("preempted") if attempt.reason == PREEMPTED else attempt.outcome or attempt.reason
        outcome = _("interrupted") if outcome == QUEUED else outcome.replace("_", " ")
    step = reached.get(attempt.number, {}).get("step")
    if step is None or attempt.ended_at is None:
        return outcome
    return _("{outcome} at step {step}").format(outcome=outcome, step=formats.number(step))
