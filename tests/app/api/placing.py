"""Running jobs as rows, as the loop would write them."""

from django.utils import timezone

from controlplane.models import Device
from jobs.models import Allocation, Attempt, Job, Pod


def place(job: Job, *, state: str = "running", milli: int = 1000, ranks: int = 1) -> list[Pod]:
    """Start the next attempt of a job with `ranks` pods, and set the job's state. Each pod gets `milli`
    milli-GPUs of a device that has them free. Return the pods."""
    number = job.attempt + 1
    attempt = Attempt.objects.create(job=job, number=number, started_at=timezone.now())
    pods = [_pod(job, attempt, rank, milli) for rank in range(ranks)]
    Job.objects.filter(pk=job.pk).update(
        state=state,
        attempt=number,
        reason="started_in_quota",
        allocated_milli=milli * ranks,
        pods_started=ranks,
        started_at=timezone.now(),
        details={"project": job.project.name, "quota_milli_gpus": 4000},
    )
    job.refresh_from_db()
    return pods


def _pod(job: Job, attempt: Attempt, rank: int, milli: int) -> Pod:
    device = Device.objects.filter(allocated_milli__lte=1000 - milli).order_by("node__name", "index").first()
    assert device is not None
    pod = Pod.objects.create(
        job=job,
        attempt=attempt,
        node=device.node,
        rank=rank,
        name=f"{job.pk}-{attempt.number}-{rank}",
        state="running",
        gpu_utilization=0.5,
        gpu_memory_mib=1024,
    )
    Allocation.objects.create(pod=pod, device=device, milli_gpus=milli)
    return pod
