"""One job's page: figures, explanation, timeline, events, pods, log."""

from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.access import Actor, visible_project_names
from controlplane.logs import LogPage, log_path, read_page
from controlplane.models import Event, Sample
from controlplane.progress import latest_progress
from controlplane.queries.events import seen_event
from controlplane.scheduling.reasons import STARTED_OVER_QUOTA
from dashboards import formats
from dashboards.gpu_use import LOOKS, SAID_ALOUD, use_of
from dashboards.reads.history import JOB_USES
from jobs.lifecycle import QUEUED
from jobs.models import Job, Pod
from jobs.queries import explanation, pod_rows

Row = dict[str, Any]
ATTEMPTS_LOOKED_AT = 5  # the newest ones, for what a job has reported


def figures(detail: Row) -> list[Row]:
    """The strip of a job: what it has reached, when it ends, what it uses. {"name", "value", "unit", "under"}."""
    status, progress = detail["status"], detail["status"]["progress"] or {}
    if status["state"] == QUEUED:
        return _waiting_figures(detail)
    share, eta = formats.fraction(progress), progress.get("eta_seconds")
    is_running = status["state"] == "running"
    strip = (
        [_figure(_("Progress"), _bare_percent(share), "%", _progress_line(progress))]
        if share is not None
        else []
    )
    if is_running and eta is not None and status["is_reachable"]:
        strip.append(_figure(_("Finishes in"), formats.duration(eta), "", _seconds_per_step(progress)))
    if progress.get("loss") is not None:
        strip.append(_figure(_("Loss"), formats.figure(progress["loss"]), "", ""))
    if progress.get("accuracy") is not None:
        strip.append(_figure(_("Accuracy"), formats.figure(progress["accuracy"] * 100), "%", ""))
    if is_running:
        strip.append(_use_figure(status["gpu_utilization"]))
    held = formats.number(status["allocated_gpus"])
    strip.append(
        _figure(_("GPUs held"), held, _("of %(asked)s") % {"asked": _asked(detail)}, _workers(detail))
    )
    return strip


def explain(actor: Actor, job: Job) -> Row | None:
    """Why a queued job waits: the numbers compared, who is ahead, who holds, what would start it. None when it runs."""
    if job.state != QUEUED:
        return None
    told = explanation(job, visible_project_names(actor))
    shortage = told["shortage"] or {}
    numbers = [
        (label, formats.number(shortage[key])) for key, label in _numbers() if shortage.get(key) is not None
    ]
    return told | {"numbers": numbers, "fixes": [fix["message"] for fix in told["would_start_if"]]}


def curves(job: Job, detail: Row, *, is_whole: bool = False) -> Row:
    """Return what can be drawn of all attempts of a job: "curves" [{"name", "title", "axis", "width", "is_there"}] and
    "has_reported", whether any of them printed progress. `is_whole`: with its memory, where there is room for it."""
    said, measured = _said(job, detail), _measured(job, detail)
    steps = [progress for progress in said if progress.get("step") is not None]
    reported = {name for name in ("loss", "accuracy") for one in steps if one.get(name) is not None}
    shown = [
        ("loss", _("Loss"), "step"),
        ("accuracy", _("Accuracy, %"), "step"),
        ("gpu_utilization", _("GPU use, %"), "time"),
    ]
    if is_whole:
        shown.append(("gpu_memory", _("GPU memory, GiB"), "time"))
    width = "col-6" if is_whole else "col-4"
    rows = [
        {"name": name, "title": title, "axis": axis, "width": width, "is_there": name in reported | measured}
        for name, title, axis in shown
    ]
    return {"curves": rows, "has_reported": any(said)}


