"""`/metrics`: running, queued and unreachable work in Prometheus' text format, for alerts.

GPU figures come from NVIDIA's DCGM exporter, which a cluster's Prometheus scrapes itself; these are the figures that
only the control plane has. The number of queries does not depend on the number of jobs.
"""

import hmac
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db.models import Count, Min, Q, Sum
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from controlplane.models import Cluster, Device, Lease, Node, Project
from jobs.estimate_record import estimate_counts
from jobs.lifecycle import FINAL_STATES, QUEUED
from jobs.models import Job

NO_LABELS: Mapping[str, str] = {}
# Start estimates are judged over so long.
ESTIMATE_DAYS = 7
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Gauge:
    """A metric with its series: labels and value."""

    name: str
    help: str
    series: tuple[tuple[Mapping[str, str], float], ...]

    def lines(self) -> Iterator[str]:
        """Yield the metric in Prometheus' text format."""
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} gauge"
        for labels, value in self.series:
            inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            yield f"{self.name}{{{inside}}} {value:g}" if inside else f"{self.name} {value:g}"


def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics, given TRAINYARD_METRICS_TOKEN as a bearer token; 404 if that is not configured."""
    token = settings.METRICS_TOKEN
    if not token:
        return HttpResponse("Set TRAINYARD_METRICS_TOKEN to have metrics here.\n", status=404)
    given = request.headers.get("Authorization", "")
    if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        return HttpResponse(status=401, headers={"WWW-Authenticate": "Bearer"})
    lines = [line for gauge in gauges() for line in gauge.lines()]
    return HttpResponse("\n".join(lines) + "\n", content_type=CONTENT_TYPE)


def gauges() -> Iterable[Gauge]:
    """Return every metric's current value."""
    return (*_loop(), *_clusters(), *_projects(), _jobs(), _start_estimates())


def _loop() -> Iterator[Gauge]:
    completed = Lease.objects.filter(name="loop").values_list("completed_at", flat=True).first()
    ages = [] if completed is None else [(timezone.now() - completed).total_seconds()]
    series = tuple((NO_LABELS, age) for age in ages)
    yield Gauge("trainyard_loop_age_seconds", "Time since the loop completed a cycle.", series)


def _clusters() -> Iterator[Gauge]:
    attached = Cluster.objects.filter(detached_at=None, state=Cluster.ATTACHED)
    reachable = tuple(
        ({"cluster": name}, float(is_reachable))
        for name, is_reachable in attached.values_list("name", "is_reachable")
    )
    yield Gauge("trainyard_cluster_reachable", "1 while the cluster answers.", reachable)
    nodes = Node.objects.filter(cluster__in=attached).values_list("cluster__name", "is_ready")
    counted = tuple(
        ({"cluster": name, "ready": "yes" if is_ready else "no"}, count)
        for name, is_ready, count in nodes.annotate(count=Count("pk")).order_by()
    )
    yield Gauge("trainyard_nodes", "Nodes of a cluster, ready or not.", counted)
    devices = Device.objects.filter(node__cluster__in=attached).values_list("node__cluster__name")
    sums = list(devices.annotate(Count("pk"), Sum("allocated_milli")).order_by())
    present = tuple(({"cluster": name}, count) for name, count, _ in sums)
    held = tuple(({"cluster": name}, milli / 1000) for name, _, milli in sums)
    yield Gauge("trainyard_cluster_gpus", "GPUs that a cluster reports.", present)
    yield Gauge("trainyard_cluster_gpus_allocated", "GPUs that our jobs hold.", held)


def _projects() -> Iterator[Gauge]:
    unfinished = Job.objects.exclude(state__in=FINAL_STATES).values_list("project")
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


def _jobs() -> Gauge:
    unfinished = Job.objects.exclude(state__in=FINAL_STATES).values_list("project__name", "state")
    series = tuple(
        ({"project": project, "state": state}, count)
        for project, state, count in unfinished.annotate(count=Count("pk")).order_by()
    )
    return Gauge("trainyard_jobs", "Unfinished jobs by state.", series)


def _start_estimates() -> Gauge:
    counts = estimate_counts(timezone.now() - timedelta(days=ESTIMATE_DAYS))
    series = tuple(({"started": name}, count) for name, count in counts._asdict().items())
    about = f"Ranges in which jobs were shown to start in the last {ESTIMATE_DAYS} days, by when they did."
    return Gauge("trainyard_start_estimates", about, series)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
