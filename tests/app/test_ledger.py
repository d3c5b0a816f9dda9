"""The database itself refuses to give a device out twice, whoever writes."""

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.models import Device
from jobs.models import Allocation, Attempt, Job, Pod
from tests.builders import make_job, make_project

pytestmark = pytest.mark.django_db


def take(job: Job, device: Device, milli: int) -> Allocation:
    attempt, _ = Attempt.objects.get_or_create(job=job, number=1)
    pod = Pod.objects.create(
        job=job,
        attempt=attempt,
        node=device.node,
        rank=attempt.pods.count(),
        name=f"{job.pk}-{milli}-{attempt.pods.count()}",
    )
    return Allocation.objects.create(pod=pod, device=device, milli_gpus=milli)


def test_shares_of_a_device_never_exceed_it():
    job = make_job(make_project())
    device = Device.objects.get(node__name="dgx1-1", index=0)
    take(job, device, 600)
    take(job, device, 400)
    with pytest.raises(IntegrityError), transaction.atomic():
        take(job, device, 1)
    device.refresh_from_db()
    assert device.allocated_milli == 1000


def test_a_second_holder_of_a_whole_device_is_refused():
    job = make_job(make_project())
    device = Device.objects.get(node__name="dgx1-1", index=0)
    take(job, device, 1000)
    with pytest.raises(IntegrityError), transaction.atomic():
        take(job, device, 1000)


def test_released_and_deleted_allocations_give_back_what_they_took():
    job = make_job(make_project())
    device = Device.objects.get(node__name="dgx1-1", index=0)
    first, second = take(job, device, 500), take(job, device, 300)
    Allocation.objects.filter(pk=first.pk).update(released_at=timezone.now())
    device.refresh_from_db()
    assert device.allocated_milli == 300
    second.delete()
    device.refresh_from_db()
    assert device.allocated_milli == 0
    Allocation.objects.filter(pk=first.pk).delete()
    device.refresh_from_db()
    assert device.allocated_milli == 0
