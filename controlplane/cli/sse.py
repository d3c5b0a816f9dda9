"""Server-sent events: a parser, streams that resume after interruptions, and waiting for changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from controlplane.cli.client import Client, Query
from controlplane.cli.errors import TIMED_OUT, UNREACHABLE, ApiError, CliError

T = TypeVar("T")

# Consecutive reconnections without an event before giving up: about a minute.
MAX_BREAKS = 30
MAX_DELAY_SECONDS = 2.0
# A waiting command polls at least this often, because events may be late or refused.
SILENCE_SECONDS = 5.0


class Event(NamedTuple):
    """A server-sent event. `name`: its type; `data`: its data lines, joined by newlines; `id`: "" without one."""

    name: str
    data: str
    id: str = ""


class EventParser:
    """Parses server-sent events from bytes that arrive in pieces, which may end anywhere."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[str, str] = {}
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[Event]:
        """Return the events that `piece` completes; [] if none."""
        # Decode complete lines only: a piece may end inside a character.
        *lines, self._rest = (self._rest + piece).split(b"\n")
        found = (self._line(line.removesuffix(b"\r").decode("utf-8", "replace")) for line in lines)
        return [event for event in found if event is not None]

    def _line(self, line: str) -> Event | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        # The protocol allows one space after the colon, which does not belong to the value.
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field:
            # A line that begins with a colon is a comment, sent to keep the connection alive.
            self._fields[field] = value
        return None

    def _dispatch(self) -> Event | None:
        fields, data = self._fields, self._data
        self._fields, self._data = {}, []
        if not data and "event" not in fields:
            return None
        # "message" is the protocol's name of events without one.
        return Event(fields.get("event", "message"), "\n".join(data), fields.get("id", ""))


def events(client: Client, path: str, query: Query, last_id: str = "") -> Iterator[Event]:
    """Yield the events of one connection until the server ends it. `last_id`: continue after this event, if the
    server still has it; "" for no such event. Raise CliError if the connection fails."""
    parser = EventParser()
    for piece in client.stream(path, query, {"Last-Event-ID": last_id} if last_id else {}):
        yield from parser.feed(piece)


def resuming(client: Client, path: str, query: Query, sleep: Callable[[float], None]) -> Iterator[Event]:
    """Yield events without end: after a break it connects again and continues after the last event with an id.
    `sleep`: waits between connections. Raise CliError for a permanent error, and after MAX_BREAKS breaks without an
    event between them."""
    breaks, last_id = 0, ""
    while True:
        failure: CliError | None = None
        try:
            for event in events(client, path, query, last_id):
                # An event without an id does not change the position to resume from.
                breaks, last_id = 0, event.id or last_id
                yield event
        except CliError as error:
            if not _is_passing(error):
                raise
            failure = error
        breaks += 1
        if breaks > MAX_BREAKS:
            raise failure or CliError(f"{client.url} keeps closing the stream", UNREACHABLE)
        sleep(_delay_seconds(breaks))


def patiently(look: Callable[[], T], sleep: Callable[[float], None]) -> T:
    """Return what `look` returns. If it raises a temporary error (such as while the server restarts), it is called
    again, for about a minute; `sleep` waits in between. Raise the CliError of the last call, and any permanent one."""
    for attempt in range(1, MAX_BREAKS + 1):
        try:
            return look()
        except CliError as error:
            if not _is_passing(error):
                raise
        sleep(_delay_seconds(attempt))
    return look()


class ChangeListener:
    """Waits for changes of `topic`, by the server's live feed in a thread of its own.

    The feed may be late or refused. So the caller reads the state again by REST after each `wait`, of SILENCE_SECONDS
    at most.
    """

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._changed = threading.Event()
        self._closed = threading.Event()
        # A daemon thread, because the command may end while it waits for an event.
        threading.Thread(target=self._listen, name="changes", daemon=True).start()

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for a change of the topic. A change since the last call counts, so that none is
        missed."""
        self._changed.wait(seconds)
        self._changed.clear()

    def close(self) -> None:
        """Stop listening. The thread ends with the next event."""
        self._closed.set()

    def _listen(self) -> None:
        try:
            for _event in resuming(self._client, "watch", {"topics": self._topic}, self._pause):
                self._changed.set()
                if self._closed.is_set():
                    return
        except CliError:
            # Refused or permanently gone: the caller polls every SILENCE_SECONDS.
            return

    def _pause(self, seconds: float) -> None:
        # Not `sleep`, so that `close` ends the pause.
        self._closed.wait(seconds)


def _delay_seconds(attempt: int) -> float:
    return min(0.1 * 2.0**attempt, MAX_DELAY_SECONDS)


def _is_passing(error: CliError) -> bool:
    """Return whether the error is temporary: the same request may succeed later."""
    if isinstance(error, ApiError):
        return error.status in (429, 502, 503, 504)
    return error.exit_code in (UNREACHABLE, TIMED_OUT)
