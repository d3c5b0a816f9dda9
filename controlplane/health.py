"""Probes for supervisors: does the process serve, and does the control plane work?"""

from collections.abc import Callable, Sequence
from datetime import timedelta

from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, JsonResponse

from controlplane.models import Lease

FRESH_SECONDS = 10


class ProbeMiddleware:
    """Answers probes before anything else, under any host name: balancers ask for them by a pod's address."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        probe = PROBES.get(request.path)
        return probe(request) if probe else self._get_response(request)


def healthz(_request: HttpRequest) -> HttpResponse:
    """200 when this process answers."""
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> HttpResponse:
    """200 when migrations are applied and the loop completed a cycle in the last 10 s, else 503 with the check.

    `?exclude=loop` leaves the loop out: a web server that runs apart from it can serve pages while the loop is away.
    """
    failing = _failing_check(request.GET.getlist("exclude"))
    if failing is None:
        return JsonResponse({"status": "ok"})
    return JsonResponse(
        {"status": "unavailable", "failing": failing}, status=503, headers={"Retry-After": "1"}
    )


PROBES = {"/healthz": healthz, "/readyz": readyz}


def _failing_check(excluded: Sequence[str]) -> str | None:
    try:
        if _has_unapplied_migrations():
            return "migrations"
        since = Now() - timedelta(seconds=FRESH_SECONDS)
        if "loop" not in excluded and not Lease.objects.filter(name="loop", completed_at__gte=since).exists():
            return "loop"
    except DatabaseError:
        return "database"
    return None


def _has_unapplied_migrations() -> bool:
    executor = MigrationExecutor(connection)
    return bool(executor.migration_plan(executor.loader.graph.leaf_nodes()))
