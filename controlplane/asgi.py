"""The web process's root application.

Websockets, event streams, probes and the service proxy run on the event loop; every other request is passed to the
WSGI application, which serves synchronous views 2-10 times faster than Django's own ASGI handler. Requests that
hash a password, and those that need a scheduler simulation, run on separate threads, so that they never delay a
page.
"""

import importlib
import os
from functools import partial

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

# Sets up Django, which must happen before the other imports.
from controlplane.wsgi import application as wsgi_application

# isort: split
from django.conf import settings

from controlplane.http.client_address import address_key, client_address
from controlplane.http.fair_queue import Clients
from controlplane.http.header_limits import STATUS, HeaderRefusal, header_refusal
from controlplane.http.health import PATHS, Probes
from controlplane.http.password_routes import PASSWORD_BODY_MOST_BYTES, hashes_password, is_sign_in
from controlplane.http.throttle import Throttle, TooManyAttempts
from controlplane.http.upload_bridge import UploadBridge
from controlplane.http.wsgi_bridge import WsgiBridge
from controlplane.live import watch
from controlplane.live.asgi import (
    Application,
    Receive,
    Scope,
    Send,
    host_of,
    problem,
    refuse_websocket,
    serve_stream,
)
from controlplane.live.hub import close_hub
from controlplane.live.identity import is_foreign, is_own_host, token_of
from controlplane.live.streams import event_streams, followed_stream
from controlplane.simulation.client import simulator
from controlplane.simulation.routes import asks_simulation
from dashboards.routing import websocket_application
from datasets.api.uploads import UPLOADS, admit_upload
from datasets.queries.lake import limit_waits

SERVICES, METRICS = "/services/", "/metrics"
OF_PODS = ("/api/v1/pod-code/", "/api/v1/pod-data/")
# Websockets into pods, and the module of `jobs.gateway` that serves each.
INTO_PODS = {"/ws/shell/": "shell", "/ws/exec/": "command", "/ws/forward/": "forward"}