def timeline(job: Job) -> list[Row]:
    """Attempts as spans in percent of the time since the job was submitted: "x" and "width", the wait before it."""
    first, last = job.created_at, job.finished_at or timezone.now()
    total = max(1.0, (last - first).total_seconds())

    def percent(at: datetime | None) -> float:
        return round(100 * max(0.0, ((at or last) - first).total_seconds()) / total, 2)

    rows = job.attempts.order_by("number").values(
        "number", "created_at", "started_at", "ended_at", "outcome", "reason", "message", "exit_code"
    )
    return [
        {
            **row,
            "is_borrowed": row["ended_at"] is None and job.reason == STARTED_OVER_QUOTA,
            "wait_x": percent(row["created_at"]),
            "wait": round(percent(row["started_at"] or row["ended_at"]) - percent(row["created_at"]), 2),
            "x": percent(row["started_at"]),
            "width": max(0.5, round(percent(row["ended_at"]) - percent(row["started_at"]), 2))
            if row["started_at"]
            else 0,
        }
        for row in rows
    ]


def events(actor: Actor, job: Job, most: int) -> list[Row]:
    """The job's events, newest first, as the actor may see them."""
    rows = Event.objects.filter(job_id=job.pk).exclude(kind="job.progressed").order_by("-seq")
    found = rows.values("seq", "at", "kind", "actor", "reason", "message", "data")[:most]
    sees = visible_project_names(actor)
    return [seen_event(row, sees, job.project.name) for row in found]


def latest_events(actor: Actor, job: Job, most: int) -> list[Row]:
    """The newest events for a short list: of neighbours that say the same only the newest, and of a job with one pod
    nothing about the pod, which says the same as the job."""
    told: list[Row] = []
    for event in events(actor, job, 5 * most):
        if event["kind"].startswith("pod.") and job.pods_wanted == 1:
            continue
        if not told or event["message"] != told[-1]["message"]:
            told.append(event)
    return told[:most]


def pods(job: Job) -> list[Row]:
    """Every pod of every attempt."""
    return [pod for _job_id, pod in pod_rows(Pod.objects.filter(job=job))]


def log_ranks(job: Job) -> list[int]:
    """The ranks that have, or will have, a log."""
    return list(range(max(1, job.pods_started or job.pods_wanted)))


def log_text(job: Job, attempt: int, rank: int) -> Iterator[str]:
    """The log of one pod line by line, gaps named."""
    path = log_path(settings.LOG_DIR, str(job.pk), attempt, rank)
    offset = 0
    while True:
        page = read_page(path, offset, 5000)
        yield _page_text(page)
        if page.next_offset <= offset:
            return
        offset = page.next_offset


def whole_log_text(job: Job, rank: int) -> Iterator[str]:
    """The logs of all attempts one after the other, each under its number."""
    for number in job.attempts.order_by("number").values_list("number", flat=True):
        yield f"[{_('attempt')} {number}]\n"
        yield from log_text(job, number, rank)


def _said(job: Job, detail: Row) -> list[Row]:
    """The last progress of each of the newest attempts; {} of one that printed none."""
    said = [detail["status"]["progress"] or {}]
    for attempt in range(job.attempt, max(0, job.attempt - ATTEMPTS_LOOKED_AT), -1):
        path = log_path(settings.LOG_DIR, str(job.pk), attempt, 0)
        said.append(_last_progress(path, path.stat().st_size if path.exists() else 0))
    return said


def _measured(job: Job, detail: Row) -> set[str]:
    """The names of what was measured of a job over time."""
    samples = Sample.objects.filter(by="job", subject=str(job.pk), metric__in=JOB_USES.values())
    metrics = set(samples.values_list("metric", flat=True).distinct().order_by())
    if detail["status"]["gpu_utilization"] is not None:
        metrics.add(JOB_USES["gpu_utilization"])
    return {name for name, metric in JOB_USES.items() if metric in metrics}


@lru_cache(maxsize=256)
def _last_progress(path: Path, size: int) -> Row:
    """The last progress line of a log of that size; pages ask again with every change of the job."""
    found = latest_progress(path) if size else None
    return {} if found is None else found.as_json()


