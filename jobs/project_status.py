"""Sums over the unfinished jobs of projects."""

from collections import defaultdict
from typing import Any

from django.db.models import Count, Max, Q, Sum

from controlplane.models import Device
from jobs.lifecycle import ACTIVE_STATES, QUEUED
from jobs.models import Job


def project_sums(project_ids: list[int]) -> dict[int, dict[str, Any]]:
    """Return, by project id, sums over unfinished jobs: milli-GPUs `allocated` and, if jobs are queued, `waiting`
    (requested by them), and the numbers of `running` and `queued` jobs. Omits projects without unfinished jobs."""
    unfinished = Job.objects.filter(project_id__in=project_ids).unfinished()
    sums = unfinished.values("project_id").annotate(
        allocated=Sum("allocated_milli", default=0),
        running=Count("pk", filter=Q(state__in=ACTIVE_STATES)),
        queued=Count("pk", filter=Q(state=QUEUED)),
    )
    standings: dict[int, dict[str, Any]] = {row["project_id"]: dict(row) for row in sums}
    for project_id, waiting in _waiting(unfinished.filter(state=QUEUED)).items():
        standings[project_id]["waiting"] = waiting
    return standings


def _waiting(queued: Any) -> dict[int, int]:
    """Return the milli-GPUs that queued jobs request, by project."""
    shapes = queued.values_list(
        "project_id", "project__cluster_id", "milli_gpus", "gpu_memory_mib", "pods_wanted"
    )
    shapes = list(shapes.annotate(jobs=Count("pk")).order_by())
    largest = largest_device_mib() if any(shape[3] for shape in shapes) else {}
    waiting: dict[int, int] = defaultdict(int)
    for project_id, cluster_id, milli, memory_mib, pods, count in shapes:
        waiting[project_id] += asked_milli(milli, memory_mib, largest.get(cluster_id)) * pods * count
    return waiting


def largest_device_mib() -> dict[int, int]:
    """Return the memory in MiB of each cluster's largest GPU, by cluster id."""
    rows = Device.objects.values_list("node__cluster_id").annotate(most=Max("memory_mib"))
    return {cluster_id: most for cluster_id, most in rows if most}


def asked_milli(milli: int, memory_mib: int | None, largest_mib: int | None) -> int:
    """Return the milli-GPUs that a pod requests: `milli` or, if it requests `memory_mib` of GPU memory, that part
    of the cluster's largest GPU (`largest_mib`), rounded up. A whole GPU if none is known."""
    return -(-1000 * memory_mib // (largest_mib or memory_mib)) if memory_mib else milli
