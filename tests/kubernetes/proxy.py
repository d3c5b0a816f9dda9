"""A proxy before an API server that behaves as networks and busy servers do, by chance from a seed.

    with fault_proxy(kube) as proxy:
        proxy.faults = Faults(drop=0.1, lose_answer=0.1, cut=0.2)
        engine = KubernetesEngine(settings, state_dir, access=proxy.access())
        ...
        proxy.faults = Faults()          # quiet

`proxy.done` counts the faults by the names of Faults. It does nothing that no server does: an event that is held
back is sent right after the next one, and is never lost while that one is sent.

`proxy.ahead`: by how much the cluster's clocks are ahead of ours; all times in answers are moved."""

from __future__ import annotations

import http.client
import queue
import random
import re
import select
import socket
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

import orjson

from controlplane.kubernetes_api.credentials import Access
from controlplane.kubernetes_api.tokens import FixedToken
from tests.kube import KubeCluster

HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "host", "content-length"}
HOLD_SECONDS = 0.1
_MOMENT = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?=(?:\.\d+)?Z)")
_SINCE = re.compile(r"(?<=sinceTime=)[^&]+")


@dataclass(frozen=True)
class Faults:
    """Chances from 0 to 1 per request, and in the second group per event of a watch.

    drop: closed before the server gets the request. lose_answer: carried out, and the answer is lost. late:
    answered after up to `late_seconds`. busy: 429 with Retry-After. failing: 500 or 503, not carried out. gone: a
    watch is answered with 410, by status or inside the stream. cut: the stream ends, also inside a line. repeat:
    an earlier event is sent again. swap: sent after the next one. stall_seconds: every event is late by this."""

    drop: float = 0
    lose_answer: float = 0
    late: float = 0
    late_seconds: float = 0.2
    busy: float = 0
    retry_after: str = "0"
    failing: float = 0
    gone: float = 0
    cut: float = 0
    repeat: float = 0
    swap: float = 0
    stall_seconds: float = 0


class FaultProxy:
    """See `fault_proxy`. From `freeze()` to `thaw()` connections stay open and nothing is sent."""

    def __init__(self, kube: KubeCluster, seed: int) -> None:
        parts = urlsplit(kube.url)
        self.upstream = (parts.hostname or "", parts.port or 443)
        self.context = ssl.create_default_context(cafile=str(kube.ca))
        self.token, self.faults, self.done = kube.token, Faults(), Counter[str]()
        self.requests: Counter[tuple[str, str]] = Counter()
        self.ahead = timedelta()
        self.flowing = threading.Event()
        self.flowing.set()
        self._chance, self._lock = random.Random(seed), threading.Lock()
        self._open: set[socket.socket] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads, self._server.block_on_close = True, False
        self._server.proxy = self  # type: ignore[attr-defined]  # ours, on their server
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def access(self, token: str = "") -> Access:
        """Return the access to the API server through the proxy. `token`: "" for the admin's."""
        return Access(self.url, None, FixedToken(token or self.token))

    def freeze(self) -> None:
        self.flowing.clear()

    def thaw(self) -> None:
        self.flowing.set()

    def cut_all(self) -> int:
        """Close all open connections; return their number."""
        with self._lock:
            cut = [end for end in self._open if _shut(end)]
        return len(cut)

    def happens(self, name: str) -> bool:
        chance = getattr(self.faults, name)
        if not chance:
            return False
        with self._lock:
            if self._chance.random() >= chance:
                return False
            self.done[name] += 1
            return True

    def pick(self, low: int, high: int) -> int:
        with self._lock:
            return self._chance.randint(low, high)

    def note(self, end: socket.socket, is_open: bool) -> None:
        with self._lock:
            (self._open.add if is_open else self._open.discard)(end)

    def close(self) -> None:
        self.thaw()
        self._server.shutdown()
        self.cut_all()
        self._server.server_close()
        self._thread.join(5)


