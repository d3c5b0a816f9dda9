"""Jobs as plain data in REST form. The API, pages and live topics read jobs through here.

Lists build no model instances: rows come as tuples, JSON columns as text, and one query each reads the pods and
devices of a whole page.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import orjson
from django.conf import settings
from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import DurationField, ExpressionWrapper, F, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from controlplane.config.service_hosts import ServiceAddress
from controlplane.engines.kinds import is_delegated
from controlplane.notation import decimal
from controlplane.scheduling.growth import AWAITED, awaited_sentence
from controlplane.scheduling.mentions import OWN, Sees, seen_by, sentence
from jobs.kinds.membership import ScalePlan
from jobs.kinds.registry import KINDS
from jobs.kinds.spec import rest_units
from jobs.lifecycle import ACTIVE_STATES, FINAL_STATES, QUEUED, SUSPENDED
from jobs.models import Allocation, Job, Pod, ScaleOperation

EXPLANATION_KEYS = frozenset({"ahead", "holders", "would_start_if"})
"""Parts of a recorded reason that only `explain` shows: long, and some name what others hold."""

_COUNTS = frozenset({"pods", "pods_that_fit", "resource"})

_JSON = ("spec", "details", "progress")
_MOMENTS = ("created_at", "started_at", "finished_at")
_PLAIN = (
    "name",
    "state",
    "reason",
    "message",
    "attempt",
    "allocated_milli",
    "pods_started",
    "queue_position",
    "exit_code",
    "gpu_utilization",
    "priority",
    "submit_rank",
)
_POD_COLUMNS = (
    "id",
    "job_id",
    "job__name",
    "attempt__number",
    "rank",
    "role",
    "state",
    "reason",
    "message",
    "node__name",
    "exit_code",
    "started_at",
    "finished_at",
    "gpu_utilization",
    "gpu_memory_mib",
)
_COLUMNS = ("id", *_PLAIN, *_JSON, *_MOMENTS, "project_name", "username", "is_reachable")


def job_rows(jobs: QuerySet[Job], sees: Sees = OWN) -> list[dict[str, Any]]:
    """Return the jobs of a (sliced) queryset in the form of job_detail, in three queries for any number.

    Lists the pods of jobs that hold GPUs; a finished job's pods are only in its detail. `sees`: the projects whose
    jobs the reader may see, None for all; by default each job's own project.
    """
    return shape_jobs(job_columns(jobs), sees)


def shape_jobs(rows: Sequence[dict[str, Any]], sees: Sees = OWN) -> list[dict[str, Any]]:
    """Return jobs in REST form from their columns (`job_columns`); two queries read the pods of all. `sees`: as in
    `job_rows`."""
    return [shape_job(row, pods, sees) for row, pods in _with_pods(rows)]


def job_columns(jobs: QuerySet[Job]) -> list[dict[str, Any]]:
    """Return the columns that `shape_job` needs, one dict per job."""
    beside = {"project_name": "project__name", "username": "user__username"}
    beside["is_reachable"] = "project__cluster__is_reachable"
    return plain_rows(jobs.annotate(**{name: F(path) for name, path in beside.items()}), _COLUMNS)


def plain_rows(jobs: QuerySet[Job], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return columns of jobs, one dict per job: plain values, JSON decoded. Booleans are 0 and 1 on SQLite."""
    try:
        sql, parameters = jobs.values_list(*columns).query.sql_with_params()
    except EmptyResultSet:
        return []
    # Read directly from the cursor: Django's conversion of JSON, times and ids takes as long as the rest of a
    # list together.
    with connections[jobs.db].cursor() as cursor:
        cursor.execute(sql, parameters)
        rows = [dict(zip(columns, values, strict=True)) for values in cursor.fetchall()]
    decoders = [(name, decoder) for name in columns if (decoder := decoder_of(name)) is not None]
    for row in rows:
        row["id"] = plain_id(row["id"])
        for name, decoder in decoders:
            row[name] = decoder(row[name])
    return rows


def decoder_of(column: str) -> Callable[[Any], Any] | None:
    """Return the function that converts the database driver's value of this column; None if the value is used as
    it is."""
    if column in _JSON:
        return orjson.loads
    return _moment if column in (*_MOMENTS, "not_before", "queued_at") else None


def job_detail(job: Job, sees: Sees = OWN) -> dict[str, Any]:
    """Return one job in REST form, with the pods of its current attempt. Load `project__cluster` and `user` with
    the job to avoid further queries. `sees`: the projects whose jobs the reader may see, None for all; by default
    the job's own project."""
    row = {name: getattr(job, name) for name in ("id", *_PLAIN, *_JSON, *_MOMENTS)}
    row |= {"project_name": job.project.name, "username": job.user.username}
    row["is_reachable"] = job.project.cluster.is_reachable
    return shape_job(row, shown_pods(job), sees)


