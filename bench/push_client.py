"""The clients of bench.push: many raw websockets in one process of their own, so that reading costs next to nothing.

python -m bench.push_client PORT PATH CLIENTS SECONDS MARK [TOKEN [SUBSCRIPTION]] prints JSON: the latency of each
message in ms, counted from the time that follows MARK in its text, and the number of bytes received.
"""

import asyncio
import base64
import json
import os
import struct
import sys
import time
from datetime import datetime

CONNECT_AT_ONCE = 50
PING, TEXT = 0x9, 0x1


class Reader(asyncio.Protocol):
    """One websocket: performs the handshake, subscribes, and records when each message arrived."""

    def __init__(
        self, request: bytes, subscription: bytes, ready: "asyncio.Future[None]", seen: "Seen"
    ) -> None:
        self._request, self._subscription, self._ready, self._seen = request, subscription, ready, seen
        self._buffer = b""
        self._is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._is_open:
            head, separator, rest = self._buffer.partition(b"\r\n\r\n")
            if not separator:
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self._ready.set_exception(ConnectionError(head.decode("latin-1")))
                return
            self._is_open, self._buffer = True, rest
            if self._subscription:
                self._transport.write(frame(TEXT, self._subscription))
            self._ready.set_result(None)
        self._take_frames()

    def connection_lost(self, exc: Exception | None) -> None:
        self._seen.lost += 1

    def _take_frames(self) -> None:
        while (taken := split_frame(self._buffer)) is not None:
            opcode, payload, self._buffer = taken
            if opcode == PING:
                self._transport.write(frame(0xA, payload))
            elif opcode == TEXT:
                self._seen.add(payload)


class Seen:
    """The latencies of all messages of all websockets, once `is_counting` is set."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._known: dict[bytes, float] = {}
        self.is_counting = False
        self.latencies_ms: list[float] = []
        self.received_bytes = self.lost = 0

    def add(self, payload: bytes) -> None:
        now = time.time()
        if not self.is_counting:
            return
        self.received_bytes += len(payload)
        at = payload.find(self._mark)
        if at < 0:
            return
        begin = at + len(self._mark)
        stamp = payload[begin : payload.index(b'"', begin)]
        sent = self._known.get(stamp)
        if sent is None:
            sent = self._known[stamp] = datetime.fromisoformat(stamp.decode()).timestamp()
        self.latencies_ms.append((now - sent) * 1000)


def frame(opcode: int, payload: bytes) -> bytes:
    """Return a client's websocket frame with this opcode and payload, masked with zeros."""
    size = len(payload)
    head = bytes([0x80 | opcode]) + (
        bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack("!H", size)
    )
    return head + bytes(4) + payload


def split_frame(data: bytes) -> tuple[int, bytes, bytes] | None:
    """Return opcode, payload and the remaining bytes of the first complete server frame; None if there is none."""
    if len(data) < 2:
        return None
    size, head = data[1] & 0x7F, 2
    if size == 126:
        size, head = (struct.unpack("!H", data[2:4])[0], 4) if len(data) >= 4 else (0, 1 << 62)
    elif size == 127:
        size, head = (struct.unpack("!Q", data[2:10])[0], 10) if len(data) >= 10 else (0, 1 << 62)
    if len(data) < head + size:
        return None
    return data[0] & 0x0F, data[head : head + size], data[head + size :]


async def read(
    port: int, path: str, clients: int, seconds: float, mark: str, token: str, subscription: str
) -> None:
    """Connect all clients, print `ready`, wait for a line of input, count for `seconds`, and print the results.
    `mark`, `token`, `subscription`: see the module."""
    loop, seen = asyncio.get_running_loop(), Seen(mark.encode())
    credential = f"Authorization: Bearer {token}\r\n" if token else ""
    gate = asyncio.Semaphore(CONNECT_AT_ONCE)

    async def connect() -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        request = (
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n{credential}\r\n"
        )
        async with gate:
            ready: asyncio.Future[None] = loop.create_future()
            make = lambda: Reader(request.encode(), subscription.encode(), ready, seen)  # noqa: E731 - asyncio's factory
            await loop.create_connection(make, "127.0.0.1", port)
            await ready

    await asyncio.gather(*(connect() for _ in range(clients)))
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    seen.is_counting = True
    await asyncio.sleep(seconds)
    seen.is_counting = False
    print(
        json.dumps({"latencies_ms": seen.latencies_ms, "bytes": seen.received_bytes, "lost": seen.lost}),
        flush=True,
    )


if __name__ == "__main__":
    arguments = [*sys.argv[1:], "", ""]
    asyncio.run(
        read(
            int(arguments[0]), arguments[1], int(arguments[2]), float(arguments[3]), arguments[4], arguments[5],
            arguments[6],
        )
    )  # fmt: skip
