"""Rows -> the state of a topic: {collection: {key: record}}, all of it plain JSON.

Nothing here depends on the time of day (pages count seconds themselves), so an unchanged database gives an unchanged
state. Run these inside `reading.one_moment`, with the event number that the state is stamped with.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from django.db.models import Count, F, Q, Sum
from django.utils import timezone

from controlplane.models import Device, Event, Node, Project
from controlplane.queries.events import seen_event
from controlplane.queries.projects import project_detail
from controlplane.scheduling.mentions import NAMING, Sees, named_projects
from jobs.kinds.spec import decimal
from jobs.lifecycle import ACTIVE_STATES, FINAL_STATES, QUEUED
from jobs.models import Allocation, Job, Pod
from jobs.queries import job_columns, job_detail, reason_of, shape_jobs

ROWS_MOST = 200  # rows of running and of queued jobs; the totals count all of them
PROJECT_UNFINISHED_MOST, PROJECT_FINISHED_MOST = 500, 50
JOB_EVENTS_MOST = 200

State = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Reading:
    """A topic's state as a reader of everything sees it, and under (collection, key) how to make anew the records that
    name jobs of other projects."""

    state: State
    naming: Mapping[tuple[str, str], Callable[[Sees], Any]] = field(default_factory=dict)

    def seen_by(self, sees: Sees) -> State:
        """Return the state for a reader who sees the jobs of these projects. Shares what it need not change."""
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
class Whole(Reading):
    """The overview."""

    def seen_by(self, sees: Sees) -> State:
        """Return the overview for a reader of these projects. Others' jobs are left out; what they hold of a device
        stays, with the project's name, since the GPUs are shared."""
        if sees is None:
            return self.state
        state = super(Whole, self).seen_by(sees)
        return state | {
            "running": _of(state["running"], sees),
            "queued": _of(state["queued"], sees),
            "nodes": {name: _veiled(node, sees) for name, node in state["nodes"].items()},
        }


def read_overview(seq: int) -> Whole:
    """Return the overview, in a fixed number of queries. `seq` is the number of the newest event."""
    projects = list(Project.objects.order_by("name").values(*_PROJECT_COLUMNS))
    held = _held_by_project()
    nodes = _nodes()
    running, (queued, naming) = _running(), _queued()
    state: State = {
        "totals": {"all": _totals(nodes)},
        "projects": {row["name"]: _project(row, held.get(row["id"], 0)) for row in projects},
        "running": running,
        "queued": queued,
        "nodes": {name: _without_sums(node) for name, node in nodes.items()},
    }
    state["series"] = {"latest": _latest(state, seq)}
    return Whole(state, naming)


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
    """Return the answer of GET /telemetry/overview from the same state that the topic `overview` has: lists instead
    of keyed records, with run and waiting times as of `now`."""
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
_PROJECT_COLUMNS = ("id", "name", "gpu_quota_milli", "fair_share_milli", "palette_index")


def _project(row: dict[str, Any], held_milli: int) -> dict[str, Any]:
    return {
        "name": row["name"],
        "gpu_quota": decimal(row["gpu_quota_milli"]),
        "allocated_gpus": decimal(held_milli),
        "fair_share_gpus": decimal(row["fair_share_milli"]),
        "palette_index": row["palette_index"],
    }


def _held_by_project() -> dict[int, int]:
    live = Allocation.objects.filter(released_at=None).values_list("pod__job__project_id")
    return dict(live.annotate(held=Sum("milli_gpus")).order_by())


def _nodes() -> dict[str, dict[str, Any]]:
    """Every node with its devices and who holds shares of them; three queries."""
    shares: dict[int, list[dict[str, Any]]] = defaultdict(list)
    live = Allocation.objects.filter(released_at=None).order_by("pk")
    columns = ("device_id", "pod__job_id", "pod__job__project__name", "milli_gpus")
    for device_id, job_id, project, milli in live.values_list(*columns):
        shares[device_id].append({"job": str(job_id), "project": project, "milli_gpus": milli})
    devices: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in Device.objects.order_by("node_id", "index").values(*_DEVICE_COLUMNS):
        devices[row["node_id"]].append(row | {"shares": shares[row["id"]]})
    nodes = Node.objects.order_by("name").values(*_NODE_COLUMNS)
    return {row["name"]: _node(row, devices[row["id"]]) for row in nodes}


