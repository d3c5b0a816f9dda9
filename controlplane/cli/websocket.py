"""A websocket client (RFC 6455) with the standard library alone: handshake, frames, fragments, ping and
close."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from controlplane.cli.errors import FAILED, UNREACHABLE, ApiError, CliError

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
NORMAL_CLOSURE = 1000
# A constant of RFC 6455, which a server appends to the key.
_ACCEPT_SUFFIX = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
# Bounds on the memory that a faulty server can make `yard` use.
_MAX_HEAD_BYTES = 65_536
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024


class Frame(NamedTuple):
    """A received websocket frame. `is_final`: it is the last of its message."""

    is_final: bool
    opcode: int
    payload: bytes


class Closed(Exception):
    """The connection is closed. `code`: of the close frame; 1005 if the frame has none, 1006 if there was no close
    frame."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"closed with {code} {reason}".strip())
        self.code = code
        self.reason = reason


class FrameParser:
    """Parses frames from bytes that arrive in pieces, which may end anywhere."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> list[Frame]:
        """Return the frames that `piece` completes; [] if none. Raise CliError for a frame that is too long or
        malformed."""
        self._buffer += piece
        frames = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _next(self) -> Frame | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, second = buffer[0], buffer[1]
        length, start = second & 0x7F, 2
        if length >= 126:
            width = 2 if length == 126 else 8
            if len(buffer) < 2 + width:
                return None
            length, start = int.from_bytes(buffer[2 : 2 + width], "big"), 2 + width
        # Check the length before the payload arrives, so that an excessive one is not awaited.
        _check(first, second, length)
        if len(buffer) < start + length:
            return None
        payload = bytes(buffer[start : start + length])
        del buffer[: start + length]
        return Frame(bool(first & 0x80), first & 0x0F, payload)


def encode_frame(opcode: int, payload: bytes, mask: bytes) -> bytes:
    """Return the bytes of a frame with a whole message, masked as RFC 6455 demands of clients. `opcode`: such as TEXT
    or CLOSE; `mask`: four random bytes, new for each frame."""
    size = len(payload)
    if size < 126:
        head = bytes([0x80 | opcode, 0x80 | size])
    elif size < 65_536:
        head = bytes([0x80 | opcode, 0x80 | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([0x80 | opcode, 0x80 | 127]) + size.to_bytes(8, "big")
    return head + mask + _masked(payload, mask)


class WebSocket:
    """An open websocket connection. `left_over`: bytes that were received after the handshake's response."""

    def __init__(self, connection: socket.socket, left_over: bytes = b"") -> None:
        self._socket = connection
        self._parser = FrameParser()
        self._ready: list[Frame] = self._parser.feed(left_over)
        self._opcode = 0
        self._parts: list[bytes] = []

    def fileno(self) -> int:
        """Return the socket's file descriptor, so that `select` can wait for it."""
        return self._socket.fileno()

    @property
    def has_buffered(self) -> bool:
        """Return whether received bytes are buffered outside the socket, so that `select` would not report them."""
        pending = getattr(self._socket, "pending", None)
        return bool(self._ready) or bool(pending is not None and pending())

    def send(self, opcode: int, payload: bytes) -> None:
        """Send one message as a single frame. `opcode`: TEXT or BINARY."""
        self._socket.sendall(encode_frame(opcode, payload, os.urandom(4)))

    def receive(self) -> list[tuple[int, bytes]]:
        """Wait for bytes and return the messages (opcode, payload) that they complete; [] if none. Answers pings.
        Raise Closed once the other side has closed the connection; messages received before that are returned first.
        Raise CliError for a malformed frame, OSError if the connection breaks."""
        if not self._ready:
            piece = self._socket.recv(65_536)
            if not piece:
                raise Closed(1006, "the connection broke")
            self._ready = self._parser.feed(piece)
        messages: list[tuple[int, bytes]] = []
        while self._ready:
            if messages and self._ready[0].opcode == CLOSE:
                # Return messages received before the close frame first.
                break
            message = self._message(self._ready.pop(0))
            messages += [message] if message is not None else []
        return messages

    def close(self) -> None:
        """Close the connection, with a close frame if it is still open."""
        try:
            self.send(CLOSE, NORMAL_CLOSURE.to_bytes(2, "big"))
        except OSError:
            # Closed already.
            pass
        self._socket.close()

    def _message(self, frame: Frame) -> tuple[int, bytes] | None:
        if frame.opcode == PING:
            self.send(PONG, frame.payload)
        if frame.opcode == CLOSE:
            # 1005: the frame has no code (RFC 6455).
            raise Closed(
                int.from_bytes(frame.payload[:2], "big") or 1005, frame.payload[2:].decode("utf-8", "replace")
            )
        # Control frames may come between the fragments of a message.
        if frame.opcode >= CLOSE:
            return None
        if frame.opcode != CONTINUATION:
            self._opcode, self._parts = frame.opcode, []
        self._parts.append(frame.payload)
        if sum(map(len, self._parts)) > _MAX_MESSAGE_BYTES:
            raise CliError("the server sent a message that is too long", FAILED)
        return (self._opcode, b"".join(self._parts)) if frame.is_final else None


