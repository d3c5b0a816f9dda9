"""Data for one job's page: figures, explanation, curves, events, pods and log."""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils.translation import gettext as _

from controlplane.access import Actor, visible_project_names
from controlplane.logstore.reader import LogPage, log_path, read_page
from controlplane.models import Event, Sample
from controlplane.queries.events import seen_event
from dashboards import formats
from dashboards.gpu_use import LOOKS, SAID_ALOUD, use_of
from dashboards.reads.history import JOB_USES
from jobs.kinds.registry import KINDS
from jobs.lifecycle import FINAL_STATES, QUEUED, RUNNING_STATES, SUSPENDED
from jobs.models import Job, Pod
from jobs.outlook import known_estimate, outlook
from jobs.queries import explanation, gpu_hours_of, pod_rows

Row = dict[str, Any]


# Widths of curves, by how many are side by side.
WIDTHS = {0: "", 1: "col-12", 2: "col-6", 3: "col-4"}
# Number of figures in the strip; constant, so that its cells do not move.
FIGURES = 6


def figures(detail: Row, reached: Mapping[int, Row]) -> list[Row]:
    """Return the first FIGURES figures of a job, as {"name", "value" (text), "unit" (text behind the value), "under"
    (the sentence below it)}: those of its state and progress, then what it requests. A time that grows has "since" in
    place of a value.

    `detail`: the job in REST form. `reached`: the last progress of each attempt, by number. Until the current attempt
    has reported, the previous one's is shown.
    """
    status = detail["status"]
    strip = _progress_figures(detail, reached)
    if status["state"] == QUEUED:
        strip = _waiting_figures(detail) + strip
    elif status["state"] in FINAL_STATES:
        strip += _final_figures(detail)
    else:
        strip += _running_figures(detail)
    return (strip + _asked_figures(detail))[:FIGURES]


def _progress_figures(detail: Row, reached: Mapping[int, Row]) -> list[Row]:
    status, newest = detail["status"], max(reached, default=0)
    progress = reached.get(newest, {})
    share, eta = formats.fraction(progress), progress.get("eta_seconds")
    is_earlier = newest != status["attempt"] or status["state"] in (QUEUED, SUSPENDED)
    strip = []
    if share is not None:
        earlier = _("reached in attempt {number}").format(number=newest)
        strip.append(
            _figure(
                _("Progress"), _bare_percent(share), "%", earlier if is_earlier else _progress_line(progress)
            )
        )
    if status["state"] in RUNNING_STATES and eta is not None and status["is_reachable"] and not is_earlier:
        strip.append(_figure(_("Finishes in"), formats.duration(eta), "", _seconds_per_step(progress)))
    elif status["exit_code"] is not None and status["state"] in FINAL_STATES:
        strip.append(_figure(_("Exit code"), str(status["exit_code"]), "", ""))
    if progress.get("loss") is not None:
        strip.append(_figure(_("Loss"), formats.figure(progress["loss"]), "", ""))
    if progress.get("accuracy") is not None:
        strip.append(_figure(_("Accuracy"), formats.figure(progress["accuracy"] * 100), "%", ""))
    return strip


def _final_figures(detail: Row) -> list[Row]:
    """Return the figures of a finished job (`detail`: in REST form): how long it ran and, if it requested GPUs,
    its GPU hours."""
    ran = formats.duration(detail["status"]["runtime_seconds"])
    strip = [_figure(_("Ran for"), ran, "", _workers(detail))]
    if _asks_for_gpus(detail):
        hours = formats.measured(gpu_hours_of(UUID(str(detail["id"]))))
        strip.append(_figure(_("GPU hours"), hours, "", _("held, over all attempts")))
    return strip


def _running_figures(detail: Row) -> list[Row]:
    status = detail["status"]
    if not _asks_for_gpus(detail):
        return [_figure(_("Pods"), formats.number(len(status["pods"])), "", _workers(detail))]
    held = _("of %(asked)s") % {"asked": _asked(detail)}
    strip = [_figure(_("GPUs held"), formats.number(status["allocated_gpus"]), held, _workers(detail))]
    if status["state"] in RUNNING_STATES:
        strip.insert(0, _use_figure(status["gpu_utilization"]))
    return strip


