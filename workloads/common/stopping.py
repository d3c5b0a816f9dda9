"""SIGTERM means: finish the step, save, and leave before the grace is over."""

from __future__ import annotations

import signal
from types import FrameType

# What a shell shows for a program that SIGTERM ended.
EXIT_CODE = 143


_state = {"is_asked": False}


def is_asked() -> bool:
    """Return whether this process got SIGTERM since its StopRequest was made."""
    return _state["is_asked"]


class StopRequest:
    """True once SIGTERM has come; ask it after every step."""

    def __init__(self) -> None:
        self._is_asked = _state["is_asked"] = False
        signal.signal(signal.SIGTERM, self._ask)

    def __bool__(self) -> bool:
        return self._is_asked

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._is_asked = _state["is_asked"] = True
