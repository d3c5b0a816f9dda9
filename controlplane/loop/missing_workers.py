"""Missing workers of running elastic jobs: ask the scheduler for them (scheduling/growth.py), and record what it
promises."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F

from controlplane.access import SYSTEM
from controlplane.engines.base import MEMBERSHIP, Engine
from controlplane.loop.balance import FOR_WAITING
from controlplane.loop.growth import has_to_wait, missing_workers
from controlplane.loop.membership import Attended, ElasticJobs, lock_working
from controlplane.loop.observe import Observation
from controlplane.loop.shrinking import BALANCE, GROWTH, has_finisher
from controlplane.models import Event
from controlplane.scheduling.growth import AWAITED, awaited_sentence
from controlplane.scheduling.mentions import OWN
from controlplane.scheduling.plan import Growth, Plan
from controlplane.scheduling.sizes import next_size
from controlplane.scheduling.view import JobView, placements_from_lists, placements_to_lists
from datasets.queries.volumes import has_missing_driver
from jobs.kinds import membership as rules
from jobs.models import Job, ScaleOperation
from jobs.transitions import job_event


def ask_for_workers(seen: Observation, elastic: ElasticJobs, engine: Engine, now: datetime) -> Observation:
    """Return the observation, with the workers that each running elastic job lacks and can take now
    (`JobView.missing`)."""
    if MEMBERSHIP not in engine.capabilities or not elastic.latest:
        return seen
    attended = {str(one.job.pk): one for one in elastic.latest}
    for name in _lenders(attended, seen.view.jobs):
        del attended[name]
    jobs = tuple(
        _asking(job, attended[job.id], now) if job.id in attended and _may_grow(job) else job
        for job in seen.view.jobs
    )
    return replace(seen, view=replace(seen.view, jobs=jobs))


def _lenders(attended: Mapping[str, Attended], jobs: Iterable[JobView]) -> set[str]:
    """Return the ids of the jobs that gave workers to a waiting job of their project, have not grown since, and still
    see a job of at least their priority wait.

    They ask for nothing: the waiting gang may need what other jobs have yet to release, and a job that took its
    workers back would have to give them again, forever.
    """
    waiting: dict[str, int] = {}
    for job in jobs:
        if job.state == "queued" and (job.milli_gpus or job.gpu_memory_mib is not None):
            waiting[job.project] = max(job.priority, waiting.get(job.project, job.priority))
    able = {
        name
        for name, one in attended.items()
        if missing_workers(one) > 0
        and waiting.get(one.job.project.name, one.job.priority - 1) >= one.job.priority
    }
    if not able:
        return able
    asking = [attended[name].job for name in able]
    done = ScaleOperation.objects.filter(job__in=asking, attempt=F("job__attempt"), state=rules.SUCCEEDED)
    found: set[str] = set()
    for key, cause, message in done.order_by("created_at").values_list("job", "cause", "message"):
        if cause == BALANCE and message == FOR_WAITING:
            found.add(str(key))
        elif cause in (*GROWTH, "user"):
            found.discard(str(key))
    return found


def _may_grow(view: JobView) -> bool:
    """Return whether the job runs on whole GPUs and is not stopping: a job with a share of a device has a
    single pod."""
    is_whole = view.milli_gpus >= 1000 and view.gpu_memory_mib is None
    return view.state == "active" and not view.is_stopping and is_whole


def _asking(view: JobView, attended: Attended, now: datetime) -> JobView:
    missing = _missing_gangs(view, attended, now)
    if not missing:
        return view
    promised = attended.job.details.get(AWAITED, {}).get("promised", ())
    return replace(view, missing=missing, promised=placements_from_lists(promised))


def _missing_gangs(view: JobView, attended: Attended, now: datetime) -> tuple[int, ...]:
    """Return the sizes of the groups of workers that the job can take now: the workers of a scale operation together,
    those up to the next allowed size together, else each worker alone. () if it can take none."""
    has = len(attended.members)
    # Where a member has finished, the training is over: no job is stopped for more workers.
    if attended.generation is None or has_finisher(attended):
        return ()
    if has_missing_driver(attended.job.project, attended.job.spec):
        return ()
    if attended.operation is not None:
        asked = attended.asked_workers
        return (asked,) if asked > 0 else ()
    missing = missing_workers(attended)
    if missing <= 0 or has_to_wait(attended, now):
        return ()
    if view.sizes:
        size = next_size(view.sizes, has)
        return (size - has,) if has < size <= attended.job.pods_wanted else ()
    return (1,) * missing


def note_promises(elastic: ElasticJobs, plan: Plan) -> None:
    """Record in each running elastic job what the plan promises to its missing workers, with an event. Writes only
    changes."""
    promised = {one.job: one for one in plan.growth if one.is_promised}
    for attended in elastic.latest:
        growth = promised.get(str(attended.job.pk))
        awaited = {} if growth is None else _awaited(growth, attended)
        if attended.job.details.get(AWAITED, {}) != awaited:
            _record(attended, awaited)


def _awaited(growth: Growth, attended: Attended) -> dict[str, Any]:
    return {
        "workers": len(growth.placements),
        "asked": len(attended.members) + len(growth.placements),
        "stopping": [dict(one) for one in growth.stopping],
        "promised": placements_to_lists(growth.placements),
    }


def _record(attended: Attended, awaited: Mapping[str, Any]) -> None:
    job = attended.job
    with transaction.atomic():
        if not lock_working(job):
            return
        job.details = {name: value for name, value in job.details.items() if name != AWAITED}
        if awaited:
            job.details |= {AWAITED: dict(awaited)}
        Job.objects.filter(pk=job.pk).update(details=job.details)
        if awaited:
            Event.objects.append([_event(attended, awaited)])


def _event(attended: Attended, awaited: Mapping[str, Any]) -> Event:
    event = job_event("job.scaling", attended.job, SYSTEM, {"workers": awaited["workers"]})
    event.message = awaited_sentence(awaited, OWN)
    return event
