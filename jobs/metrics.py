"""Metrics of projects and jobs for `/metrics`."""

from collections.abc import Iterator
from datetime import timedelta

from django.db.models import Count, Min, Q, Sum
from django.utils import timezone

from controlplane.http.metrics import Gauge
from controlplane.models import Project
from jobs.estimate_record import estimate_counts
from jobs.lifecycle import QUEUED
from jobs.models import Job

ESTIMATE_DAYS = 7


def _projects() -> Iterator[Gauge]:
    unfinished = Job.objects.unfinished().values_list("project")
    oldest_queued = Min("queued_at", filter=Q(state=QUEUED))
    figures = unfinished.annotate(Sum("allocated_milli"), oldest=oldest_queued).order_by()
    by_project = {pk: (milli, oldest) for pk, milli, oldest in figures}
    now = timezone.now()
    quotas, held, waits = [], [], []
    for pk, name, quota in Project.objects.order_by("name").values_list("pk", "name", "gpu_quota_milli"):
        milli, oldest = by_project.get(pk, (0, None))
        labels = {"project": name}
        quotas.append((labels, quota / 1000))
        held.append((labels, milli / 1000))
        waits.append((labels, (now - oldest).total_seconds() if oldest else 0.0))
    yield Gauge("trainyard_project_gpu_quota", "GPUs that a project is guaranteed.", tuple(quotas))
    yield Gauge("trainyard_project_gpus_allocated", "GPUs that a project's jobs hold.", tuple(held))
    yield Gauge("trainyard_queue_oldest_seconds", "How long the project's oldest job waits.", tuple(waits))


def _jobs() -> Iterator[Gauge]:
    unfinished = Job.objects.unfinished().values_list("project__name", "state")
    series = tuple(
        ({"project": project, "state": state}, count)
        for project, state, count in unfinished.annotate(count=Count("pk")).order_by()
    )
    yield Gauge("trainyard_jobs", "Unfinished jobs by state.", series)


def _start_estimates() -> Iterator[Gauge]:
    counts = estimate_counts(timezone.now() - timedelta(days=ESTIMATE_DAYS))
    series = tuple(({"started": name}, count) for name, count in counts._asdict().items())
    about = f"Ranges in which jobs were shown to start in the last {ESTIMATE_DAYS} days, by when they did."
    yield Gauge("trainyard_start_estimates", about, series)


GAUGES = (_projects, _jobs, _start_estimates)
