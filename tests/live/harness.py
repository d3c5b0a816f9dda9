"""The live feed's hub on an event loop of its own, called from a test's thread, and clients that keep the states
they get."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import orjson

from controlplane.live import topics
from controlplane.live.changes import Change, apply, without_empty
from controlplane.live.feeds import queue_of
from controlplane.live.frames import Frame
from controlplane.live.hub import Hub, Pace
from controlplane.live.identity import TOKEN, Credential, Identity, identify
from controlplane.live.listener import Listener
from controlplane.live.registry import topic_kinds
from controlplane.models import Event, Project
from jobs.overview_state import read_overview
from tests.waiting import patience, wait_until

QUICK = Pace(busy=0.01, quiet=0.01, most_share=1.0, recheck=0.2, blocked=0.5, retry=0.05, keep=30.0)


@dataclass(eq=False)
class FakeClient:
    """Handles frames as a browser does: keeps states, applies changes, remembers sequence numbers. Asserts that a
    change is newer than the last frame of its topic."""

    states: dict[str, Any] = field(default_factory=dict)
    seqs: dict[str, int] = field(default_factory=dict)
    frames: list[dict[str, Any]] = field(default_factory=list)
    ended: tuple[int, str] | None = None
    gate: asyncio.Event | None = None  # while it is there and not set, this reader is slow
    listener: Listener | None = None

    async def deliver(self, frame: Frame) -> None:
        if self.gate is not None:
            await self.gate.wait()
        message = orjson.loads(frame.text)
        topic = message.get("topic")
        if message["type"] == "state":
            self.states[topic] = message["state"]
        elif message["type"] == "change":
            assert message["seq"] > self.seqs[topic], "a change that is not newer than what was sent before"
            change = Change(message["upserts"], tuple((a, b) for a, b in message["deletes"]))
            self.states[topic] = apply(self.states[topic], change)
        if "seq" in message:
            self.seqs[topic] = message["seq"]
        self.frames.append(message)

    def end(self, code: int, reason: str) -> None:
        self.ended = (code, reason)

    def errors(self) -> list[str]:
        return [frame["code"] for frame in self.frames if frame["type"] == "error"]


class LiveHub:
    """The hub under test. Each call runs on its event loop; the caller waits for the result."""

    def __init__(self, pace: Pace = QUICK) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-live", daemon=True)
        self._pace = pace

    def __enter__(self) -> "LiveHub":
        self._thread.start()
        self.hub = self.call(lambda: Hub(self._pace))
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self.hub.close(), self._loop).result(patience(10))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(patience(10))
        self._loop.close()

    def call(self, work: Callable[[], Any]) -> Any:
        """Run a function on the event loop and return its result."""

        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(patience(10))

    def connect(self, secret: str, *, is_slow: bool = False) -> FakeClient:
        """Return a client that is signed in with an API token. `is_slow`: it takes no frame until `open`."""
        identity = identify(Credential(TOKEN, secret))
        assert identity is not None
        return self.connect_as(identity, is_slow=is_slow)

    def connect_as(self, identity: Identity, *, is_slow: bool = False) -> FakeClient:
        client = FakeClient()

        def attach() -> None:
            client.gate = asyncio.Event() if is_slow else None
            client.listener = Listener(identity, client.deliver, client.end)
            self.hub.attach(client.listener)

        self.call(attach)
        return client

    def subscribe(self, client: FakeClient, topic: str, since: int | None = None) -> None:
        self.call(lambda: self.hub.subscribe(client.listener, topic, since))

    def follow(self, client: FakeClient, topic: str) -> None:
        """Subscribe the client to a topic and wait until it has the state."""
        self.subscribe(client, topic)
        wait_until(lambda: topic in client.states, what=f"the state of {topic}")

    def open(self, client: FakeClient) -> None:
        """Let a slow client take frames."""
        self.call(lambda: client.gate.set() if client.gate else None)

    def disconnect(self, client: FakeClient) -> None:
        self.call(lambda: self.hub.detach(client.listener))


def fresh(topic: str, project_ids: frozenset[int] | None) -> Any:
    """Return the state of a topic, read from the database now, as decoded JSON. `project_ids`: those that its
    reader may see, None for all."""
    parsed = topics.parse_topic(topic)
    assert parsed is not None
    kind = topic_kinds().get(parsed.kind)
    project_id = topics.project_of(parsed) or 0
    reading = kind.read(parsed.subject, project_id) if kind else read_overview(Event.objects.last_seq())
    state = reading.seen_by(_names(project_ids)) if reading is not None else None
    state = queue_of(state) if parsed.kind == topics.QUEUE else state
    return without_empty(orjson.loads(orjson.dumps(state, option=orjson.OPT_UTC_Z)))


def _names(project_ids: frozenset[int] | None) -> frozenset[str] | None:
    if project_ids is None:
        return None
    return frozenset(Project.objects.filter(pk__in=project_ids).values_list("name", flat=True))


def is_in_step(client: FakeClient, topic: str, project_ids: frozenset[int] | None) -> bool:
    """Return whether the client's state of the topic equals that in the database (see `fresh`)."""
    return topic in client.states and without_empty(client.states[topic]) == fresh(topic, project_ids)
