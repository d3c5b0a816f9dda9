"""Giving back what pods held: the one way, for whoever learns that they are gone."""

from collections.abc import Collection
from datetime import datetime

from django.db.models import Sum

from controlplane.models import Command
from controlplane.telemetry.allocation import record_allocation
from jobs.models import Allocation, Job, Pod


def release(pods: Collection[Pod], now: datetime, why: str) -> None:
    """Free the devices of pods that are proven gone, and end what was ordered for them, told as `why`. Call it in the
    transaction that wrote their `released_at`."""
    _leave_the_rest(pods)
    Allocation.objects.filter(pod__in=pods, released_at=None).update(released_at=now)
    record_allocation(now)
    orders = Command.objects.filter(pod_name__in=[pod.name for pod in pods], state=Command.PENDING)
    orders.update(state=Command.DONE, error=why, finished_at=now)


def _leave_the_rest(pods: Collection[Pod]) -> None:
    """A job of which other pods go on holds only what those do. One that ends is written when it does."""
    # a pod's allocations are released with it, so those of the others are held
    others = Pod.objects.filter(job__in={pod.job_id for pod in pods}, released_at=None)
    sums = others.values_list("job").annotate(Sum("allocations__milli_gpus", default=0))
    for job_id, held in sums.order_by("job"):  # as every writer of several rows goes
        Job.objects.filter(pk=job_id).update(allocated_milli=held)
