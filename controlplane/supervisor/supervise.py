"""Keep the children running until a signal requests the stop, then stop them within ten seconds."""

import select
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from controlplane.supervisor.children import Child

# A signal or a child's end wakes the supervisor; on a tick it truncates large logs.
TICK_SECONDS = 15.0
# Below make: a signal that reaches only make is looked for.
MAKE_TICK_SECONDS = 1.0
# Short, because the user waits for the address that is printed when the web server answers.
STARTING_TICK_SECONDS = 0.05
LOG_CHECK_SECONDS = TICK_SECONDS
# Six of the ten seconds in which everything must stop: two more are for Redis, and two are spare.
GRACE_SECONDS = 6.0
REDIS_GRACE_SECONDS = 2.0
# How /proc/PID/status of a make begins.
MAKE_NAME = b"Name:\tmake\n"


class Keeper:
    """Starts, watches and stops the children. Single-threaded: its owner calls `tend` and `sleep` in turn."""

    def __init__(self, children: Sequence[Child]) -> None:
        self.children = list(children)
        self.is_stopping = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._log_check_at = 0.0

    def listen_to_signals(self) -> None:
        """Install signal handlers: SIGINT, SIGTERM and SIGHUP set `is_stopping`; these and SIGCHLD end `sleep`."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._ask_to_stop)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def tend(self) -> None:
        """Start children that are due, print which ones have ended, and truncate large logs. Does not wait."""
        now = time.monotonic()
        for child in self.children:
            ending = child.notice_death(now)
            if ending:
                report(ending, *(f"    {line}" for line in child.last_lines(3)))
            if child.process is None and now >= child.start_at:
                child.start(now)
        if now >= self._log_check_at:
            self._log_check_at = now + LOG_CHECK_SECONDS
            for child in self.children:
                child.cap_log()

    def sleep(self, longest_seconds: float) -> None:
        """Wait for a signal, the end of a child or a planned restart, at most `longest_seconds`."""
        now = time.monotonic()
        planned = [child.start_at - now for child in self.children if child.process is None]
        ready, _, _ = select.select([self._reader], [], [], max(0.0, min([longest_seconds, *planned])))
        if ready:
            self._reader.recv(4096)

    def stop(self) -> None:
        """Stop all children, Redis last, because the others use it until they end. Children that do not end in time
        are killed."""
        others = [child for child in self.children if child.name != "redis"]
        _end(others, GRACE_SECONDS)
        _end([child for child in self.children if child not in others], REDIS_GRACE_SECONDS)

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        # The handler only sets a flag, because an exception could be raised between any two statements.
        self.is_stopping = True


def report(*lines: str) -> None:
    """Print lines to the console. A closed console is ignored."""
    try:
        print(*lines, sep="\n", flush=True)
    except OSError:
        return


def answers(address: tuple[str, int]) -> bool:
    """Return whether the web server at this (host, port) answers /healthz with status 200."""
    request = "GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n"
    try:
        with socket.create_connection(address, timeout=2.0) as connection:
            connection.sendall(request.encode())
            return b" 200 " in connection.recv(64)
    except OSError:
        return False


def is_make_waiting(parent: int) -> bool:
    """Return whether the parent process (id `parent`) is a `make` that received SIGINT and waits for this process to
    end. Ctrl-C in a terminal reaches both; a script's signal reaches only make, which does not forward SIGINT."""
    try:
        status = Path(f"/proc/{parent}/status").read_bytes()
    except OSError:
        return False
    # Below make this runs every second, so it searches the text instead of dividing it into fields.
    if not status.startswith(MAKE_NAME):
        return False
    # If make catches SIGINT, its Ctrl-C handling works as usual. If make ignores it, it was started in the
    # background of a script and receives no Ctrl-C.
    caught_or_ignored = _signals(status, b"SigCgt:\t") | _signals(status, b"SigIgn:\t")
    return not caught_or_ignored >> (signal.SIGINT - 1) & 1


def _signals(status: bytes, field: bytes) -> int:
    """Return a field of signals of a file /proc/PID/status as a bit mask; 0 if it is missing."""
    return int((status.partition(field)[2].split(None, 1) or [b"0"])[0], 16)


def _end(children: Sequence[Child], grace_seconds: float) -> None:
    for child in children:
        child.send(signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    for child in children:
        if not child.wait(deadline - time.monotonic()):
            report(f"{child.name} did not end in {grace_seconds:.0f} s; killing it")
            child.send(signal.SIGKILL)
            child.wait(grace_seconds)
