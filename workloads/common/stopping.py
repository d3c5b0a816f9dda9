"""Handle SIGTERM: finish the step, save a checkpoint, and exit before the grace period is over."""

from __future__ import annotations

import signal
from types import FrameType

# The exit status that a shell shows for a program ended by SIGTERM.
EXIT_CODE = 143


_state = {"is_asked": False}


def is_asked() -> bool:
    """Return whether this process received SIGTERM after its newest StopRequest was created; False without one."""
    return _state["is_asked"]


def ignore_in_loader(number: int) -> None:
    """Ignore SIGTERM in process `number` of a DataLoader, as its `worker_init_fn`: a stop reaches the whole process
    group, and the training needs batches until it has finished its step."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class StopRequest:
    """Handles SIGTERM from its creation on; true once the signal was received. Check it after every step."""

    def __init__(self) -> None:
        self._is_asked = _state["is_asked"] = False
        signal.signal(signal.SIGTERM, self._ask)

    def __bool__(self) -> bool:
        return self._is_asked

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._is_asked = _state["is_asked"] = True