def _page_text(page: LogPage) -> str:
    """Lines, and each gap after the line after which it is."""
    texts = [(float(line.n), line.text + ("" if line.is_partial else "\n")) for line in page.lines]
    texts += [(gap.after_n + 0.5, f"[{gap.sentence}]\n") for gap in page.gaps]
    return "".join(text for _, text in sorted(texts, key=lambda one: one[0]))


def whole(text: str | None, default: int) -> int:
    """A small whole number of a query, or the default."""
    return int(text) if text and text.isdecimal() and len(text) < 7 else default


def _numbers() -> tuple[tuple[str, str], ...]:
    return (
        ("request_gpus", _("asked for")),
        ("allocated_gpus", _("its project holds")),
        ("quota_gpus", _("quota")),
        ("fair_share_gpus", _("fair share")),
        ("limit_gpus", _("limit")),
        ("free_gpus", _("free")),
        ("largest_free_gpus", _("most free on one node")),
        ("total_gpus", _("in the cluster")),
    )


def _waiting_figures(detail: Row) -> list[Row]:
    status, position = detail["status"], detail["status"]["queue_position"]
    line = formats.NOTHING if position is None else formats.number(position)
    waited = (timezone.now() - detail["created_at"]).total_seconds()
    strip = [
        _figure(_("Place in line"), line, "", _("of the whole cluster")),
        _figure(_("Waiting for"), formats.duration(waited), "", _("since it was submitted")),
        _figure(_("GPUs asked for"), _asked(detail), "", _workers(detail)),
        _figure(_("Priority"), formats.number(detail["priority"]), "", _("inside its project")),
    ]
    if status["attempt"]:
        strip.append(
            _figure(
                _("Attempts so far"),
                formats.number(status["attempt"]),
                "",
                _("it keeps its place in the order"),
            )
        )
    return strip


def _workers(detail: Row) -> str:
    wanted, has, most = detail["workers"], detail["status"]["workers"], detail["max_workers"]
    if most is not None:
        bounds = f"({detail['min_workers']}–{most})"
        if has is None:
            return _("%(wanted)s workers %(bounds)s") % {"wanted": wanted, "bounds": bounds}
        return _("%(has)s of %(wanted)s workers %(bounds)s") % {
            "has": has,
            "wanted": wanted,
            "bounds": bounds,
        }
    return _("%(count)s workers") % {"count": wanted} if wanted > 1 else _("one worker")


def _figure(name: str, value: str, unit: str, under: str) -> Row:
    return {"name": name, "value": value, "unit": unit, "under": under}


def _use_figure(share: float | None) -> Row:
    use = use_of(share)
    under = f"{_(LOOKS[use].word)}, {_('last measured')}" if use in SAID_ALOUD else _("last measured")
    figure = _figure(_("GPU use"), _bare_percent(share), "%", under)
    return figure | {"is_warning": LOOKS[use].colour == "warning"}


def _bare_percent(share: float | None) -> str:
    return formats.percent(share).removesuffix(f"{formats.NBSP}%")


def _progress_line(progress: Row) -> str:
    step = (
        f"{_('step')} {formats.number(progress['step'])} {_('of')} {formats.number(progress['total_steps'])}"
    )
    if progress.get("epoch") is None:
        return step
    epochs = f" {_('of')} {progress['epochs']}" if progress.get("epochs") else ""
    return f"{_('epoch')} {progress['epoch']}{epochs}, {step}"


def _seconds_per_step(progress: Row) -> str:
    each = progress.get("seconds_per_step")
    return "" if each is None else _("%(seconds)s s per step") % {"seconds": formats.figure(each)}


def _asked(detail: Row) -> str:
    if detail["gpu_memory_mib"]:
        return formats.mebibytes(detail["gpu_memory_mib"])
    return formats.number((detail["gpus"] or 0) * detail["workers"])
