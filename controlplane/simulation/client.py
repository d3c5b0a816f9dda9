"""Client of the simulating process: one per process of the control plane, started when it is first needed."""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent.parent
# -I -S: without site-packages and environment, so that it starts in 60 ms.
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]);"
    " from controlplane.simulation.process import main; main(int(sys.argv[2]))"
)
# How long after the end of its budget a question is abandoned, because a single decision is never interrupted.
GRACE_SECONDS = 20.0


class SimulationFailed(Exception):
    """The simulating process ended, failed, took too long or was closed; the message states which."""


class Simulator:
    """A separate process that computes simulations, started at the first question. Thread-safe; questions are
    answered one after another."""

    def __init__(self, grace_seconds: float = GRACE_SECONDS) -> None:
        self._grace_seconds = grace_seconds
        # One question at a time: answers carry no id by which they could be distinguished.
        self._lock = threading.Lock()
        self._closed = 0  # times
        self._child: tuple[subprocess.Popen[bytes], Connection] | None = None

    def ask(self, question: str, *arguments: Any, budget_seconds: float) -> Any:
        """Return the result of the function `question` in `simulation.questions`, called with `arguments`; it may
        compute for `budget_seconds`. Blocks while other threads' questions are answered. Raise SimulationFailed if it
        fails, or if no answer comes within `grace_seconds` after the budget; the next question then starts a new
        process."""
        closed = self._closed
        with self._lock:
            if closed != self._closed:
                raise SimulationFailed("The simulation was ended.")
            try:
                is_answer, value = self._exchange((question, budget_seconds, arguments), budget_seconds)
            except (OSError, EOFError, TimeoutError) as error:
                self._end()
                detail = str(error) or "its process ended"
                raise SimulationFailed(f"The simulation gave no answer: {detail}.") from error
        if not is_answer:
            raise SimulationFailed(f"The simulation failed: {value}")
        return value

    def close(self) -> None:
        """End the process. Questions in progress raise SimulationFailed; a later question starts a new process. Safe
        to repeat."""
        self._closed += 1
        child = self._child
        if child is not None:
            # Without the lock, because the thread that holds it waits for an answer.
            child[0].kill()
        with self._lock:
            self._end()

    def _exchange(self, question: tuple[Any, ...], budget_seconds: float) -> Any:
        connection = self._running()
        connection.send(question)
        if not connection.poll(budget_seconds + self._grace_seconds):
            raise TimeoutError("it took too long")
        return connection.recv()

    def _running(self) -> Connection:
        if self._child is not None and self._child[0].poll() is None:
            return self._child[1]
        self._end()
        ours, theirs = Pipe()
        with theirs:
            handle = theirs.fileno()
            arguments = [sys.executable, "-I", "-S", "-c", _START, str(_ROOT), str(handle)]
            self._child = subprocess.Popen(arguments, pass_fds=[handle], stdin=subprocess.DEVNULL), ours
        return ours

    def _end(self) -> None:
        if self._child is not None:
            (process, connection), self._child = self._child, None
            connection.close()
            process.kill()
            process.wait()


simulator = Simulator()
atexit.register(simulator.close)
