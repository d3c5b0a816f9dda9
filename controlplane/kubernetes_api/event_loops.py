"""Event loops that run for as long as the process, each on a daemon thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading

# Several threads may ask for the same loop first.
_starting = threading.Lock()
_loops: dict[str, asyncio.AbstractEventLoop] = {}


def event_loop(name: str) -> asyncio.AbstractEventLoop:
    """Return the process's event loop of this name. The first call starts it, on a daemon thread of the same name."""
    with _starting:
        if name not in _loops:
            _loops[name] = asyncio.new_event_loop()
            threading.Thread(target=_loops[name].run_forever, name=name, daemon=True).start()
        return _loops[name]


def _forget_loops() -> None:
    """Drop all event loops, in a forked child: their threads do not exist there."""
    global _starting
    # Another thread of the parent may have held the lock during the fork.
    _starting = threading.Lock()
    _loops.clear()


os.register_at_fork(after_in_child=_forget_loops)
