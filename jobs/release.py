"""Release the devices of pods that are proven gone. All releases go through here."""

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime

from django.db.models import Sum

from controlplane.models import Command
from jobs.allocation import record_allocation
from jobs.command_kinds import POD
from jobs.lifecycle import ACTIVE_STATES
from jobs.models import Allocation, Job, Pod


def release(pods: Collection[Pod], now: datetime, why: str) -> None:
    """Free the devices of pods that are proven gone, and cancel their pending commands with the message `why`. Call
    it in the transaction that wrote their `released_at`. Lock order: nodes, pods, jobs, devices."""
    _leave_the_rest(pods)
    held = Allocation.objects.filter(pod__in=pods, released_at=None).order_by("pk")
    # Locked first: of two processes that release one pod, only one counts its devices.
    locked = list(
        held.select_for_update(of=("self",), no_key=True).values_list("pk", "pod__job__project", "milli_gpus")
    )
    Allocation.objects.filter(pk__in=[key for key, *_ in locked]).update(released_at=now)
    changes: dict[int, int] = defaultdict(int)
    for _, project, milli in locked:
        changes[project] -= milli
    record_allocation(now, changes)
    orders = Command.objects.filter(
        subject_kind=POD, subject_id__in=[pod.name for pod in pods], state=Command.PENDING
    )
    orders.update(state=Command.DONE, error=why, finished_at=now)


def _leave_the_rest(pods: Collection[Pod]) -> None:
    """Reduce the job's held GPUs to those of its remaining pods. Skips ending jobs: their end writes 0."""
    others = Pod.objects.filter(job__in={pod.job_id for pod in pods}, released_at=None)
    going_on = set(others.values_list("job", flat=True))
    if not going_on:
        return
    jobs = Job.objects.filter(pk__in=going_on, state__in=ACTIVE_STATES).order_by("pk")
    # Lock before summing: if two processes release pods of one job, the second sees the first one's result.
    locked = list(jobs.select_for_update(no_key=True).only("pk"))
    # Allocations are released together with their pod, so the unreleased ones are still held.
    held = dict(others.order_by().values_list("job").annotate(Sum("allocations__milli_gpus", default=0)))
    for job in locked:
        job.allocated_milli = held.get(job.pk, 0)
    Job.objects.bulk_update(locked, ["allocated_milli"])
