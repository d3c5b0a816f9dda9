"""Read a topic's state from rows: {collection: {key: record}}, all JSON.

States are independent of the clock (pages count seconds themselves), so an unchanged database gives an equal state.
Call these inside `snapshot_read.one_moment`, with the event number that the state gets.
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from django.utils import timezone

from controlplane.models import Event, Node, Project
from controlplane.queries.devices import nodes_with_devices
from controlplane.queries.events import seen_event
from controlplane.queries.overview import (
    device_sums,
    job_groups,
    node_counts,
    project_shares,
    queued_rows,
    running_rows,
    totals,
)
from controlplane.queries.projects import project_detail
from controlplane.scheduling.mentions import NAMING, Sees, named_projects
from jobs.lifecycle import FINAL_STATES
from jobs.models import Job
from jobs.queries import job_columns, job_detail, reason_of, shape_jobs

ROWS_MOST = 200  # running jobs, queued jobs and nodes in the overview's lists; the totals count all of them
PROJECT_UNFINISHED_MOST, PROJECT_FINISHED_MOST = 500, 50
JOB_EVENTS_MOST = 200

State = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Reading:
    """A topic's state for a reader of all projects, and by (collection, key) how to rebuild the records that name
    jobs of other projects.
    """

    state: State
    naming: Mapping[tuple[str, str], Callable[[Sees], Any]] = field(default_factory=dict)

    def seen_by(self, sees: Sees) -> State:
        """Return the state for a reader of these projects. Shares the records that need no change."""
        if sees is None or not self.naming:
            return self.state
        state = dict(self.state)
        for (collection, key), make in self.naming.items():
            if state[collection] is self.state[collection]:
                state[collection] = dict(state[collection])
            if key in state[collection]:
                state[collection][key] = make(sees)
        return state


@dataclass(frozen=True, slots=True)
class Overview(Reading):
    """The overview without its job lists, which differ by reader."""

    def seen_by(self, sees: Sees) -> State:
        """Return the overview for a reader of these projects. Omits other projects' jobs; a device held by such a job
        shows its project, since GPUs are shared. Three queries.
        """
        return self.state | {
            "running": {row["id"]: row for row in running_rows(sees, ROWS_MOST)},
            "queued": {row["id"]: row for row in queued_rows(sees, ROWS_MOST)},
            "nodes": {name: _veiled(node, sees) for name, node in self.state["nodes"].items()},
        }


def read_overview(seq: int) -> Overview:
    """Return the overview, in a fixed number of queries. `seq` is the number of the newest event."""
    nodes = nodes_with_devices(Node.objects.order_by("name")[:ROWS_MOST], None)
    state: State = {
        "totals": {"all": totals(device_sums(), node_counts(), job_groups())},
        "projects": dict(project_shares()),
        "nodes": {node["name"]: _node(node) for node in nodes},
    }
    state["series"] = {"latest": _latest(state, seq)}
    return Overview(state)


def queue_of(overview: State) -> State:
    """Return the state of the topic `queue` from an overview."""
    return {"queued": overview["queued"]}


def read_project(project_id: int) -> Reading | None:
    """Return a project and its jobs: all unfinished ones up to a bound, and the last that finished."""
    project = Project.objects.select_related("cluster", "department").filter(pk=project_id).first()
    if project is None:
        return None
    jobs = Job.objects.filter(project=project)
    unfinished = jobs.exclude(state__in=FINAL_STATES).order_by("-submit_rank")[:PROJECT_UNFINISHED_MOST]
    finished = jobs.filter(state__in=FINAL_STATES).order_by("-submit_rank")[:PROJECT_FINISHED_MOST]
    columns = [*job_columns(unfinished), *job_columns(finished)]
    rows = {row["id"]: _without_clock(row) for row in shape_jobs(columns, None)}
    state: State = {"project": {project.name: project_detail(project)}, "jobs": rows}
    named = {("jobs", one["id"]): _with_reason(rows[one["id"]], one) for one in columns if _names_others(one)}
    return Reading(state, named)


def read_job(job_id: uuid.UUID | str) -> Reading | None:
    """Return a job's detail and its latest events."""
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


def overview_document(state: State, seq: int, now: datetime | None = None) -> dict[str, Any]:
    """Return the answer of GET /telemetry/overview from the state of the topic `overview`: lists instead of keyed
    records, with run and waiting times as of `now`.
    """
    moment = now or timezone.now()
    return {
        **state["totals"]["all"],
        "projects": list(state["projects"].values()),
        "running": [
            row | {"runtime_seconds": _seconds(row["started_at"], moment)}
            for row in state["running"].values()
        ],
        "queued": [
            row | {"waiting_seconds": _seconds(row["queued_at"], moment)} for row in state["queued"].values()
        ],
        "node_list": list(state["nodes"].values()),
        "seq": seq,
    }


_EVENT_COLUMNS = ("seq", "at", "kind", "actor", "reason", "message", "data")
_DEVICE_FIELDS = ("index", "utilization", "memory_used_mib", "memory_mib", "model", "is_foreign")
_SHARE_FIELDS = ("job", "name", "project", "milli_gpus")


def _node(node: dict[str, Any]) -> dict[str, Any]:
    devices = [
        {name: device[name] for name in _DEVICE_FIELDS}
        | {"shares": [{name: share[name] for name in _SHARE_FIELDS} for share in device["shares"]]}
        for device in node["devices"]
    ]
    return node | {"devices": devices}


def _latest(state: State, seq: int) -> dict[str, Any]:
    totals = state["totals"]["all"]
    return {
        "at": Event.objects.filter(seq=seq).values_list("at", flat=True).first(),
        "gpu_utilization": totals["gpu_utilization"],
        "gpu_memory_utilization": totals["gpu_memory_utilization"],
        "projects": {name: row["allocated_gpus"] for name, row in state["projects"].items()},
    }


def _names_others(row: Mapping[str, Any]) -> bool:
    """Return whether the reason in a job's columns names a job of another project."""
    return not named_projects(row["details"]) <= {row["project_name"]}


def _with_reason(record: dict[str, Any], row: Mapping[str, Any]) -> Callable[[Sees], dict[str, Any]]:
    """Return a function that rebuilds a job's record with the reason that a given reader may see."""
    return lambda sees: record | {"status": record["status"] | {"reason": reason_of(row, sees)}}


def _veiled(node: dict[str, Any], sees: Sees) -> dict[str, Any]:
    if sees is None:
        return node
    devices = [
        device | {"shares": [_veiled_share(share, sees) for share in device["shares"]]}
        for device in node["devices"]
    ]
    return node | {"devices": devices}


def _veiled_share(share: dict[str, Any], sees: frozenset[str]) -> dict[str, Any]:
    if share["project"] in sees:
        return share
    return {"job": None, "project": share["project"], "milli_gpus": share["milli_gpus"]}


def _without_clock(row: dict[str, Any]) -> dict[str, Any]:
    """Omit fields that change with the clock alone; readers count from `started_at`."""
    status = {name: value for name, value in row["status"].items() if name != "runtime_seconds"}
    return row | {"status": status}


def _seconds(since: datetime | None, now: datetime) -> int | None:
    return None if since is None else max(0, int((now - since).total_seconds()))
