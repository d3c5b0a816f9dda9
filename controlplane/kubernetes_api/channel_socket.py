"""A websocket of the API server as plain sockets: one thread carries bytes both ways, and neither side can flood us.

Kubernetes puts several channels into one websocket: the first byte of a message says which.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from websocket import ABNF, WebSocket, WebSocketBadStatusException, WebSocketException

from controlplane.kubernetes_api.credentials import KEEPALIVE, Access
from controlplane.kubernetes_api.errors import ApiError, ApiFailed
from controlplane.kubernetes_api.kubeconfig import without_token
from controlplane.remote_errors import Unreachable

V4_PROTOCOL, V5_PROTOCOL = "v4.channel.k8s.io", "v5.channel.k8s.io"
CONNECT_SECONDS = 10.0
PING_SECONDS = 20.0
SILENCE_SECONDS = 60.0  # with pings unanswered for so long, nobody is there
_HELD_BYTES = 256 * 1024  # in each direction, beyond which the sender has to wait
_READ_BYTES = 64 * 1024
_SOON_SECONDS = 10.0  # for the rest of a frame that has begun, and for the last words of an end


def connect(
    access: Access, path: str, query: Sequence[tuple[str, str]], protocols: Sequence[str]
) -> WebSocket:
    """An open websocket. Raises ApiError where the server says no, Unreachable."""
    for may_renew in (True, False):
        headers = access.headers()
        try:
            return _connect_once(access, headers, path, query, protocols)
        except WebSocketBadStatusException as error:
            if error.status_code == 401 and may_renew and access.renew():
                continue
            said = ApiError(error.status_code, without_token(error.resp_body or b"", headers))
            raise (ApiFailed(said) if error.status_code >= 500 else said) from error
        except (WebSocketException, OSError) as error:
            raise Unreachable(f"{access.server} cannot be reached: {error}") from error
    raise AssertionError("the second round returns or raises")


def _connect_once(
    access: Access,
    headers: Mapping[str, str],
    path: str,
    query: Sequence[tuple[str, str]],
    protocols: Sequence[str],
) -> WebSocket:
    options: dict[str, Any] = {"context": access.tls} if access.tls else {}
    if access.server_name:
        options["server_hostname"] = access.server_name
    opened: Any = WebSocket(sslopt=options, sockopt=KEEPALIVE, skip_utf8_validation=True)
    opened.connect(
        f"ws{access.server.removeprefix('http')}{path}?{urlencode(query)}",
        header=[f"{name}: {value}" for name, value in headers.items()],
        subprotocols=list(protocols),
        timeout=CONNECT_SECONDS,
        suppress_origin=True,
        http_no_proxy=["*"],  # as for every other call
        redirect_limit=0,
    )
    websocket: WebSocket = opened
    return websocket


class Carrier:
    """Carries between a websocket and one end of a socket pair; `near` is the other end, for whoever uses the stream.

    What is written there goes to the channel `outward`. `hear(channel, data)` is given every message, on the carrier's
    thread, and returns the bytes of it that belong to the stream; an OSError from it ends the stream. `farewell` is a
    message, with its channel, that is sent once the near side writes no more. The thread ends when either side has
    ended; `ended` is set then.
    """

    def __init__(
        self, opened: WebSocket, outward: int, hear: Callable[[int, bytes], bytes], farewell: bytes = b""
    ) -> None:
        self._websocket: Any = opened
        self._farewell = farewell
        self._outward, self._hear_message = outward, hear
        self.near, self._far = socket.socketpair()
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._far, self._wake_in, self._wake_out):
            end.setblocking(False)
        self._to_near, self._to_cluster = bytearray(), bytearray()
        self._lock = threading.Lock()
        self._near_ended = self._near_is_done = self._cluster_ended = False
        self._give_up_at = float("inf")
        self._heard_at = self._pinged_at = time.monotonic()
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stream to a pod", daemon=True)
        self._thread.start()

    def send(self, channel: int, data: bytes) -> None:
        """A message on another channel, in order with the stream."""
        with self._lock:
            self._to_cluster += _frame(bytes([channel]) + data)
        self._wake()

    def close(self) -> None:
        """End both sides and wait for the thread."""
        self._near_ended = self._cluster_ended = True
        self._wake()
        self._thread.join(_SOON_SECONDS)

    def _wake(self) -> None:
        try:
            self._wake_out.send(b"x")
        except OSError:
            return  # it is awake already, or has ended

    def _run(self) -> None:
        try:
            while not self._is_over():
                self._turn()
        except (OSError, WebSocketException):
            self._cluster_ended = True  # seen from here it is the end of the stream
        finally:
            self._finish()

    def _is_over(self) -> bool:
        """Either side has ended, and the other has its last words."""
        if self._cluster_ended:
            return self._near_ended or not self._to_near
        return self._near_ended and (not self._to_cluster or time.monotonic() > self._give_up_at)

    def _turn(self) -> None:
        """Wait for something to do, and do it."""
        raw = self._websocket.sock
        wanted = self._wanted(raw)
        poll = select.poll()
        for fd, events in wanted.items():
            poll.register(fd, events)
        has_more = self._may_hear() and isinstance(raw, ssl.SSLSocket) and raw.pending() > 0
        ready = dict(poll.poll(0 if has_more else PING_SECONDS * 1000))
        if ready.get(self._wake_in.fileno()):
            self._wake_in.recv(4096)
        if has_more or ready.get(raw.fileno(), 0) & ~select.POLLOUT:
            self._hear()
        self._from_near(ready.get(self._far.fileno(), 0))
        self._flush()
        self._stay_alive()

    def _wanted(self, raw: Any) -> Mapping[int, int]:
        wanted = {self._wake_in.fileno(): select.POLLIN}
        if not self._near_ended:
            may_write = not self._near_is_done and len(self._to_cluster) <= _HELD_BYTES
            near = select.POLLIN if may_write else 0
            wanted[self._far.fileno()] = near | (select.POLLOUT if self._to_near else 0)
        if not self._cluster_ended:
            cluster = select.POLLIN if self._may_hear() else 0
            wanted[raw.fileno()] = cluster | (select.POLLOUT if self._to_cluster else 0)
        return wanted

    def _may_hear(self) -> bool:
        return not self._cluster_ended and len(self._to_near) <= _HELD_BYTES

    def _hear(self) -> None:
        """One message from the cluster. Its rest is on its way when it has begun."""
        self._websocket.settimeout(_SOON_SECONDS)
        opcode, frame = self._websocket.recv_data_frame(control_frame=True)
        self._heard_at = time.monotonic()
        if opcode == ABNF.OPCODE_CLOSE:
            self._cluster_ended = True
        elif opcode in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) and len(frame.data) > 0:
            self._to_near += self._hear_message(frame.data[0], bytes(frame.data[1:]))

    def _from_near(self, ready: int) -> None:
        if ready & select.POLLIN:
            data = self._far.recv(_READ_BYTES)
            self._near_is_done = not data  # it may still want to read
            message = bytes([self._outward]) + data if data else self._farewell
            if message:
                with self._lock:
                    self._to_cluster += _frame(message)
        elif ready & (select.POLLHUP | select.POLLERR):
            self._end_near()

    def _end_near(self) -> None:
        self._near_ended, self._give_up_at = True, time.monotonic() + _SOON_SECONDS
        self._to_near.clear()

    def _flush(self) -> None:
        """Hand over what the two sides take without waiting."""
        if self._to_near:
            try:
                del self._to_near[: self._far.send(self._to_near)]
            except BlockingIOError:
                pass
            except OSError:
                self._end_near()
        if self._to_cluster and not self._cluster_ended:
            raw = self._websocket.sock
            raw.setblocking(False)
            try:
                with self._lock:
                    del self._to_cluster[: raw.send(self._to_cluster[:_READ_BYTES])]
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return

    def _stay_alive(self) -> None:
        """A connection on which nothing is said is cut by what stands between, and nobody hears of it."""
        now = time.monotonic()
        if now - self._heard_at > SILENCE_SECONDS and self._may_hear():
            raise OSError("nobody answers")
        if now - self._pinged_at >= PING_SECONDS:
            self._pinged_at = now
            with self._lock:
                self._to_cluster += _frame(b"", ABNF.OPCODE_PING)

    def _finish(self) -> None:
        self.ended.set()
        with contextlib.suppress(OSError, WebSocketException):
            self._websocket.settimeout(1)
            self._websocket.close(timeout=1)
        self._websocket.shutdown()  # after the server's own close, `close` does nothing
        for end in (self._far, self._wake_in, self._wake_out):
            end.close()


def _frame(data: bytes, opcode: int = ABNF.OPCODE_BINARY) -> bytes:
    framed: bytes = ABNF.create_frame(data, opcode).format()
    return framed
