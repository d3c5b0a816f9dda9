"""An admission webhook of a site that refuses every pod. The API server calls it over TLS, with a certificate
authority of its own."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.kube import KubeCluster
from tests.serving import serving
from tools.kube.certificates import write_all


@contextmanager
def refusing_webhook(kube: KubeCluster, directory: Path, words: str) -> Iterator[dict[str, Any]]:
    """Context manager that yields the clientConfig of a running webhook, which refuses with the message `words`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = {"code": 403, "message": words}
            answer = {"uid": review["request"]["uid"], "allowed": False, "status": status}
            body = json.dumps({**review, "request": None, "response": answer}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  theirs
            pass

    write_all(directory, [kube.host_address], [])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.crt", directory / "server.key")
    with ThreadingHTTPServer((kube.host_address, 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        with serving(server):
            authority = base64.b64encode((directory / "ca.crt").read_bytes()).decode()
            yield {
                "url": f"https://{kube.host_address}:{server.server_port}/refuse",
                "caBundle": authority,
            }