HASHING_THREADS = min(4, max(1, (os.cpu_count() or 2) // 2))
# A hash takes 0.3 to 1.3 s: at most 16 requests wait (5 to 20 s for one thread), and 8 of one client.
HASHING_MOST, HASHING_MOST_OF_CLIENT = 16, 8
# Password requests from one address per minute; one thread hashes about 100. The view limits wrong passwords far
# more strictly, but even its refusal costs a millisecond of the interpreter.
SIGN_INS_PER_MINUTE = 120

# These threads read the cluster and wait for the one simulating process, which takes up to several seconds per
# question.
SIMULATION_THREADS = 2
SIMULATIONS_MOST, SIMULATIONS_MOST_OF_CLIENT = 64, 8

clients = Clients()
hop = WsgiBridge(wsgi_application, clients)
hashing_hop = WsgiBridge(
    wsgi_application,
    clients,
    threads=HASHING_THREADS,
    most=HASHING_MOST,
    most_of_client=HASHING_MOST_OF_CLIENT,
    body_most_bytes=PASSWORD_BODY_MOST_BYTES,
    name="hashing",
)
simulation_hop = WsgiBridge(
    wsgi_application,
    clients,
    threads=SIMULATION_THREADS,
    most=SIMULATIONS_MOST,
    most_of_client=SIMULATIONS_MOST_OF_CLIENT,
    name="simulation",
)
sign_ins = Throttle(SIGN_INS_PER_MINUTE, 60)
uploads = UploadBridge(wsgi_application, clients, settings.STATE_DIR / "uploads", admit_upload)
probes = Probes()


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve an HTTP, websocket or lifespan connection with the application for its path. Raise ValueError for other
    connection types. Behind trusted proxies, `client` in the scope becomes the original client's address."""
    if settings.TRUSTED_PROXIES and scope["type"] != "lifespan":
        scope = {**scope, "client": _client_of(scope)}
    if scope["type"] in ("http", "websocket") and (refusal := header_refusal(scope["headers"])):
        await _refuse_headers(scope, receive, send, refusal)
    elif scope["type"] in ("http", "websocket") and settings.SERVICES.find(host_of(scope)):
        await _gateway("proxy")(scope, receive, send)
    elif scope["type"] == "http":
        await _http(scope)(scope, receive, send)
    elif scope["type"] == "websocket":
        await _websocket(scope)(scope, receive, send)
    elif scope["type"] == "lifespan":
        await _lifespan(receive, send)
    else:
        raise ValueError(f"no application serves {scope['type']!r} connections")


def _client_of(scope: Scope) -> tuple[str, int] | None:
    """Return (address, port) of the client, None if the server does not report one. Behind trusted proxies the
    address is that of the original client, but the port is the nearest proxy's."""
    peer: tuple[str, int] | None = scope.get("client")
    if peer is None:
        return None
    forwarded = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    return client_address(peer[0], forwarded, settings.TRUSTED_PROXIES), peer[1]


async def _refuse_headers(scope: Scope, receive: Receive, send: Send, refusal: HeaderRefusal) -> None:
    if scope["type"] == "websocket":
        await refuse_websocket(scope, receive, send, STATUS)
    else:
        await problem(send, STATUS, refusal.code, refusal.detail)


def _http(scope: Scope) -> Application:
    path = scope["path"]
    if path in PATHS:
        return probes
    if path == METRICS or path.startswith(OF_PODS):
        return _any_host
    if not is_own_host(scope):
        return _no_host
    if is_foreign(scope) and token_of(scope) is None:
        return _no_foreign
    if path.startswith(SERVICES):
        return _gateway("entrance")
    if path == "/api/v1/watch":
        return partial(serve_stream, watch.application)
    if (stream := followed_stream(scope)) is not None:
        return partial(serve_stream, stream)
    if UPLOADS.fullmatch(path):
        return uploads
    if is_sign_in(scope["method"], path):
        return _sign_in
    if asks_simulation(scope["method"], path):
        return simulation_hop
    return hashing_hop if hashes_password(scope["method"], path) else hop


async def _sign_in(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request that signs in, or answer 429 after too many of them from one address. They are anonymous and
    each hashes a password, so the limit protects the hashing threads."""
    try:
        sign_ins.attempt(address_key(scope.get("client")))
    except TooManyAttempts as refusal:
        wait = [(b"retry-after", str(refusal.wait_seconds).encode())]
        await problem(send, 429, "too_many_sign_ins_from_address", str(refusal), wait)
    else:
        await hashing_hop(scope, receive, send)


def _websocket(scope: Scope) -> Application:
    path = scope["path"]
    if path == "/ws/live":
        return websocket_application
    for prefix, name in INTO_PODS.items():
        if path.startswith(prefix):
            return _gateway(name)
    return _no_websocket


def _gateway(name: str) -> Application:
    """Return the application in the module `jobs.gateway.<name>`, which connects clients to pods. Imported on first
    use, because many processes never need it."""
    application: Application = importlib.import_module(f"jobs.gateway.{name}").application
    return application


async def _any_host(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a path under any host name: Prometheus uses pod addresses and pods use a service's name, which
    Django would refuse. These paths are protected by a token."""
    others = [(name, value) for name, value in scope["headers"] if name != b"host"]
    await hop({**scope, "headers": [*others, (b"host", b"localhost")]}, receive, send)


async def _no_host(_scope: Scope, _receive: Receive, send: Send) -> None:
    detail = "The server does not accept this host name; TRAINYARD_ALLOWED_HOSTS adds names."
    await problem(send, 400, "unknown_host", detail)


async def _no_foreign(_scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer 403 to a request that another site's page made with the user's cookies."""
    detail = "Another site's page may not do this. Programs send 'Authorization: Bearer <token>'."
    await problem(send, 403, "foreign_origin", detail)


async def _no_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    await refuse_websocket(scope, receive, send, 404)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            limit_waits()
            await send({"type": "lifespan.startup.complete"})
        else:
            await close_hub()
            simulator.close()
            for hopping in (hop, hashing_hop, simulation_hop, uploads):
                hopping.shutdown()
            probes.shutdown()
            for stream in event_streams():
                stream.close()
            await send({"type": "lifespan.shutdown.complete"})
            return