_NODE_COLUMNS = ("id", "name", "is_ready", "is_cordoned", "is_closed", "cluster__is_reachable")
_DEVICE_COLUMNS = (
    "id",
    "node_id",
    "index",
    "model",
    "memory_mib",
    "memory_used_mib",
    "utilization",
    "allocated_milli",
    "is_foreign",
)


def _node(row: Mapping[str, Any], devices: list[dict[str, Any]]) -> dict[str, Any]:
    measured = [device["utilization"] for device in devices if device["utilization"] is not None]
    allocated = sum(device["allocated_milli"] for device in devices)
    return {
        "name": row["name"],
        "is_ready": row["is_ready"],
        "is_reachable": row["cluster__is_reachable"],
        "is_cordoned": row["is_cordoned"] or row["is_closed"],
        "gpus": len(devices),
        "allocated": decimal(allocated),
        "utilization": round(sum(measured) / len(measured), 4) if measured else None,
        "devices": [_device(device) for device in devices],
        "sums": _sums(devices, allocated),
    }


def _device(row: dict[str, Any]) -> dict[str, Any]:
    names = ("index", "utilization", "memory_used_mib", "memory_mib", "model", "is_foreign", "shares")
    return {name: row[name] for name in names}


def _sums(devices: list[dict[str, Any]], allocated: int) -> dict[str, float]:
    # what nothing measures is neither idle nor busy
    measured = [device["utilization"] for device in devices if device["utilization"] is not None]
    idle = [device for device in devices if device["allocated_milli"] and device["utilization"] == 0]
    known = [device for device in devices if device["memory_used_mib"] is not None]
    return {
        "allocated": allocated,
        "idle": sum(device["allocated_milli"] for device in idle),
        "measured": len(measured),
        "utilization": sum(measured),
        "memory_used": sum(device["memory_used_mib"] for device in known),
        "memory": sum(device["memory_mib"] for device in known),
    }


def _without_sums(node: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in node.items() if name != "sums"}