def _asked_figures(detail: Row) -> list[Row]:
    """Return figures that every job has (`detail`: in REST form). They are appended last and fill the places that
    more specific figures leave free."""
    attempts = _figure(_("Attempts"), formats.number(detail["status"]["attempt"]), "", _("starts so far"))
    memory, unit = formats.mebibytes(detail["memory_mib"]).split(formats.NBSP)
    return [
        attempts,
        _figure(_("Priority"), formats.number(detail["priority"]), "", _("inside its project")),
        _figure(_("CPUs"), formats.number(detail["cpus"]), "", _("each worker")),
        _figure(_("Memory"), memory, unit, _("each worker")),
        _figure(_("Retries"), formats.number(detail["retries"]), "", _("after a failure")),
        _figure(_("Workers"), formats.number(detail["workers"]), "", _("start together")),
    ]


def explain(actor: Actor, job: Job) -> Row | None:
    """Return why a queued job waits, None if it is not queued: `jobs.queries.explanation` as the actor may see it, with
    "numbers", the compared numbers as (label, text), and "outlook", {"start_estimate"} from the cache, None if none is
    known. For what takes longer to compute see `job_outlook`."""
    if job.state != QUEUED:
        return None
    reasons = explanation(job, visible_project_names(actor))
    shortage = reasons["shortage"] or {}
    numbers = [
        (label, formats.number(shortage[key])) for key, label in _numbers() if shortage.get(key) is not None
    ]
    return reasons | {"numbers": numbers, "outlook": {"start_estimate": known_estimate(job)}}


def job_outlook(actor: Actor, job: Job) -> Row:
    """Return {"start_estimate", "note", "fixes", "is_known"}. `start_estimate`: {"earliest", "latest"} of the expected
    start of a queued job, None if it has none; `note`: why it is unknown or may be sooner, None if neither; `fixes`:
    sentences on changes that would start it; `is_known`: always True, which marks the estimate as computed. Stores the
    estimate. Takes seconds."""
    found = outlook(job, visible_project_names(actor))
    fixes = [fix["message"] for fix in found["would_start_if"]]
    estimate, note = found["start_estimate"], found["start_estimate_note"]
    return {"start_estimate": estimate, "note": note, "fixes": fixes, "is_known": True}


def curves(job: Job, detail: Row, reached: Mapping[int, Row], *, is_whole: bool = False) -> list[Row]:
    """Return the metrics to draw for a job: {"name", "title", "axis" ("step" or "time"), "width" (CSS classes),
    "is_there"}; for kinds that report progress, also those without values yet (`is_there` False). `detail`: the job in
    REST form. `reached`: the last progress of each attempt. `is_whole`: True for the metrics tab, which also shows GPU
    memory."""
    steps = [progress for progress in reached.values() if progress.get("step") is not None]
    reported = {name for name in ("loss", "accuracy") for one in steps if one.get(name) is not None}
    there = reported | _measured(job, detail)
    shown = [
        ("loss", _("Loss"), "step"),
        ("accuracy", _("Accuracy, %"), "step"),
        ("gpu_utilization", _("GPU use, %"), "time"),
    ]
    if is_whole:
        shown.append(("gpu_memory", _("GPU memory, GiB"), "time"))
    # The space of a coming curve is reserved, so that the page does not move when its values arrive.
    is_expected = KINDS[job.kind].reports_progress and (bool(there) or not job.is_final)
    kept = [curve for curve in shown if is_expected or curve[0] in there]
    width = WIDTHS[min(len(kept), 2 if is_whole else 3)]
    return [
        {"name": name, "title": title, "axis": axis, "width": width, "is_there": name in there}
        for name, title, axis in kept
    ]


