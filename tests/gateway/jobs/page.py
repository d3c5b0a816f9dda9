"""A job's web page that uses what notebooks use: cookies, storage, a service worker and a websocket, on one port."""

import os

from websockets.datastructures import Headers
from websockets.http11 import Response
from websockets.sync.server import serve

PAGES = {
    "/page": ("text/html", "<!doctype html><title>loading</title><script src='/app.js'></script>"),
    "/app.js": ("text/javascript", os.environ["APP"].replace("OWN", os.environ["OWN"])),
    "/worker.js": ("text/javascript", os.environ["WORKER"]),
}


def show(_connection, request):
    if request.headers.get("Upgrade"):
        return None
    path = request.path.partition("?")[0]
    kind, text = PAGES.get(path, ("text/plain", "not from the worker"))
    body = text.encode()
    return Response(200, "OK", Headers({"Content-Type": kind, "Content-Length": str(len(body))}), body)


def echo(socket):
    for message in socket:
        socket.send(message)


serve(echo, "127.0.0.1", int(os.environ["PORT_5555"]), process_request=show).serve_forever()
