"""GET /api/v1/watch: the live feed as server-sent events, for scripts and `yard --watch`.

`topics=` names topics, separated by commas; `since=` is the event number after which to continue, one for all
topics or one per topic. Each event carries the same frame as the websocket. Its id contains a number per
topic, so a client that sends Last-Event-ID misses nothing.
"""

import asyncio
from collections.abc import Iterable, Set

from controlplane.live.asgi import Message, Receive, Scope, Send, header, problem, query
from controlplane.live.client import Refused, sign_in
from controlplane.live.frames import Frame
from controlplane.live.hub import DETAILS, TOPICS_MOST, hub
from controlplane.live.identity import Identity
from controlplane.live.listener import Listener
from controlplane.live.topics import UNKNOWN, parse_topic

FIELDS = frozenset({"topics", "since"})
# Of an event number: any number of 18 digits fits into 64 bits, as the database requires.
MOST_DIGITS = 18
# Proxies close streams that are silent for long, many after 30 or 60 seconds.
HEARTBEAT_SECONDS = 10.0
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # nginx would otherwise buffer the stream and deliver changes late.
    (b"x-accel-buffering", b"no"),
]


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one event stream until its client disconnects or the hub ends it. A bad request gets a problem+json
    response."""
    try:
        if scope["method"] != "GET":
            raise Refused(405, "method_not_allowed", "Use GET.")
        identity = await sign_in(scope)
        refuse_unknown(query(scope), FIELDS)
        topics = _topics(query(scope).get("topics", ""))
        # The header first: an EventSource that reconnects repeats its URL with the original `since`.
        since = _since(header(scope, b"last-event-id") or query(scope).get("since", ""), len(topics))
    except Refused as refused:
        await problem(send, refused.status, refused.code, refused.detail, challenge(refused))
        return
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    await _Stream(identity, topics, since, send).run(receive)


class _Stream:
    """One event stream: passes the hub's frames to its client as server-sent events."""

    def __init__(self, identity: Identity, topics: list[str], since: list[int | None], send: Send) -> None:
        self._positions = dict(zip(topics, since, strict=True))
        self._send = send
        self._ended = asyncio.Event()
        # Heartbeats and frames are written to the same connection, so they take turns.
        self._writing = asyncio.Lock()
        self._listener = Listener(identity, self._write, self._end)

    async def run(self, receive: Receive) -> None:
        """Send events until the client disconnects or the hub ends the stream, then end the response."""
        hub().attach(self._listener)
        ended = asyncio.create_task(self._ended.wait())
        left = asyncio.create_task(until_left(receive))
        beating = asyncio.create_task(self._beat())
        try:
            for topic, since in self._positions.items():
                hub().subscribe(self._listener, topic, since)
            await asyncio.wait((ended, left, beating), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (ended, left, beating):
                task.cancel()
            hub().detach(self._listener)
        if not left.done():
            await self._send({"type": "http.response.body", "body": b""})

    async def _write(self, frame: Frame) -> None:
        if frame.seq is not None:
            self._positions[frame.topic] = frame.seq
        marks = ",".join("" if seq is None else str(seq) for seq in self._positions.values())
        async with self._writing:
            await self._send(chunk(f"event: {frame.kind}\nid: {marks}\ndata: {frame.text}\n\n"))

    def _end(self, _code: int, _reason: str) -> None:
        self._ended.set()

    async def _beat(self) -> None:
        """Send a comment every HEARTBEAT_SECONDS, so that proxies keep a quiet stream open. Return when sending
        fails, because the client is gone."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                async with self._writing:
                    await self._send(chunk(": alive\n\n"))
            except OSError:
                # The client is gone; the stream ends with this task.
                return


async def until_left(receive: Receive) -> None:
    """Wait until the client has disconnected. Messages before that are ignored."""
    while (await receive())["type"] != "http.disconnect":
        pass


def challenge(refused: Refused) -> list[tuple[bytes, bytes]]:
    """Return the headers that HTTP requires for the refusal's status, such as WWW-Authenticate; [] for most."""
    extra = {
        401: [(b"www-authenticate", b'Bearer realm="trainyard"')],
        405: [(b"allow", b"GET")],
        429: [(b"retry-after", str(refused.wait_seconds).encode())],
        503: [(b"retry-after", b"1")],
    }
    return extra.get(refused.status, [])


def chunk(text: str) -> Message:
    """Return the ASGI message that sends `text` as the next part of a response body."""
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}


def refuse_unknown(fields: Iterable[str], known: Set[str]) -> None:
    """Raise Refused (400) if a query field is not in `known`."""
    unknown = sorted(set(fields) - known)
    if unknown:
        listed = ", ".join(sorted(known))
        detail = f"There is no query field {unknown[0][:40]!r} here; the known ones are: {listed}."
        raise Refused(400, "unknown_query_field", detail)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS


def _topics(text: str) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise Refused(400, "topics_required", "Name topics: ?topics=overview,queue.")
    if len(names) > TOPICS_MOST:
        raise Refused(400, "too_many_topics", f"One stream follows at most {TOPICS_MOST} topics.")
    unknown = [name for name in names if parse_topic(name) is None]
    if unknown:
        raise Refused(400, UNKNOWN, f"There is no topic {unknown[0]!r}. {DETAILS[UNKNOWN]}")
    return names


def _since(text: str, count: int) -> list[int | None]:
    """Return for each of `count` topics the event number after which to continue; None: send its complete state.
    Raise Refused (400) unless `text` is empty, one number for all, or one for each."""
    if not text:
        return [None] * count
    parts = text.split(",")
    if not all(map(_is_number, filter(None, parts))) or len(parts) not in (1, count):
        raise Refused(400, "bad_since", "since is an event number, or one for each topic.")
    numbers = [int(part) if part else None for part in parts]
    return numbers * count if len(numbers) == 1 else numbers
