"""The frames of the live feed as text, and the window of recent ones that a returning client is brought up with."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from controlplane.live.changes import Change

WINDOW_FRAMES = 256
WINDOW_BYTES = 1 << 20
WINDOW_POINTS = 4096


def encode(frame: Mapping[str, Any]) -> str:
    """Return a frame as JSON text: times in UTC with a Z, and never a character that ends a line."""
    return orjson.dumps(frame, option=orjson.OPT_UTC_Z).decode()


def state_frame(topic: str, seq: int, state: Mapping[str, Any], at: str) -> str:
    return encode({"type": "state", "topic": topic, "seq": seq, "state": state, "at": at})


def change_frame(topic: str, seq: int, change: Change, at: str) -> str:
    body = {
        "type": "change",
        "topic": topic,
        "seq": seq,
        "upserts": change.upserts,
        "deletes": change.deletes,
    }
    return encode({**body, "at": at})


def error_frame(topic: object, code: str, detail: str) -> str:
    return encode({"type": "error", "topic": topic, "code": code, "detail": detail})


@dataclass(slots=True)
class Window:
    """The last changes of a topic, as (number, frame), and the numbers at which its state is known.

    A client may be brought up only from a number in `points`. At any other (it came from another web process) a
    record may have changed and changed back since, which the frames here leave out; it gets a fresh state.
    """

    points: dict[int, None]  # in order
    frames: "deque[tuple[int, str]]" = field(default_factory=deque)
    held_bytes: int = 0

    def pass_by(self, seq: int) -> None:
        """Remember that the state at `seq` is the one after the last change."""
        self.points[seq] = None
        while len(self.points) > WINDOW_POINTS:
            del self.points[next(iter(self.points))]

    def add(self, seq: int, text: str) -> None:
        """Remember the change that led to the state at `seq`, and forget the oldest beyond the bounds."""
        self.pass_by(seq)
        self.frames.append((seq, text))
        self.held_bytes += len(text)
        while len(self.frames) > WINDOW_FRAMES or self.held_bytes > WINDOW_BYTES:
            lost, lost_text = self.frames.popleft()
            self.held_bytes -= len(lost_text)
            while self.points and next(iter(self.points)) < lost:
                del self.points[next(iter(self.points))]

    def restart(self, seq: int) -> None:
        """Forget everything: the state at `seq` did not come from a change."""
        self.points, self.held_bytes = {seq: None}, 0
        self.frames.clear()

    def since(self, seq: int) -> list[str] | None:
        """Return the frames that bring a client up from `seq`; None when only a fresh state will do."""
        if seq not in self.points:
            return None
        return [text for number, text in self.frames if number > seq]
