"""The web process's root application.

Websockets, event streams and the service proxy run on the event loop; every other request hops to the WSGI
application, which serves synchronous views 2-10 times faster than Django's own ASGI handler.
"""

import importlib
import os
import re
from functools import partial

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

# sets Django up, which the others need when they are imported
from controlplane.wsgi import application as wsgi_application

# isort: split
from controlplane.hop import Hop
from controlplane.live import logstream, watch
from controlplane.live.hub import close_hub
from controlplane.live.wire import Application, Receive, Scope, Send, query, refuse_websocket, serve_stream
from dashboards.routing import websocket_application

LOGS_PATH = re.compile(r"/api/v1/jobs/(?P<job_id>[^/]+)/logs/?")
SERVICES, SHELL = "/services/", "/ws/shell/"
TRUE = frozenset({"true", "1", "yes"})

hop = Hop(wsgi_application)


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Give a connection to the application that serves its path."""
    if scope["type"] == "http":
        await _http(scope)(scope, receive, send)
    elif scope["type"] == "websocket":
        await _websocket(scope)(scope, receive, send)
    elif scope["type"] == "lifespan":
        await _lifespan(receive, send)
    else:
        raise ValueError(f"no application serves {scope['type']!r} connections")


def _http(scope: Scope) -> Application:
    path = scope["path"]
    if path.startswith(SERVICES):
        return _gateway("proxy")
    if path == "/api/v1/watch":
        return partial(serve_stream, watch.application)
    if LOGS_PATH.fullmatch(path) and query(scope).get("follow", "").lower() in TRUE:
        return partial(serve_stream, logstream.application)
    return hop


def _websocket(scope: Scope) -> Application:
    path = scope["path"]
    if path == "/ws/live":
        return websocket_application
    if path.startswith(SHELL):
        return _gateway("shell")
    if path.startswith(SERVICES):
        return _gateway("proxy")
    return _no_websocket


def _gateway(name: str) -> Application:
    """The application that reaches into pods, loaded when it is first asked for: many processes never need it."""
    application: Application = importlib.import_module(f"controlplane.gateway.{name}").application
    return application


async def _no_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    await refuse_websocket(scope, receive, send, 404, 4404)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await close_hub()
            hop.shutdown()
            await send({"type": "lifespan.shutdown.complete"})
            return
