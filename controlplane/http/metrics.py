"""`/metrics`: numbers of running, queued and unreachable objects in Prometheus' text format, for alerts.

Measurements of GPUs, such as their load, are not included: a cluster's Prometheus scrapes them from NVIDIA's DCGM
exporter. The number of queries does not depend on the number of jobs.
"""

import hmac
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from django.conf import settings
from django.db.models import Count, Sum
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from controlplane.models import Cluster, Device, Lease, Node
from controlplane.registration import app_modules

NO_LABELS: Mapping[str, str] = {}
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Gauge:
    """A Prometheus gauge. `series`: for each time series its labels and its value."""

    name: str
    help: str
    series: tuple[tuple[Mapping[str, str], float], ...]

    def lines(self) -> Iterator[str]:
        """Yield the gauge's lines in Prometheus' text format."""
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} gauge"
        for labels, value in self.series:
            inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            yield f"{self.name}{{{inside}}} {value:g}" if inside else f"{self.name} {value:g}"


def metrics(request: HttpRequest) -> HttpResponse:
    """Return all metrics to a request with TRAINYARD_METRICS_TOKEN as bearer token; 401 for another token, 404 if
    that setting is empty."""
    token = settings.METRICS_TOKEN
    if not token:
        return HttpResponse("Set TRAINYARD_METRICS_TOKEN to have metrics here.\n", status=404)
    given = request.headers.get("Authorization", "")
    if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        return HttpResponse(status=401, headers={"WWW-Authenticate": "Bearer"})
    lines = [line for gauge in gauges() for line in gauge.lines()]
    return HttpResponse("\n".join(lines) + "\n", content_type=CONTENT_TYPE)


def gauges() -> Iterable[Gauge]:
    """Return the gauges of the control plane and of all apps with their current values, read from the database."""
    declared = (gauges for module in app_modules("metrics") for gauges in module.GAUGES)
    return (*_loop(), *_clusters(), *(gauge for gauges in declared for gauge in gauges()))


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


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
