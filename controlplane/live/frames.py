"""Frames of the live feed as text, and the window of recent frames that a reconnecting client receives."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from controlplane.live.changes import Change

# Bounds on the memory for replays of one topic; a client that is further behind gets the complete state.
WINDOW_FRAMES = 256
WINDOW_BYTES = 1 << 20
WINDOW_POINTS = 4096


def encode(frame: Mapping[str, Any]) -> str:
    """Return a frame as JSON text on one line."""
    return orjson.dumps(frame, option=orjson.OPT_UTC_Z).decode()


@dataclass(frozen=True, slots=True)
class Frame:
    """One message of the feed, encoded once for all listeners. `topic`: "" for a message about no topic; `seq`: the
    number of the topic's state after it, None for a message without a state."""

    kind: str
    topic: str
    seq: int | None
    text: str


def state_frame(topic: str, seq: int, state: Mapping[str, Any], at: str) -> Frame:
    """Return the frame with a topic's complete state. `seq`: its number, that of an event, or of a log's tail. `at`:
    the server's time, from `now_text`."""
    text = encode({"type": "state", "topic": topic, "seq": seq, "state": state, "at": at})
    return Frame("state", topic, seq, text)


def change_frame(topic: str, seq: int, change: Change, at: str) -> Frame:
    """Return the frame with the change that led to the topic's state number `seq`, that of an event, or of a log's
    tail. `at`: the server's time, from `now_text`."""
    body = {
        "type": "change",
        "topic": topic,
        "seq": seq,
        "upserts": change.upserts,
        "deletes": change.deletes,
    }
    return Frame("change", topic, seq, encode({**body, "at": at}))


def error_frame(topic: object, code: str, detail: str) -> Frame:
    """Return the frame that reports an error to the client: a stable `code` and a sentence. `topic`: the name that the
    client sent, any JSON value."""
    text = encode({"type": "error", "topic": topic, "code": code, "detail": detail})
    return Frame("error", "", None, text)


def pong_frame(at: str) -> Frame:
    """Return the frame that answers a ping. `at`: the server's time, from `now_text`."""
    return Frame("pong", "", None, encode({"type": "pong", "at": at}))


@dataclass(slots=True)
class Window:
    """A topic's recent changes, and the event numbers after which a client can continue with them.

    A replay starts only at a number in `points`. At any other number (from another web process) a record may have
    changed and changed back, which these frames do not show, so the client needs a complete state.
    """

    points: dict[int, None]  # in order
    frames: "deque[Frame]" = field(default_factory=deque)
    held_bytes: int = 0

    def pass_by(self, seq: int) -> None:
        """Record that the state is unchanged up to event number `seq`, so that clients can continue there."""
        self.points[seq] = None
        while len(self.points) > WINDOW_POINTS:
            del self.points[next(iter(self.points))]

    def add(self, seq: int, frame: Frame) -> None:
        """Record the frame of the change that led to the state at `seq`. Beyond the limits the oldest frames are
        dropped."""
        self.pass_by(seq)
        self.frames.append(frame)
        self.held_bytes += len(frame.text)
        while len(self.frames) > WINDOW_FRAMES or self.held_bytes > WINDOW_BYTES:
            lost = self.frames.popleft()
            self.held_bytes -= len(lost.text)
            # Replays from before the dropped change would miss it.
            while self.points and next(iter(self.points)) < (lost.seq or 0):
                del self.points[next(iter(self.points))]

    def restart(self, seq: int) -> None:
        """Drop all frames, because no change leads to the state at `seq`."""
        self.points, self.held_bytes = {seq: None}, 0
        self.frames.clear()

    def since(self, seq: int) -> list[Frame] | None:
        """Return the frames that follow event number `seq`; None if they are not complete and the client needs a
        complete state."""
        if seq not in self.points:
            return None
        return [frame for frame in self.frames if (frame.seq or 0) > seq]
