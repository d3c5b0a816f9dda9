"""Our parts of the Kubernetes client beside those of the official package (decision 35).

A local program plays the API server, so that only the clients differ. `python -m bench.kubernetes_client ours` is the
process that measures one port-forward.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
from kubernetes.client import ApiClient, CoreV1Api
from kubernetes.config.exec_provider import ExecProvider
from kubernetes.config.kube_config import ConfigNode
from kubernetes.stream import portforward
from websockets.sync.server import ServerConnection, serve
from websockets.typing import Subprotocol

from bench.harness import Row, report, time_ms
from controlplane.kubernetes_api.channel_socket import V4_PROTOCOL, ChannelSocket
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.credentials import Access
from controlplane.kubernetes_api.tokens import ExecToken

PODS, LISTS = 2000, 5
THREADS = 50
FILES = 1100
LOGIN = """
import json, sys, time
with open(sys.argv[1], "a") as runs:
    runs.write("x")
time.sleep(0.1)
print(json.dumps({"apiVersion": "v1", "kind": "ExecCredential", "status": {"token": "t"}}))
"""


def main() -> None:
    report("kubernetes_client", [*list_rows(), login_row(), forward_row(), import_row()])


def list_rows() -> list[Row]:
    """Return the row with the milliseconds of one decoded list of PODS pods."""
    with http_server(pod_list()) as url:
        client, official = Client(Access(url, None)), CoreV1Api(ApiClient(Access(url, None).configuration()))
        ours = time_ms(lambda: client.get("/api/v1/pods"), LISTS)
        theirs = time_ms(official.list_pod_for_all_namespaces, LISTS)
        client.close()
    return [Row(f"list of {PODS:,} pods as plain dicts", "<= models / 5", "ms", ours,
                peer="official client, models", peer_samples=theirs, ratio_limit=0.2)]  # fmt: skip


def pod_list() -> bytes:
    env = [{"name": f"VARIABLE_{n}", "value": "x" * 20} for n in range(20)]
    container = {
        "name": "main",
        "image": "image",
        "env": env,
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    pods = [
        {"metadata": {"name": f"pod-{n}", "namespace": "a", "labels": {f"l{m}": "v" for m in range(8)}},
         "spec": {"containers": [container]}, "status": {"phase": "Running"}}
        for n in range(PODS)
    ]  # fmt: skip
    return orjson.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods})


def login_row() -> Row:
    """Return the row with the number of runs of a login program when many threads need a token at once."""
    return Row(f"runs of a login program, {THREADS} threads at once", "1", "runs", [runs_of(our_login)], limit=1,
               peer="official ExecProvider", peer_samples=[runs_of(official_login)])  # fmt: skip


def our_login(plugin: dict[str, Any]) -> Callable[[], object]:
    return ExecToken(plugin).current


def official_login(plugin: dict[str, Any]) -> Callable[[], object]:
    return lambda: ExecProvider(ConfigNode("exec", plugin), None).run()


def runs_of(login: Callable[[dict[str, Any]], Callable[[], object]]) -> float:
    with tempfile.NamedTemporaryFile() as runs, ThreadPoolExecutor(THREADS) as pool:
        plugin = {"apiVersion": "v1", "command": sys.executable, "args": ["-c", LOGIN, runs.name]}
        current = login(plugin)
        for asked in [pool.submit(current) for _ in range(THREADS)]:
            asked.result()
        return float(Path(runs.name).stat().st_size)


def forward_row() -> Row:
    """Return the row that shows whether a port-forward echoes a byte in a process with many open files, as a web
    process has."""
    return Row(f"bytes echoed over a port-forward, {FILES:,} files open", ">= 1", "bytes", [echoed("ours")], limit=1,
               at_least=True, peer="official PortForward", peer_samples=[echoed("official")])  # fmt: skip


def echoed(whose: str) -> float:
    command = [sys.executable, "-m", "bench.kubernetes_client", whose]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)


def our_forward(url: str) -> socket.socket:
    # The first message of each channel contains its port.
    skip_port = {0, 1}

    def take(channel: int, data: bytes) -> bytes:
        if channel in skip_port:
            skip_port.remove(channel)
            return b""
        return data

    return ChannelSocket(Access(url, None), "/x", [("ports", "80")], [V4_PROTOCOL], 0, take).near


def official_forward(url: str) -> Any:
    api = CoreV1Api(ApiClient(Access(url, None).configuration()))
    forward = portforward(api.connect_get_namespaced_pod_portforward, "pod", "a", ports="80")
    return forward.socket(80)


def print_echoed(forward: Callable[[str], Any]) -> None:
    """Open a connection to the port by `forward`, print how many bytes came back, then exit at once: the official
    client leaves a thread behind."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(FILES)]
    server = serve(echo, "127.0.0.1", 0, subprotocols=[Subprotocol(V4_PROTOCOL)])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    near = forward(f"http://127.0.0.1:{server.socket.getsockname()[1]}")
    near.settimeout(5)
    try:
        near.sendall(b"x")
        print(len(near.recv(1)), flush=True)
    except OSError:
        print(0, flush=True)
    os._exit(len(kept) - FILES)


def echo(connection: ServerConnection) -> None:
    for channel in (b"\0", b"\1"):
        connection.send(channel + (80).to_bytes(2, "little"))
    for message in connection:
        connection.send(message)


def import_row() -> Row:
    """Return the row with the CPU time of importing the official package, which only processes with a Kubernetes
    cluster do."""
    needed = [import_ms("urllib3, yaml, orjson, aiohttp") for _ in range(LISTS)]
    return Row("CPU to import the official package", "-", "ms", [import_ms("kubernetes") for _ in range(LISTS)],
               peer="what it stands on and ours needs", peer_samples=needed)  # fmt: skip


def import_ms(modules: str) -> float:
    script = f"import time; began = time.process_time(); import {modules}; print(time.process_time() - began)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(done.stdout) * 1000


@contextmanager
def http_server(body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


if __name__ == "__main__":
    if sys.argv[1:]:
        print_echoed(our_forward if sys.argv[1] == "ours" else official_forward)
    main()
