"""A process that answers its parent's questions to the scheduler at low priority, so that long computations
delay no page.

It is started as a program instead of forked, because the parent has threads. It ends when the parent closes
the connection.
"""

from __future__ import annotations

import os
import time
from functools import partial
from multiprocessing.connection import Connection

from controlplane.simulation.questions import QUESTIONS

NICENESS = 10


def main(handle: int) -> None:
    """Answer the parent's questions until it closes the connection. `handle`: the connection's file descriptor."""
    os.nice(NICENESS)
    with Connection(handle) as parent:
        while True:
            try:
                question, budget_seconds, arguments = parent.recv()
            except EOFError:
                # The web process that asked has ended, so no answer is needed.
                return
            is_over = partial(_is_past, time.monotonic() + budget_seconds)
            try:
                answer = True, QUESTIONS[question](is_over, *arguments)
            except Exception as error:  # noqa: BLE001  # the parent raises whatever it is
                answer = False, f"{type(error).__name__}: {error}"
            parent.send(answer)


def _is_past(until: float) -> bool:
    return time.monotonic() > until
