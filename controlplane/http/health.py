"""Probes: whether the process serves requests (`/healthz`), and whether the control plane works (`/readyz`).

Both run on the event loop, independent of the WSGI thread, and accept any host name, because load balancers use pod
addresses. `/readyz` reads the database on its own thread, at most once in FRESH_FOR seconds.
"""

from datetime import timedelta
from urllib.parse import parse_qs

import orjson
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.models.functions import Now

from controlplane.live.asgi import Headers, Receive, Scope, Send
from controlplane.live.shared import SharedReads
from controlplane.models import Lease

# While nothing is unfinished, a cycle completes only every 5 s (loop.period.QUIET_SECONDS).
FRESH_SECONDS = 10
# How many seconds a result of /readyz is reused, because unauthenticated clients may request it at any rate.
FRESH_FOR = 0.5
HEALTHZ, READYZ = "/healthz", "/readyz"
PATHS = frozenset({HEALTHZ, READYZ})
_HEADERS: Headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]


class Probes:
    """The ASGI application of `/healthz` and `/readyz`. `/readyz?exclude=loop` does not check the loop."""

    def __init__(self) -> None:
        self._reads = SharedReads("probe")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == HEALTHZ:
            await _answer(scope, send, 200, {"status": "ok"}, [])
            return
        excluded = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("exclude", [])
        is_loop_needed = "loop" not in excluded
        failing = await self._reads.read(is_loop_needed, FRESH_FOR, _checked, is_loop_needed)
        if failing is None:
            await _answer(scope, send, 200, {"status": "ok"}, [])
            return
        body = {"status": "unavailable", "failing": failing}
        await _answer(scope, send, 503, body, [(b"retry-after", b"1")])

    def shutdown(self) -> None:
        self._reads.shutdown()


def failing_check(*, is_loop_needed: bool) -> str | None:
    """Return the first part that does not work: `database`, `migrations` (not all applied) or `loop` (no cycle
    completed in the last 10 s); None if all work. `is_loop_needed` False: skip the loop, as for a web server on a
    machine of its own."""
    try:
        if _has_unapplied_migrations():
            return "migrations"
        since = Now() - timedelta(seconds=FRESH_SECONDS)
        if is_loop_needed and not Lease.objects.filter(name="loop", completed_at__gte=since).exists():
            return "loop"
    except DatabaseError:
        # Close the thread's connection, which may be the reason for the failure.
        connection.close()
        return "database"
    return None


def _checked(is_loop_needed: bool) -> str | None:
    return failing_check(is_loop_needed=is_loop_needed)


def _has_unapplied_migrations() -> bool:
    executor = MigrationExecutor(connection)
    return bool(executor.migration_plan(executor.loader.graph.leaf_nodes()))


async def _answer(scope: Scope, send: Send, status: int, body: dict[str, str], headers: Headers) -> None:
    text = orjson.dumps(body)
    length = (b"content-length", str(len(text)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*_HEADERS, *headers, length]})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else text})
