"""One client of the feed: its bounded queue and the task that sends it.

A slow client delays no other: frames that do not fit into its queue are replaced by one complete state per
topic, read at the moment of sending. A client that accepts no data for ten seconds is disconnected.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from controlplane.live.frames import Frame
from controlplane.live.identity import Identity

logger = logging.getLogger(__name__)

# Bounds on the memory for one slow client, which gets complete states beyond them.
QUEUE_FRAMES = 32
QUEUE_BYTES = 512 * 1024

# A queue entry that stands for the topic's state at the moment of sending, so that no outdated state is sent.
FRESH = None


@dataclass(eq=False)
class Listener:
    """A connected websocket or stream with its queue. `deliver` sends one frame and returns when the next can be
    sent. `on_end` is called with a websocket close code and a reason when the server ends the connection.
    `blocked_since`: when sending of the current frame began, by time.monotonic(); None if none is being sent."""

    identity: Identity
    deliver: Callable[[Frame], Awaitable[None]]
    on_end: Callable[[int, str], None]
    # By topic, the function that returns its present state frame: called when the frame is sent, so that it is not
    # outdated.
    fresh: dict[str, Callable[[], Frame]] = field(default_factory=dict)
    blocked_since: float | None = None
    is_ended: bool = False
    _queue: "deque[tuple[str, Frame | None]]" = field(default_factory=deque)
    _bytes: int = 0
    # Topics for which a complete state is queued, so that their changes need not be queued as well.
    _behind: set[str] = field(default_factory=set)
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _writer: "asyncio.Task[None] | None" = None

    def start(self) -> None:
        """Start the task that sends queued frames. Call it on the event loop."""
        self._writer = asyncio.create_task(self._write(), name="live-writer")

    def offer(self, frame: Frame) -> None:
        """Queue a frame. If the queue is full, this and all queued frames are replaced by one complete state per
        topic; errors and pongs are lost."""
        if frame.topic in self._behind:
            # The queued state will include this change when it is sent.
            return
        # Checked before the frame is added, so that an empty queue accepts a frame of any size.
        if len(self._queue) >= QUEUE_FRAMES or self._bytes > QUEUE_BYTES:
            self._fall_back(frame.topic)
        else:
            self._queue.append((frame.topic, frame))
            self._bytes += len(frame.text)
        self._ready.set()

    def stop(self) -> None:
        """Stop sending, and drop what is queued."""
        self.is_ended = True
        self._queue.clear()
        if self._writer is not None:
            self._writer.cancel()

    def drop(self, topic: str) -> None:
        """Remove a topic's queued frames, after an unsubscribe or a change of rights."""
        self.fresh.pop(topic, None)
        self._behind.discard(topic)
        self._queue = deque((name, frame) for name, frame in self._queue if name != topic)
        self._bytes = sum(len(frame.text) for _, frame in self._queue if frame is not FRESH)

    def _fall_back(self, topic: str) -> None:
        """Replace all queued frames by one complete state for each of their topics and for `topic`. Queued errors and
        pongs are lost."""
        topics = dict.fromkeys([*(name for name, _ in self._queue), topic])
        self._queue = deque((name, FRESH) for name in topics if name in self.fresh)
        self._behind = {name for name, _ in self._queue}
        self._bytes = 0

    async def _write(self) -> None:
        while True:
            await self._ready.wait()
            self._ready.clear()
            while self._queue:
                topic, frame = self._queue.popleft()
                if frame is FRESH:
                    self._behind.discard(topic)
                    make = self.fresh.get(topic)
                    if make is None:
                        continue  # unsubscribed since
                    # Built now, so that it includes everything that happened while it was queued.
                    frame = make()
                else:
                    self._bytes -= len(frame.text)
                if not await self._delivered(frame):
                    return

    async def _delivered(self, frame: Frame) -> bool:
        self.blocked_since = time.monotonic()
        try:
            await self.deliver(frame)
        except OSError:
            # The server reports that the client is gone; the connection's own task cleans up.
            return False
        except Exception:
            logger.exception("a live connection failed")
            self.is_ended = True
            self.on_end(1011, "internal error")
            return False
        self.blocked_since = None
        return True