def shown_pods(job: Job) -> list[dict[str, Any]]:
    """Return the pods of the current attempt; for a queued job, only pods that still exist."""
    if not job.attempt:
        return []
    pods = Pod.objects.filter(job=job, attempt__number=job.attempt)
    if job.state in (QUEUED, SUSPENDED):
        # For a queued job: those of the previous attempt that are still ending.
        pods = pods.filter(released_at=None)
    return [pod for _, pod in pod_rows(pods)]


def pod_rows(pods: QuerySet[Pod]) -> list[tuple[uuid.UUID, dict[str, Any]]]:
    """Return (job id, pod in REST form), ordered by attempt, job and rank; one query, devices included."""
    columns = (*_POD_COLUMNS, "allocations__device__index", "allocations__milli_gpus")
    ordered = pods.order_by("attempt__number", "job_id", "rank", "allocations__device__index")
    found: dict[int, tuple[uuid.UUID, dict[str, Any]]] = {}
    for row in ordered.values(*columns):
        # The join gives one row per device of a pod, so a pod may come again.
        if row["id"] not in found:
            found[row["id"]] = (row["job_id"], _shape_pod(row, []))
        if row["allocations__milli_gpus"] is not None:
            share = row["allocations__milli_gpus"] / 1000
            found[row["id"]][1]["devices"].append(
                {"index": row["allocations__device__index"], "share": share}
            )
    return list(found.values())


def pod_columns(pods: QuerySet[Pod]) -> list[dict[str, Any]]:
    """Return the columns that `shape_pods` needs, in the queryset's order."""
    return [dict(row) for row in pods.values(*_POD_COLUMNS)]