def _totals(nodes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The cluster in ten numbers. A GPU is idle but allocated when somebody holds it and it was last seen at 0."""
    sums = [node["sums"] for node in nodes.values()]
    total = {name: sum(part[name] for part in sums) for name in _SUM_NAMES}
    gpus = sum(node["gpus"] for node in nodes.values())
    counts = Job.objects.exclude(state__in=FINAL_STATES).aggregate(
        running=Count("pk", filter=Q(state__in=ACTIVE_STATES)), queued=Count("pk", filter=Q(state=QUEUED))
    )
    return {
        "nodes": len(nodes),
        "nodes_ready": sum(node["is_ready"] and node["is_reachable"] for node in nodes.values()),
        "gpus": gpus,
        "gpus_allocated": decimal(int(total["allocated"])),
        "gpus_idle_allocated": decimal(int(total["idle"])),
        "gpu_utilization": round(total["utilization"] / total["measured"], 4) if total["measured"] else None,
        "gpu_memory_utilization": round(total["memory_used"] / total["memory"], 4)
        if total["memory"]
        else None,
        "jobs_running": counts["running"],
        "jobs_queued": counts["queued"],
    }


_SUM_NAMES = ("allocated", "idle", "measured", "utilization", "memory_used", "memory")


def _running() -> dict[str, dict[str, Any]]:
    jobs = Job.objects.filter(state__in=ACTIVE_STATES).order_by("-submit_rank")[:ROWS_MOST]
    rows = list(_named(jobs).values(*_RUNNING_COLUMNS))
    where = _nodes_of([row["id"] for row in rows])
    return {
        str(row["id"]): {
            **_head(row),
            "state": row["state"],
            "node": ", ".join(where[row["id"]]) or None,
            "gpus": decimal(row["allocated_milli"]),
            "started_at": row["started_at"],
            "progress": row["progress"],
            "gpu_utilization": row["gpu_utilization"],
        }
        for row in rows
    }


def _queued() -> tuple[dict[str, dict[str, Any]], dict[tuple[str, str], Callable[[Sees], Any]]]:
    """Return the queued jobs, and how to make those anew whose reason names a job of another project."""
    jobs = Job.objects.filter(state=QUEUED)
    jobs = jobs.order_by(F("queue_position").asc(nulls_last=True), "submit_rank")[:ROWS_MOST]
    rows = list(_named(jobs).values(*_QUEUED_COLUMNS))
    naming: dict[tuple[str, str], Callable[[Sees], Any]] = {
        ("queued", str(row["id"])): partial(_queued_row, row) for row in rows if _names_others(row)
    }
    return {str(row["id"]): _queued_row(row, None) for row in rows}, naming


def _queued_row(row: dict[str, Any], sees: Sees) -> dict[str, Any]:
    return {
        **_head(row),
        "gpus": decimal(row["milli_gpus"] * row["pods_wanted"]),
        "gpu_memory_mib": row["gpu_memory_mib"],
        "queued_at": row["queued_at"],
        "queue_position": row["queue_position"],
        "reason": row["reason"],
        "message": reason_of(row, sees)["message"],
        "start_estimate": None,
    }


_HEAD_COLUMNS = ("id", "name", "project_name", "username", "kind")
_RUNNING_COLUMNS = (
    *_HEAD_COLUMNS,
    "state",
    "allocated_milli",
    "started_at",
    "progress",
    "gpu_utilization",
)
_QUEUED_COLUMNS = (
    *_HEAD_COLUMNS,
    "milli_gpus",
    "gpu_memory_mib",
    "pods_wanted",
    "queued_at",
    "queue_position",
    "reason",
    "message",
    "details",
)


def _named(jobs: Any) -> Any:
    return jobs.annotate(project_name=F("project__name"), username=F("user__username"))


def _head(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": str(row["id"]),
        "name": row["name"],
        "project": row["project_name"],
        "user": row["username"],
        "kind": row["kind"],
    }


def _nodes_of(job_ids: list[uuid.UUID]) -> dict[uuid.UUID, list[str]]:
    """The nodes that each job's unreleased pods are on, in order of rank, each once."""
    where: dict[uuid.UUID, list[str]] = defaultdict(list)
    live = Pod.objects.filter(job_id__in=job_ids, released_at=None).order_by("rank")
    for job_id, node in live.values_list("job_id", "node__name"):
        if node not in where[job_id]:
            where[job_id].append(node)
    return where


def _latest(state: State, seq: int) -> dict[str, Any]:
    totals = state["totals"]["all"]
    return {
        "at": Event.objects.filter(seq=seq).values_list("at", flat=True).first(),
        "gpu_utilization": totals["gpu_utilization"],
        "gpu_memory_utilization": totals["gpu_memory_utilization"],
        "projects": {name: row["allocated_gpus"] for name, row in state["projects"].items()},
    }


def _names_others(row: Mapping[str, Any]) -> bool:
    """True when the reason in a job's columns names a job of another project."""
    return not named_projects(row["details"]) <= {row["project_name"]}


def _with_reason(record: dict[str, Any], row: Mapping[str, Any]) -> Callable[[Sees], dict[str, Any]]:
    """Return how to make a job's record anew, with its reason as a reader sees it."""
    return lambda sees: record | {"status": record["status"] | {"reason": reason_of(row, sees)}}


def _of(rows: dict[str, Any], visible: frozenset[str]) -> dict[str, Any]:
    return {key: row for key, row in rows.items() if row["project"] in visible}


def _veiled(node: dict[str, Any], visible: frozenset[str]) -> dict[str, Any]:
    devices = [
        device
        | {
            "shares": [
                share if share["project"] in visible else share | {"job": None} for share in device["shares"]
            ]
        }
        for device in node["devices"]
    ]
    return node | {"devices": devices}


def _without_clock(row: dict[str, Any]) -> dict[str, Any]:
    """Leave out what changes with the clock alone; readers count from `started_at`."""
    status = {name: value for name, value in row["status"].items() if name != "runtime_seconds"}
    return row | {"status": status}


def _seconds(since: datetime | None, now: datetime) -> int | None:
    return None if since is None else max(0, int((now - since).total_seconds()))