def connect(url: str, path: str, headers: dict[str, str], timeout: float = 10.0) -> WebSocket:
    """Return an open websocket to `path` on the server at `url`. `headers`: of the request; `timeout`: seconds
    for the handshake, not for later reads. Raise ApiError if the server refuses, CliError if it cannot be reached
    or does not support websockets."""
    parts = urlsplit(url)
    key = base64.b64encode(os.urandom(16)).decode()
    try:
        connection = _connected(parts, timeout)
        connection.sendall(_request(parts, path, {**headers, "Sec-WebSocket-Key": key}))
        status, head, left_over = _answer(connection)
    except OSError as error:
        raise CliError(f"cannot reach {url}: {error}", UNREACHABLE) from error
    if status != 101:
        connection.close()
        raise ApiError(status, {"title": _refusal(status)})
    # The accept key proves that the server has read this handshake (RFC 6455).
    if head.get("sec-websocket-accept") != _accept(key):
        connection.close()
        raise CliError(f"{url} does not speak websocket", UNREACHABLE)
    # The timeout is for the handshake only; a shell may be silent for hours.
    connection.settimeout(None)
    return WebSocket(connection, left_over)


def _connected(parts: SplitResult, timeout: float) -> socket.socket:
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    connection = socket.create_connection((host, parts.port or (443 if is_tls else 80)), timeout)
    # Disable Nagle's algorithm, which would delay keystrokes, as they are small messages.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not is_tls:
        return connection
    import ssl

    return ssl.create_default_context().wrap_socket(connection, server_hostname=host)


def _request(parts: SplitResult, path: str, headers: dict[str, str]) -> bytes:
    fields = {
        # User and password of the URL do not belong into the header.
        "Host": parts.netloc.rpartition("@")[2],
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        **headers,
    }
    lines = [
        f"GET {parts.path.rstrip('/')}{path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in fields.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read the response to the handshake. Return its status (0 if malformed), its headers by lower-case name, and the
    bytes received after it. Raise ConnectionResetError if it is incomplete or too long."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(4096)
        if not piece or len(received) > _MAX_HEAD_BYTES:
            raise ConnectionResetError("no answer to the websocket handshake")
        received += piece
    head, _, left_over = received.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    words = status_line.split()
    status = int(words[1]) if len(words) > 1 and words[1].isdecimal() else 0
    return status, {name.strip().lower(): value.strip() for name, _, value in pairs}, left_over


def _accept(key: str) -> str:
    # RFC 6455 requires SHA-1 here; the digest protects nothing.
    digest = hashlib.sha1(key.encode() + _ACCEPT_SUFFIX, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


def _refusal(status: int) -> str:
    known = {401: "not logged in", 403: "the server refused the shell", 404: "no such running pod"}
    return known.get(status, f"the server answered {status} to the websocket handshake")


def _check(first: int, second: int, length: int) -> None:
    # Reserved bits, which only an extension may use, or a mask, which only clients use.
    if first & 0x70 or second & 0x80:
        raise CliError("the server sent a frame that RFC 6455 does not allow", FAILED)
    if length > _MAX_MESSAGE_BYTES:
        raise CliError("the server sent a frame that is too long", FAILED)


def _masked(payload: bytes, mask: bytes) -> bytes:
    """Return the payload XOR the mask, which repeats; computed as one integer operation."""
    size = len(payload)
    repeated = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")