def shape_pods(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return pods in REST form; one query for all their devices."""
    devices = devices_of(Allocation.objects.filter(pod_id__in=[row["id"] for row in rows]))
    return [_shape_pod(row, devices[row["id"]]) for row in rows]


def is_silent(job_id: uuid.UUID | str, attempt: int, rank: int) -> bool:
    """Return whether a pod certainly has no log: it was released without having started, or does not exist and
    its job has ended."""
    pods = Pod.objects.filter(job_id=job_id, attempt__number=attempt, rank=rank)
    moments = pods.values_list("started_at", "released_at").first()
    if moments is None:
        return Job.objects.filter(pk=job_id, state__in=FINAL_STATES).exists()
    started_at, released_at = moments
    return started_at is None and released_at is not None


def metrics(job: Job) -> dict[str, Any]:
    """Return the job's current use in REST form (component JobMetrics): utilisation 0 to 1 and GPU memory in MiB of
    each unreleased pod of the current attempt, null while unknown, and its last reported progress."""
    columns = ("rank", "gpu_utilization", "gpu_memory_mib")
    pods = Pod.objects.filter(job=job, attempt__number=job.attempt, released_at=None).order_by("rank")
    return {
        "gpu_utilization": job.gpu_utilization,
        "progress": job.progress,
        "pods": [dict(row) for row in pods.values(*columns)],
    }


def scale_shape(operation: ScaleOperation) -> dict[str, Any]:
    """Return a scale operation in REST form, with its state, ranks, times and measured cost."""
    return {
        "id": str(operation.pk),
        "from": operation.from_workers,
        "to": operation.to_workers,
        "state": operation.state,
        "cause": operation.cause,
        "requested_by": operation.requested_by,
        "message": operation.message,
        "joining": operation.joining,
        "leaving": operation.leaving,
        "generation": operation.generation,
        "created_at": operation.created_at,
        "deadline": operation.deadline,
        "published_at": operation.published_at,
        "finished_at": operation.finished_at,
        "lost_steps": operation.lost_steps,
        "repeated_steps": operation.repeated_steps,
        "pause_seconds": operation.pause_seconds,
    }


def planned_scale_shape(plan: ScalePlan, requested_by: str) -> dict[str, Any]:
    """Return a scale plan in REST form, as the operation that `requested_by` would create; its id is null and its
    state `planned`."""
    operation = ScaleOperation(
        requested_by=requested_by,
        from_workers=plan.from_workers,
        to_workers=plan.to_workers,
        state="planned",
        leaving=[rank for rank, _ in plan.leaving],
        message=plan.message,
    )
    return scale_shape(operation) | {"id": None, "created_at": None}


def shape_job(row: Mapping[str, Any], pods: list[dict[str, Any]], sees: Sees = OWN) -> dict[str, Any]:
    """Return a job in REST form from its columns (`job_columns`) and its pods in REST form. `sees`: as in
    `job_rows`."""
    spec, is_waiting = row["spec"], row["state"] in (QUEUED, SUSPENDED)
    return {
        # Jobs stored by older versions have none.
        "code": None,
        "worker_sizes": [],
        "worker_step": None,
        "worker_speeds": {},
        **spec,
        **rest_units(spec),
        "id": str(row["id"]),
        "project": row["project_name"],
        "user": row["username"],
        "created_at": row["created_at"],
        "status": {
            "state": row["state"],
            "is_reachable": bool(row["is_reachable"]),
            "reason": _with_checkpoint(reason_of(row, sees), row),
            "attempt": row["attempt"],
            "allocated_gpus": decimal(row["allocated_milli"]),
            "workers": None if is_waiting else row["pods_started"] or None,
            "queue_position": row["queue_position"],
            "start_estimate": None,
            "started_at": row["started_at"],
            "finished_at": row["finished_at"],
            "runtime_seconds": None
            if is_waiting
            else _runtime_seconds(row["started_at"], row["finished_at"]),
            "exit_code": row["exit_code"],
            "gpu_utilization": row["gpu_utilization"],
            "service_urls": service_urls(row["id"], spec) if row["state"] in ACTIVE_STATES else [],
            "progress": row["progress"],
            "pods": pods,
        },
    }


def reason_of(row: Mapping[str, Any], sees: Sees) -> dict[str, Any]:
    """Return {"code", "message", "details"} from a job's columns, for a reader of its project who may also see
    the jobs of the projects `sees` (None: all). Every recorded reason that users see goes through this function."""
    allowed = None if sees is None else sees | {row["project_name"]}
    code, details = row["reason"], row["details"]
    shown = in_gpus(seen_by(details, allowed))
    for key in EXPLANATION_KEYS & shown.keys():
        del shown[key]
    message = sentence(code, row["message"], details, allowed)
    if AWAITED in details:
        awaited = details[AWAITED]
        names = {"stopping": seen_by({"stopping": awaited["stopping"]}, allowed)["stopping"]}
        # Omits the reserved nodes and devices of `awaited`: a reason in REST form names none.
        shown[AWAITED] = {"workers": awaited["workers"], "asked": awaited["asked"], **names}
        message = f"{message} {awaited_sentence(awaited, allowed)}".strip()
    return {"code": code, "message": message, "details": shown}


def _with_checkpoint(reason: dict[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reason with the checkpoint from which a suspended job continues appended to its message; that of
    any other job unchanged."""
    if row["state"] != SUSPENDED or not row["attempt"]:
        return reason
    # Computed at read time, because the job's last log lines may be read after the suspension.
    return reason | {"message": f"{reason['message']} {checkpoint_text(row['progress'])}"}


def checkpoint_text(progress: Mapping[str, Any]) -> str:
    """Return a sentence about an attempt's newest checkpoint."""
    step = progress.get("checkpoint_step")
    if step is not None:
        return f"Checkpoint at step {step:,}."
    return "Its checkpoint is kept." if progress.get("checkpoint_at") else "No checkpoint was reported."


def in_gpus(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers with milli-GPUs converted to GPUs: `free_milli_gpus: 500` becomes `free_gpus: 0.5`."""
    shown = dict(numbers)
    for key in [key for key in shown if key.endswith("milli_gpus")]:
        value = shown.pop(key)
        shown[key.removesuffix("milli_gpus") + "gpus"] = None if value is None else decimal(value)
    return shown


def explanation(job: Job, sees: Sees) -> dict[str, Any]:
    """Return why a job is in its state, as recorded by the scheduler, in REST form (component Explanation) without what
    `jobs.outlook` adds. Jobs ahead of it in projects outside `sees` (None: all) are counted but not named; of the jobs
    that hold GPUs only the project is named."""
    details = job.details if job.state == QUEUED else {}
    row = {name: getattr(job, name) for name in ("reason", "message", "details")}
    return {
        "state": job.state,
        "is_reachable": job.project.cluster.is_reachable,
        "reason": reason_of(row | {"project_name": job.project.name}, sees),
        "shortage": _shortage(details),
        "queue_position": job.queue_position,
        "ages_at": _ages_at(job),
        "ahead": _ahead(details.get("ahead", ()), sees),
        "holders": [in_gpus(holder) for holder in details.get("holders", ())],
    }


def _ages_at(job: Job) -> datetime | None:
    """Return when a gang that has never started may take GPUs that projects borrow (controlplane.scheduling.ageing);
    None for a job that does not age."""
    after = settings.GANG_AGEING_SECONDS
    if not after or job.state != QUEUED or job.attempt or is_delegated(job.project.cluster.scheduler):
        return None
    bounds = KINDS[job.kind].bounds(job.spec)
    is_gang = (job.pods_wanted if bounds is None else bounds[0]) > 1
    return job.created_at.replace(microsecond=0) + timedelta(seconds=after) if is_gang else None


def service_urls(job_id: uuid.UUID | str, spec: Mapping[str, Any]) -> list[str]:
    """Return the URL of every declared port. If browsers cannot reach the services host, it is a URL of the
    control plane whose page names the missing setting."""
    services = settings.SERVICES
    if not spec["ports"]:
        return []
    if not services.is_reachable_from(urlsplit(settings.PUBLIC_URL).netloc):
        return [f"{settings.PUBLIC_URL}/services/{job_id}/{port['port']}/" for port in spec["ports"]]
    return [f"{services.origin(ServiceAddress(str(job_id), port['port']))}/" for port in spec["ports"]]


def _shortage(details: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the GPUs and pods that the scheduler compared for a queued job, as recorded in `details`, and how many
    GPUs are missing; None if `details` records no comparison."""
    if "request_milli_gpus" not in details:
        return None
    numbers = {key: value for key, value in details.items() if key.endswith("milli_gpus") or key in _COUNTS}
    free = details.get("free_milli_gpus")
    if free is not None:
        numbers["missing_milli_gpus"] = max(0, details["request_milli_gpus"] - free)
    return in_gpus(numbers)


def _ahead(ids: Sequence[str], sees: Sees) -> list[dict[str, Any]]:
    columns = ("id", "name", "project__name", "priority", "state")
    found = {str(row["id"]): row for row in Job.objects.filter(pk__in=ids).values(*columns)} if ids else {}
    rows = [found[job_id] for job_id in ids if job_id in found]
    return [
        {
            "project": row["project__name"],
            "id": str(row["id"]) if is_visible else None,
            "name": row["name"] if is_visible else None,
            "priority": row["priority"],
            "state": row["state"],
        }
        for row in rows
        for is_visible in (sees is None or row["project__name"] in sees,)
    ]


def _with_pods(rows: Sequence[dict[str, Any]]) -> Iterable[tuple[dict[str, Any], list[dict[str, Any]]]]:
    holding = [row["id"] for row in rows if row["state"] in ACTIVE_STATES]
    pods: dict[str, list[dict[str, Any]]] = defaultdict(list)
    if holding:
        live = Pod.objects.filter(
            job_id__in=holding, attempt__job=F("job"), attempt__number=F("job__attempt")
        )
        for job_id, pod in pod_rows(live):
            pods[str(job_id)].append(pod)
    return ((row, pods[row["id"]]) for row in rows)


def devices_of(held: QuerySet[Allocation]) -> dict[int, list[dict[str, Any]]]:
    """Return the devices of the allocations `held` with their shares, by pod id; a missing pod gives []."""
    devices: dict[int, list[dict[str, Any]]] = defaultdict(list)
    rows = held.order_by("device__index").values_list("pod_id", "device__index", "milli_gpus")
    for pod_id, index, milli in rows:
        devices[pod_id].append({"index": index, "share": milli / 1000})
    return devices


def _shape_pod(row: Mapping[str, Any], devices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": f"{row['job__name']}-{row['attempt__number']}-{row['rank']}",
        "attempt": row["attempt__number"],
        "rank": row["rank"],
        "role": row["role"],
        "state": row["state"],
        "reason": row["reason"],
        "message": row["message"],
        "node": row["node__name"],
        "devices": devices,
        "exit_code": row["exit_code"],
        "started_at": row["started_at"],
        "finished_at": row["finished_at"],
        "gpu_utilization": row["gpu_utilization"],
        "gpu_memory_mib": row["gpu_memory_mib"],
    }


def gpu_hours_of(job_id: uuid.UUID) -> float:
    """Return the GPU hours that a job has held in all attempts, counting running ones until now."""
    held = ExpressionWrapper(
        Coalesce(F("released_at"), timezone.now()) - F("created_at"), output_field=DurationField()
    )
    sums = Allocation.objects.filter(pod__job=job_id).values_list("milli_gpus").annotate(held=Sum(held))
    milli_seconds: float = sum(milli * held.total_seconds() for milli, held in sums)
    return milli_seconds / 1000 / 3600


def plain_id(value: uuid.UUID | str) -> str:
    """Return a UUID with hyphens. `value`: as the database driver gives it, which is text without hyphens on
    SQLite."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if "-" in value:
        return value
    return f"{value[:8]}-{value[8:12]}-{value[12:16]}-{value[16:20]}-{value[20:]}"


def _moment(value: datetime | None) -> datetime | None:
    """Return the database driver's time with a time zone, None for None. SQLite's times are UTC without one."""
    return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


def _runtime_seconds(started_at: datetime | None, finished_at: datetime | None) -> int | None:
    if started_at is None:
        return None
    return max(0, int(((finished_at or timezone.now()) - started_at).total_seconds()))
