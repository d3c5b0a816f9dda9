"""REST views of one job: pods, events, logs, metrics, explanation and spec."""

import logging
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from controlplane.access import NotVisible, visible_project_names
from controlplane.api import query
from controlplane.api.json_schema import ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.api.paging import Filter, Listing, paged
from controlplane.api.problems import Problem, bad_request
from controlplane.api.query import BIGGEST
from controlplane.api.views.events import JOB_EVENTS, fetch_events, shape_events
from controlplane.logstore.reader import LogPage, log_path, read_page, tail
from controlplane.models import Event
from jobs.access import job_for
from jobs.api.schemas import POD
from jobs.kinds.spec import to_edge
from jobs.log_ranks import default_log_rank
from jobs.models import Job, Pod
from jobs.outlook import outlook
from jobs.queries import explanation, is_silent, metrics, pod_columns, shape_pods

logger = logging.getLogger(__name__)

PODS = Listing(
    POD,
    {"rank": ("attempt__number", "rank")},
    "rank",
    {
        "attempt": Filter("attempt__number", query.whole(1, 1 << 31, "Of this attempt.")),
        "rank": Filter("rank", query.whole(0, 1 << 31, "With this rank.")),
    },
)
LOGS = {
    "rank": query.whole(
        0, 1 << 31, "The pod with this rank; by default the one whose log represents the job."
    ),
    "attempt": query.whole(1, 1 << 31, "The attempt; the latest when left out."),
    "offset": query.whole(0, BIGGEST, "Offset to continue from: 0, or a next_offset.", default=0),
    "limit": query.whole(1, 10_000, "Lines at most.", default=1000),
    "tail": query.whole(1, 10_000, "The last lines instead of a page."),
    "search": query.text("Only lines that contain this."),
    "follow": query.switch("Stream lines as server-sent events."),
}


class JobPods(ApiView):
    """Pods of every attempt, including finished ones."""

    @PODS.operation("List a job's pods", "Pod")
    def get(self, call: Call, job_id: str) -> Answer:
        rows = Pod.objects.filter(job=job_for(call.actor, job_id))
        return paged(call, rows, PODS, fetch=_fetch_pods, shape=shape_pods)


class JobEvents(ApiView):
    """Events of a job, newest first."""

    @JOB_EVENTS.operation("List a job's events", "Event")
    def get(self, call: Call, job_id: str) -> Answer:
        rows = Event.objects.filter(job_id=job_for(call.actor, job_id).pk)
        shape = partial(shape_events, sees=visible_project_names(call.actor))
        return paged(call, rows, JOB_EVENTS, fetch=fetch_events, shape=shape)


class JobLogs(ApiView):
    """Numbered lines from the log store. Requests with `follow` are routed to the event stream in jobs.log_stream
    instead."""

    @operation(
        "Read a pod's log",
        answer=ref("LogPage"),
        query=LOGS,
        streams="With follow=true: events `line`, `gap`, `attempt` and `end`, each with a JSON object as data.",
    )
    def get(self, call: Call, job_id: str) -> Answer:
        job, wanted = job_for(call.actor, job_id), call.query
        if wanted["tail"] is not None and wanted["search"] is not None:
            raise bad_request("?tail", "tail_or_search", "Give tail or search, not both.")
        attempt = wanted["attempt"] or max(job.attempt, 1)
        rank = default_log_rank(job, attempt) if wanted["rank"] is None else wanted["rank"]
        _check_pod(job, attempt, rank, is_asked=wanted["attempt"] is not None or rank > 0)
        path = log_path(settings.LOG_DIR, str(job.pk), attempt, rank)
        try:
            page = _read(path, wanted)
        except OSError as error:
            logger.warning("a log cannot be read", exc_info=error)
            raise Problem(
                409, "log_unreadable", "This log cannot be read; the server's own log says why."
            ) from error
        if page == LogPage(next_offset=page.next_offset) and is_silent(job.pk, attempt, rank):
            page = replace(page, complete=True)
        return Answer({"rank": rank, **shape_log(page)})


class JobMetrics(ApiView):
    """Utilisation and reported progress of a job."""

    @operation("Current use of the job, and its last reported progress", answer=ref("JobMetrics"))
    def get(self, call: Call, job_id: str) -> Answer:
        return Answer(metrics(job_for(call.actor, job_id)))


class JobExplain(ApiView):
    """Why the job is in its state."""

    @operation("Why the job waits, who holds the GPUs and what would start it", answer=ref("Explanation"))
    def get(self, call: Call, job_id: str) -> Answer:
        job = job_for(call.actor, job_id)
        sees = visible_project_names(call.actor)
        return Answer(explanation(job, sees) | outlook(job, sees))


class JobSpec(ApiView):
    """The spec of a job with defaults filled in."""

    @operation("The spec with defaults filled in", answer=ref("JobSpec"))
    def get(self, call: Call, job_id: str) -> Answer:
        shown = to_edge(job_for(call.actor, job_id).spec)
        return Answer(shown, revision=shown)


def _read(path: Path, wanted: dict[str, Any]) -> LogPage:
    if wanted["tail"] is not None:
        return tail(path, wanted["tail"])
    return read_page(path, wanted["offset"], wanted["limit"], wanted["search"] or None)


def shape_log(page: LogPage) -> dict[str, Any]:
    """Return a page of a log in REST form: its lines, its gaps, the byte offset of the next page and whether the
    log is complete."""
    lines = [
        {
            "n": line.n,
            "time": _time(line.time_ms),
            "stream": line.stream,
            "text": line.text,
            "partial": line.is_partial,
        }
        for line in page.lines
    ]
    gaps = [{"after": gap.after_n, "time": _time(gap.time_ms), "message": gap.message} for gap in page.gaps]
    return {"lines": lines, "next_offset": page.next_offset, "complete": page.complete, "gaps": gaps}


def _time(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def _check_pod(job: Job, attempt: int, rank: int, *, is_asked: bool) -> None:
    """Raise NotVisible for an attempt or rank that never existed. `is_asked`: the request names one; otherwise the
    log of a job that has not started is empty."""
    if is_asked and not Pod.objects.filter(job=job, attempt__number=attempt, rank=rank).exists():
        raise NotVisible(f"The job has no pod of rank {rank} in attempt {attempt}.")


def _fetch_pods(rows: QuerySet[Pod]) -> list[dict[str, Any]]:
    return pod_columns(rows)
