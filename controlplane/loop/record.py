"""RECORD: write a plan as rows, commands and events, each guarded by the state as observed.

One transaction releases GPUs and updates queued jobs. Starts follow in transactions of their own, so that the
first of thousands begin while the rest are written.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Sum
from django.utils import timezone

from controlplane.access import SYSTEM
from controlplane.engines.base import pod_name
from controlplane.loop.cluster_context import context_of
from controlplane.loop.hold_writes import changed_holds, write_holds
from controlplane.loop.observe import Observation
from controlplane.loop.podspecs import start_payloads
from controlplane.models import Cluster, Command, Device, Event, Node, Project
from controlplane.models.bulk_insert import insert_rows
from controlplane.models.bulk_update import Change, change_rows
from controlplane.models.prepared import Rows, prepared
from controlplane.scheduling.mentions import public
from controlplane.scheduling.plan import Plan, Preempt, Start
from controlplane.scheduling.view import PodPlacement
from datasets.queries.volume_waits import waiting_jobs
from jobs import lifecycle
from jobs.allocation import record_allocation
from jobs.command_kinds import POD, START_POD
from jobs.kinds.base import PodShape
from jobs.kinds.registry import KINDS
from jobs.models import Allocation, Attempt, Job, Pod
from jobs.transitions import Move, Target, job_event, move_together, request_transitions

# Attempts begun in one transaction: enough that they share the queries for pods, devices and commands, and
# few enough that other writers do not wait long.
BATCH = 200
# After this time a cycle begins no more attempts, because a project owed GPUs may be waiting for the next
# cycle.
STARTS_SECONDS = 1.0


@dataclass(slots=True)
class Recorded:
    """What was written. `held`: the number of changed holds; `has_more_holds`: not all queued jobs were compared with
    their rows; `has_more_starts`: starts were left to the next cycle."""

    started: int = 0
    preempted: int = 0
    held: int = 0
    has_more_holds: bool = False
    has_more_starts: bool = False

    @property
    def has_commands(self) -> bool:
        return bool(self.started or self.preempted)


def record(
    cluster: Cluster,
    plan: Plan,
    seen: Observation,
    now: datetime,
    on_orders: Callable[[], None] = lambda: None,
) -> Recorded:
    """Write a plan, and return what was written. A decision is dropped if its job has changed state since. A plan
    equal to the rows opens no transaction.

    Starts that are not begun within STARTS_SECONDS are left to the next cycle, which may have more urgent work.
    `on_orders` is called after each commit that adds commands: once for preemptions, then per batch of starts.
    """
    context = context_of(cluster)
    holds, progress = changed_holds(plan, seen.holds, context.holds)
    recorded = Recorded(held=len(holds), has_more_holds=progress.left > 0)
    if plan.preempts or holds:
        jobs = _jobs(cluster, (job for one in plan.preempts for job in (one.job, one.beneficiary)))
        with transaction.atomic():
            preempted = _record_preempts(plan.preempts, jobs)
            Event.objects.append([*preempted, *write_holds(holds)])
        recorded.preempted = len(preempted)
        if preempted:
            on_orders()
    context.holds = progress
    if plan.starts:
        recorded.started, recorded.has_more_starts = _record_starts(cluster, plan.starts, now, on_orders)
    # Written last, because no start depends on it.
    if shares := _changed_shares(plan, seen):
        with transaction.atomic():
            Event.objects.append(_record_shares(cluster, shares))
    return recorded


class _Nodes:
    """The primary keys of the nodes and devices of these placements, by the names that a plan uses, and the memory of
    the devices."""

    def __init__(self, cluster: Cluster, placements: Iterable[PodPlacement]) -> None:
        # Only these: one start needs one node, and a cluster may have ten thousand devices.
        nodes = Node.objects.filter(cluster=cluster, name__in={place.node for place in placements})
        self.node_ids = dict(nodes.values_list("name", "pk"))
        self.devices: dict[tuple[str, int], int] = {}
        self.memory_mib: dict[tuple[str, int], int] = {}
        devices = Device.objects.filter(node__in=self.node_ids.values())
        for node, index, pk, memory_mib in devices.values_list("node__name", "index", "pk", "memory_mib"):
            self.devices[node, index], self.memory_mib[node, index] = pk, memory_mib


@prepared
def _projects(cluster: int) -> Rows[Project]:
    return Project.objects.filter(cluster=cluster).values_list("name", "pk")


def _jobs(cluster: Cluster, keys: Iterable[str]) -> Mapping[str, Job]:
    """Return these jobs, by id. Call it outside the transaction: every write is guarded by the state that is read
    here."""
    wanted = set(keys)
    if not wanted:
        return {}
    jobs = {str(job.pk): job for job in Job.objects.filter(pk__in=wanted).select_related("project")}
    for job in jobs.values():
        # Not read with each job: the settings of a cluster may list a thousand nodes.
        if job.project.cluster_id == cluster.pk:
            job.project.cluster = cluster
    return jobs


def _record_preempts(preempts: Sequence[Preempt], jobs: Mapping[str, Job]) -> list[Event]:
    known = [preempt for preempt in preempts if {preempt.job, preempt.beneficiary} <= jobs.keys()]
    targets = [(jobs[preempt.job], _preempted(preempt, jobs[preempt.beneficiary])) for preempt in known]
    events, causes = request_transitions(targets, SYSTEM), {preempt.job: preempt.kind for preempt in known}
    for event in events:
        event.data["cause"] = causes[str(event.job_id)]
    return events


def _preempted(preempt: Preempt, beneficiary: Job) -> Target:
    details = {**preempt.details, "by_job": preempt.beneficiary, "by_name": beneficiary.name}
    return Target(lifecycle.QUEUED, preempt.reason, public(preempt.reason, details), details)


def _record_starts(
    cluster: Cluster, starts: Sequence[Start], now: datetime, on_orders: Callable[[], None]
) -> tuple[int, bool]:
    """Begin the attempts of these starts in batches, until STARTS_SECONDS have passed. Return how many were begun,
    and whether starts are left."""
    nodes = _Nodes(cluster, (place for start in starts for place in start.placements))
    count, until = 0, time.monotonic() + STARTS_SECONDS
    for first in range(0, len(starts), BATCH):
        wanted = starts[first : first + BATCH]
        # Read per batch, because the state as read guards the write; with a single read the last batch's would
        # be seconds old.
        jobs = _jobs(cluster, (start.job for start in wanted))
        batch = [start for start in wanted if start.job in jobs]
        with transaction.atomic():
            begun = _begin_together(batch, jobs, nodes, now)
            count += len(begun)
            if begun:
                record_allocation(now, _taken(begun, jobs))
                Event.objects.append([_starting_event(start, jobs[start.job]) for start in begun])
        if begun:
            on_orders()
        if time.monotonic() > until:
            return count, first + BATCH < len(starts)
    return count, False


def _taken(starts: Iterable[Start], jobs: Mapping[str, Job]) -> Mapping[int, int]:
    """Return the milli-GPUs that the starts take, by project."""
    taken: dict[int, int] = defaultdict(int)
    for start in starts:
        taken[jobs[start.job].project_id] += sum(place.milli_gpus for place in start.placements)
    return taken


def _begin_together(
    batch: Sequence[Start], jobs: Mapping[str, Job], nodes: _Nodes, now: datetime
) -> list[Start]:
    """Begin the attempts of a batch. Return the starts whose attempts began. If the database refuses the batch, for
    example because a device was taken, each is begun alone, and refused jobs stay queued."""
    try:
        with transaction.atomic():
            return _begin_attempts(batch, jobs, nodes, now)
    except IntegrityError:
        return [start for start in batch if _begin_alone(start, jobs, nodes, now)]


def _starting_event(start: Start, job: Job) -> Event:
    nodes = sorted({placement.node for placement in start.placements})
    data = {"nodes": nodes, "workers": len(start.placements), "attempt": job.attempt}
    return job_event("job.starting", job, SYSTEM, data)


def _begin_alone(start: Start, jobs: Mapping[str, Job], nodes: _Nodes, now: datetime) -> bool:
    # The failed transaction has modified the object in memory, so it is read again.
    jobs[start.job].refresh_from_db()
    try:
        with transaction.atomic():
            return bool(_begin_attempts([start], jobs, nodes, now))
    except IntegrityError:
        return False


def _begin_attempts(
    starts: Sequence[Start], jobs: Mapping[str, Job], nodes: _Nodes, now: datetime
) -> list[Start]:
    """Write attempts, pods, devices and start commands, in the caller's transaction. Return the starts whose job was
    still queued. Raise IntegrityError if a device was taken meanwhile."""
    # Checked while writing, because two jobs of one plan may need a volume that only one job at a time may
    # mount.
    waiting = waiting_jobs(jobs[start.job].pk for start in starts)
    begun = _claim([start for start in starts if start.job not in waiting], jobs, now)
    attempts = insert_rows(
        Attempt(job=jobs[start.job], number=jobs[start.job].attempt, created_at=now) for start in begun
    )
    placed = [
        (_pod(attempt, placement, shapes[placement.rank], nodes), placement)
        for start, attempt in zip(begun, attempts, strict=True)
        for shapes in (_shapes(attempt.job),)
        for placement in start.placements
    ]
    insert_rows(pod for pod, _ in placed)
    _take_devices(placed, nodes)
    insert_rows(order for start in begun for order in _start_orders(jobs[start.job], start.placements, nodes))
    return begun


def _claim(starts: Sequence[Start], jobs: Mapping[str, Job], now: datetime) -> list[Start]:
    """Move the jobs that are still queued, and whose requested number of pods has not changed since they were read, to
    their next attempt. Return their starts."""
    moves = [
        Move(job, lifecycle.STARTING, _claimed(job, start, now), ("attempt", "pods_wanted"))
        for start in starts
        for job in (jobs[start.job],)
        # An elastic job may have been scaled down since it was read.
        if job.state == lifecycle.QUEUED and len(start.placements) <= job.pods_wanted
    ]
    claimed = {str(job.pk) for job in move_together(moves)}
    return [start for start in starts if start.job in claimed]


def _claimed(job: Job, start: Start, now: datetime) -> dict[str, Any]:
    return {
        **Target(
            lifecycle.STARTING, start.reason, public(start.reason, start.details), start.details
        ).columns(),
        "attempt": job.attempt + 1,
        "allocated_milli": sum(placement.milli_gpus for placement in start.placements),
        "pods_started": len(start.placements),
        "queue_position": None,
        "not_before": None,
        "exit_code": None,
        # These values belong to the previous attempt; the new one's programs report their own.
        "progress": {},
        "gpu_utilization": None,
        "active_at": now,
    }


def _shapes(job: Job) -> Mapping[int, PodShape]:
    return {shape.rank: shape for shape in KINDS[job.kind].pods(job.spec)}


def _pod(attempt: Attempt, placement: PodPlacement, shape: PodShape, nodes: _Nodes) -> Pod:
    job = attempt.job
    return Pod(
        job=job,
        attempt=attempt,
        node_id=nodes.node_ids[placement.node],
        rank=placement.rank,
        role=shape.role,
        name=pod_name(str(job.pk), job.attempt, placement.rank),
        milli_cpus=job.spec["cpus"],
        memory_mib=job.spec["memory_mib"],
    )


def _take_devices(placed: Sequence[tuple[Pod, PodPlacement]], nodes: _Nodes) -> None:
    insert_rows(
        Allocation(pod=pod, device_id=nodes.devices[placement.node, index], milli_gpus=milli)
        for pod, placement in placed
        for index, milli in placement.devices
    )


def _start_orders(job: Job, placements: Sequence[PodPlacement], nodes: _Nodes) -> Iterator[Command]:
    shapes, by_rank = _shapes(job), {placement.rank: placement for placement in placements}
    payloads = start_payloads(job, [shapes[rank] for rank in by_rank], by_rank, nodes.memory_mib)
    for rank, payload in zip(by_rank, payloads, strict=True):
        yield Command(
            kind=START_POD,
            cluster_id=job.project.cluster_id,
            subject_kind=POD,
            subject_id=pod_name(str(job.pk), job.attempt, rank),
            payload=payload,
        )


def add_workers(
    cluster: Cluster, job: Job, attempt: Attempt, places: Sequence[PodPlacement], workers: int
) -> None:
    """Write pods, devices and start commands for new workers of a running attempt, which then has `workers` workers.
    Call it in a transaction. Raise IntegrityError if a device or a rank was taken meanwhile."""
    nodes, job.attempt = _Nodes(cluster, places), attempt.number
    attempt.job = job
    placed = [(_pod(attempt, place, PodShape(place.rank, "worker"), nodes), place) for place in places]
    insert_rows(pod for pod, _ in placed)
    _take_devices(placed, nodes)
    by_rank = {place.rank: place for place in places}
    given = {
        "world_size": workers,
        # The gang is running already, so new workers do not wait for each other.
        "min_pods": 1,
        "kind_env": dict(KINDS[job.kind].environment(job.spec, workers)),
    }
    shapes = [PodShape(pod.rank, "worker") for pod, _ in placed]
    payloads = start_payloads(job, shapes, by_rank, nodes.memory_mib)
    insert_rows(
        Command(
            kind=START_POD,
            cluster_id=cluster.pk,
            subject_kind=POD,
            subject_id=pod.name,
            payload=payload | given,
        )
        for (pod, _), payload in zip(placed, payloads, strict=True)
    )
    record_allocation(timezone.now(), {job.project_id: sum(place.milli_gpus for place in places)})
    held = Allocation.objects.filter(pod__job=job, released_at=None).aggregate(
        held=Sum("milli_gpus", default=0)
    )
    Job.objects.filter(pk=job.pk).update(allocated_milli=held["held"])


def _changed_shares(plan: Plan, seen: Observation) -> Mapping[str, tuple[int, float | None]]:
    """Return (fair share in milli-GPUs, recent usage) of each project for which one of them changed. The usage is
    None if past use does not count."""
    usage = {project.name: project.usage for project in seen.view.projects} if seen.has_past_use else {}
    shares = {one.project: (one.fair_share_milli_gpus, usage.get(one.project)) for one in plan.shares}
    return {name: share for name, share in shares.items() if seen.shares.get(name) != share}


def _record_shares(cluster: Cluster, shares: Mapping[str, tuple[int, float | None]]) -> list[Event]:
    ids = dict(_projects(cluster.pk))
    known = {ids[name]: (name, *share) for name, share in shares.items() if name in ids}
    changes = [
        Change(key, {}, {"fair_share_milli": milli, "recent_usage": usage})
        for key, (_, milli, usage) in known.items()
    ]
    written = change_rows(Project, changes)
    return [
        Event(kind="project.share_changed", project_id=key, message=name)
        for key, (name, *_) in known.items()
        if key in written
    ]