@contextmanager
def fault_proxy(kube: KubeCluster, seed: int = 1) -> Iterator[FaultProxy]:
    proxy = FaultProxy(kube, seed)
    try:
        yield proxy
    finally:
        proxy.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: FaultProxy

    def setup(self) -> None:
        super().setup()
        self.proxy = self.server.proxy  # type: ignore[attr-defined]  # ours, on their server
        self.proxy.note(self.connection, True)
        self.upstream = http.client.HTTPSConnection(
            *self.proxy.upstream, context=self.proxy.context, timeout=700
        )

    def finish(self) -> None:
        self.proxy.note(self.connection, False)
        self.upstream.close()
        try:
            super().finish()
        except OSError:
            return

    def handle(self) -> None:
        try:
            super().handle()
        except (OSError, http.client.HTTPException):
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Do nothing: print no requests."""

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PATCH = do_DELETE = do_PUT = do_GET  # noqa: N815  the name that http.server looks for

    def _serve(self) -> None:
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        self.proxy.requests[self.command, path] += 1
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.proxy.flowing.wait()
        is_watch = "watch" in query
        if self._is_broken(is_watch):
            return None
        if self.headers.get("Upgrade"):
            return self._tunnel()
        if self.upstream.sock is None:
            self.upstream.connect()
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        asked = _SINCE.sub(
            lambda found: quote(_moved(unquote(found[0]).encode(), -self.proxy.ahead)), self.path
        )
        self.upstream.request(self.command, asked, body or None, headers)
        answer = self.upstream.getresponse()
        if answer.status == 200 and (is_watch or "follow" in query):
            return self._stream(answer, is_watch)
        content = answer.read()
        if self.proxy.happens("lose_answer"):
            return self._hang_up()
        self.proxy.flowing.wait()
        self._answer(answer.status, content, dict(answer.getheaders()))
        return None

    def _is_broken(self, is_watch: bool) -> bool:
        """Inject a fault into a request before the server gets it. Return whether the request ends with it."""
        proxy, faults = self.proxy, self.proxy.faults
        if proxy.happens("late"):
            time.sleep(faults.late_seconds * proxy.pick(1, 100) / 100)
        if proxy.happens("drop"):
            self._hang_up()
        elif proxy.happens("busy"):
            self._status(429, "TooManyRequests", {"Retry-After": faults.retry_after})
        elif proxy.happens("failing"):
            self._status((500, 503)[proxy.pick(0, 1)], "InternalError")
        elif is_watch and proxy.happens("gone"):
            if proxy.pick(0, 1):
                self._status(410, "Expired")
            else:
                event = {"type": "ERROR", "object": _status_object(410, "Expired")}
                self._answer(200, orjson.dumps(event) + b"\n", {"Content-Type": "application/json"})
        else:
            return False
        return True

    def _status(self, code: int, reason: str, headers: dict[str, str] | None = None) -> None:
        content = orjson.dumps(_status_object(code, reason))
        self._answer(code, content, {"Content-Type": "application/json", **(headers or {})})

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        content = _moved(content, self.proxy.ahead)
        if self.proxy.ahead and "Date" in headers:
            headers["Date"] = format_datetime(
                parsedate_to_datetime(headers["Date"]) + self.proxy.ahead, usegmt=True
            )
        for name, value in headers.items():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _hang_up(self) -> None:
        self.close_connection = True
        _shut(self.connection)

    def _stream(self, answer: http.client.HTTPResponse, is_watch: bool) -> None:
        self.send_response_only(200)
        self.send_header("Content-Type", answer.getheader("Content-Type", "application/json"))
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        upstream: socket.socket = (
            self.upstream.sock
        )  # an answer without an end takes it away from the connection
        reader = threading.Thread(target=_read_lines, args=(answer, lines), daemon=True)
        reader.start()
        self.proxy.note(upstream, True)
        try:
            for group in (_shuffled if is_watch else _as_they_come)(lines, self.proxy):
                self.proxy.flowing.wait()
                if self.proxy.happens("cut"):
                    self._chunk(
                        group[: self.proxy.pick(0, len(group) // 2)] if group.count(b"\n") == 1 else b""
                    )
                    return self._hang_up()
                self._chunk(group)
            self.wfile.write(b"0\r\n\r\n")
        finally:
            self.close_connection = True
            _shut(upstream)
            reader.join()
            self.proxy.note(upstream, False)
        return None

    def _chunk(self, data: bytes) -> None:
        data = _moved(data, self.proxy.ahead)
        if data:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _tunnel(self) -> None:
        """Forward a websocket's bytes both ways until one side ends."""
        self.close_connection = True
        raw = socket.create_connection(self.proxy.upstream)
        with self.proxy.context.wrap_socket(raw, server_hostname=self.proxy.upstream[0]) as upstream:
            head = f"{self.command} {self.path} HTTP/1.1\r\nHost: {self.proxy.upstream[0]}\r\n"
            head += "".join(
                f"{name}: {value}\r\n" for name, value in self.headers.items() if name.lower() != "host"
            )
            upstream.sendall(f"{head}\r\n".encode())
            while True:
                if not upstream.pending():
                    ready, _, _ = select.select([upstream, self.connection], [], [])
                    if self.connection in ready and not _move(self.connection, upstream):
                        return None
                    if upstream not in ready:
                        continue
                self.proxy.flowing.wait()
                if self.proxy.happens("cut") or not _move(upstream, self.connection):
                    return self._hang_up()


def _moved(data: bytes, by: timedelta) -> bytes:
    """Return the data with every time in it moved by `by`."""
    if not by:
        return data
    return _MOMENT.sub(
        lambda found: (datetime.fromisoformat(found[0].decode()) + by).isoformat().encode(), data
    )


def _move(source: socket.socket, target: socket.socket) -> bool:
    data = source.recv(65536)
    if data:
        target.sendall(data)
    return bool(data)


def _read_lines(answer: http.client.HTTPResponse, lines: queue.SimpleQueue[bytes]) -> None:
    """Put the lines of the answer into the queue as they arrive; an empty one at its end or after an error."""
    try:
        while line := answer.readline():
            lines.put(line)
    except (OSError, http.client.HTTPException, ValueError):
        lines.put(b"")
    else:
        lines.put(b"")


def _as_they_come(lines: queue.SimpleQueue[bytes], proxy: FaultProxy) -> Iterator[bytes]:
    while line := lines.get():
        yield line


def _shuffled(lines: queue.SimpleQueue[bytes], proxy: FaultProxy) -> Iterator[bytes]:
    """Yield the lines late, repeated and swapped. Lines that a cut must not separate are yielded together."""
    past: deque[bytes] = deque(maxlen=20)
    held = b""
    while True:
        try:
            line = lines.get(timeout=HOLD_SECONDS if held else None)
        except queue.Empty:
            line, held = held, b""
            yield line
            continue
        if not line:
            if held:
                yield held
            return
        if proxy.faults.stall_seconds:
            time.sleep(proxy.faults.stall_seconds)
        if past and proxy.happens("repeat"):
            yield past[proxy.pick(0, len(past) - 1)]
        past.append(line)
        if held:
            line, held = line + held, b""
        elif proxy.happens("swap"):
            held = line
            continue
        yield line


def _status_object(code: int, reason: str) -> dict[str, object]:
    words = f"{reason}, says the proxy"
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": words,
    }


def _shut(end: socket.socket) -> bool:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    return True