def events(actor: Actor, job: Job, most: int) -> list[Row]:
    """Return the job's `most` newest events, newest first, without progress, as the actor may see them."""
    rows = Event.objects.filter(job_id=job.pk).exclude(kind="job.progressed").order_by("-seq")
    found = rows.values("seq", "at", "kind", "actor", "reason", "message", "data")[:most]
    sees = visible_project_names(actor)
    return [seen_event(row, sees, job.project.name) for row in found]


def pods(job: Job) -> list[Row]:
    """Return every pod of every attempt in REST form."""
    return [pod for _job_id, pod in pod_rows(Pod.objects.filter(job=job))]


def log_ranks(job: Job) -> list[int]:
    """Return the ranks of the current attempt's pods or, before there are any, those of the pods that the job
    requests."""
    ranks = Pod.objects.filter(job=job, attempt__number=job.attempt).order_by("rank")
    return list(ranks.values_list("rank", flat=True)) or list(range(max(1, job.pods_wanted)))


def log_text(job: Job, attempt: int, rank: int) -> Iterator[str]:
    """Yield the log of the pod of this attempt and rank as text, in pages of lines, with a line for each gap."""
    path = log_path(settings.LOG_DIR, str(job.pk), attempt, rank)
    offset = 0
    while True:
        page = read_page(path, offset, 5000)
        yield _page_text(page)
        if page.next_offset <= offset:
            return
        offset = page.next_offset


def whole_log_text(job: Job, rank: int) -> Iterator[str]:
    """Yield the logs of all attempts in sequence, each after a heading with its number."""
    for number in job.attempts.order_by("number").values_list("number", flat=True):
        yield f"[{_('attempt')} {number}]\n"
        yield from log_text(job, number, rank)


def _measured(job: Job, detail: Row) -> set[str]:
    """Return which of JOB_USES were measured for a job over time. `detail`: the job in REST form."""
    samples = Sample.objects.filter(by="job", subject=str(job.pk), metric__in=JOB_USES.values())
    metrics = set(samples.values_list("metric", flat=True).distinct().order_by())
    if detail["status"]["gpu_utilization"] is not None:
        metrics.add(JOB_USES["gpu_utilization"])
    return {name for name, metric in JOB_USES.items() if metric in metrics}


def _page_text(page: LogPage) -> str:
    """Return the lines of a page, with each gap after the line that precedes it."""
    texts = [(float(line.n), line.text + ("" if line.is_partial else "\n")) for line in page.lines]
    texts += [(gap.after_n + 0.5, f"[{gap.sentence}]\n") for gap in page.gaps]
    return "".join(text for _, text in sorted(texts, key=lambda one: one[0]))


def whole(text: str | None, default: int) -> int:
    """Return a whole number of at most six digits from a query, or `default` if it is missing or malformed."""
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
    position = detail["status"]["queue_position"]
    line = formats.NOTHING if position is None else formats.number(position)
    return [
        _figure(_("Place in line"), line, "", _("of the whole cluster")),
        _figure(_("Waiting for"), "", "", _("since it was submitted")) | {"since": detail["created_at"]},
        _figure(_("GPUs asked for"), _asked(detail), "", _workers(detail)),
    ]


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
    step = f"{_('step')} {formats.number(progress['step'])}"
    if progress.get("epoch") is None:
        return f"{step} {_('of')} {formats.number(progress['total_steps'])}"
    epochs = f" {_('of')} {progress['epochs']}" if progress.get("epochs") else ""
    return f"{_('epoch')} {progress['epoch']}{epochs}, {step}"


def _seconds_per_step(progress: Row) -> str:
    each = progress.get("seconds_per_step")
    return "" if each is None else _("%(seconds)s s per step") % {"seconds": formats.figure(each)}


def _asks_for_gpus(detail: Row) -> bool:
    return bool(detail["gpus"] or detail["gpu_memory_mib"])


def _asked(detail: Row) -> str:
    if detail["gpu_memory_mib"]:
        return formats.mebibytes(detail["gpu_memory_mib"])
    return formats.number((detail["gpus"] or 0) * detail["workers"])
