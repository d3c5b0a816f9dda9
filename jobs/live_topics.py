"""Live topics about one job, and about one project with its jobs."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from controlplane.live.registry import Reading, State, TopicKind, Touch, parse_id
from controlplane.models import Event, Project
from controlplane.queries.events import seen_event
from controlplane.queries.projects import project_detail
from controlplane.scheduling.mentions import NAMING, Sees, named_projects
from controlplane.telemetry.metrics import SAMPLED
from jobs.lifecycle import FINAL_STATES
from jobs.log_tail import LogTail
from jobs.models import Job
from jobs.overview_state import read_overview
from jobs.queries import job_columns, job_detail, reason_of, shape_jobs

PROJECT_UNFINISHED_MOST, PROJECT_FINISHED_MOST = 500, 50
JOB_EVENTS_MOST = 200
# Cluster events that change a job's state without an event of the job itself.
CLUSTER_KINDS = ("cluster.lost", "cluster.reached")
_EVENT_COLUMNS = ("seq", "at", "kind", "actor", "reason", "message", "data")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?")


def read_project(_name: str, project_id: int) -> Reading | None:
    """Return the topic's state of a project: its newest unfinished jobs (at most PROJECT_UNFINISHED_MOST) and the
    latest submitted of the finished ones (at most PROJECT_FINISHED_MOST); None if there is no such project."""
    project = Project.objects.select_related("cluster", "department").filter(pk=project_id).first()
    if project is None:
        return None
    jobs = Job.objects.filter(project=project)
    unfinished = jobs.unfinished().order_by("-submit_rank")[:PROJECT_UNFINISHED_MOST]
    finished = jobs.filter(state__in=FINAL_STATES).order_by("-submit_rank")[:PROJECT_FINISHED_MOST]
    columns = [*job_columns(unfinished), *job_columns(finished)]
    rows = {row["id"]: _without_clock(row) for row in shape_jobs(columns, None)}
    state: State = {"project": {project.name: project_detail(project)}, "jobs": rows}
    named = {("jobs", one["id"]): _with_reason(rows[one["id"]], one) for one in columns if _names_others(one)}
    return Reading(state, named)


def read_job(job_id: str, _project_id: int) -> Reading | None:
    """Return a job's detail and its latest events; None if there is no such job."""
    job = Job.objects.select_related("project__cluster", "user").filter(pk=job_id).first()
    if job is None:
        return None
    key, record = str(job.pk), _without_clock(job_detail(job, None))
    column = {"reason": job.reason, "message": job.message, "details": job.details}
    column["project_name"] = job.project.name
    rows = Event.objects.filter(job_id=job.pk).order_by("-seq").values(*_EVENT_COLUMNS)[:JOB_EVENTS_MOST]
    events = {str(row["seq"]): partial(seen_event, row, project=job.project.name) for row in rows}
    naming: dict[tuple[str, str], Callable[[Sees], Any]] = {
        ("events", str(row["seq"])): events[str(row["seq"])] for row in rows if row["reason"] in NAMING
    }
    if _names_others(column):
        naming["job", key] = _with_reason(record, column)
    return Reading(
        {"job": {key: record}, "events": {seq: make(sees=None) for seq, make in events.items()}}, naming
    )


def _names_others(row: Mapping[str, Any]) -> bool:
    """Return whether the reason in a job's columns names a job of another project."""
    return not named_projects(row["details"]) <= {row["project_name"]}


def _with_reason(record: dict[str, Any], row: Mapping[str, Any]) -> Callable[[Sees], dict[str, Any]]:
    """Return a function that adds to a job's record its reason, as a reader of the given projects may see it."""
    return lambda sees: record | {"status": record["status"] | {"reason": reason_of(row, sees)}}


def _without_clock(row: dict[str, Any]) -> dict[str, Any]:
    """Return a job without the values that change with the clock alone; clients count from `started_at`."""
    status = {name: value for name, value in row["status"].items() if name != "runtime_seconds"}
    return row | {"status": status}


def _project_name(subject: str) -> str | None:
    return subject if _NAME.fullmatch(subject) else None


def _project_id(name: str) -> int | None:
    return Project.objects.filter(name=name).values_list("pk", flat=True).first()


def _project_of_job(job_id: str) -> int | None:
    return Job.objects.filter(pk=job_id).values_list("project_id", flat=True).first()


def _is_project_touched(touch: Touch) -> bool:
    return touch.event.project_id in (None, touch.project_id)


def _is_job_touched(touch: Touch) -> bool:
    event = touch.event
    if event.kind == SAMPLED:
        return touch.subject in event.data["jobs"]
    return str(event.job_id) == touch.subject or event.kind in CLUSTER_KINDS or _may_move(touch)


def _may_move(touch: Touch) -> bool:
    """Return whether events of other jobs may change this one: True until it is final."""
    record = touch.state.get("job", {}).get(touch.subject)
    # Its queue position and hold reason depend on other jobs, so they change without an event of its own.
    return record is None or record["status"]["state"] not in FINAL_STATES


OVERVIEW, LOG_TAIL = read_overview, LogTail
TOPICS = (
    TopicKind("project", _project_name, _project_id, read_project, _is_project_touched),
    TopicKind("job", parse_id, _project_of_job, read_job, _is_job_touched),
)
