"""Memberships of elastic pods, over one exec per pod that stays open.

The agent at its other end (member_agent.py) replaces the membership file and reports the worker's status. What is lost
with a connection is sent again over the next one. Decision 54 has the measurements.
"""

from __future__ import annotations

import json
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from controlplane.engines.base import STDOUT, EngineRefused, EngineUnreachable, MemberReport, Process

logger = logging.getLogger(__name__)

# Connections that are opened at once.
OPENING = 8
# Connections that are ended at once while all are closed, and how long `close` waits for them: without an API server,
# each takes as long as it takes to connect, and the engine of the next settings waits for this one.
CLOSING, CLOSING_SECONDS = 200, 15.0
# After a connection ended or could not be opened. It doubles, up to the longest, with each connection that soon ended
# without a report (an image without python3) or printed too much.
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
# A pod that no cycle asked about for this long is no elastic job's any more.
UNASKED_SECONDS = 120.0
# Of one line; a status has at most 64 KiB, and its escapes may take six times as much.
LONGEST_LINE = 512 * 1024
# What one pod prints is read this often before it is another's turn.
READS_PER_TURN = 16
# In a second, also of error output; each 64 KiB of a piece are one. The python3 in a pod is its user's.
MOST_LINES = 500


@dataclass(slots=True, eq=False)
class _Line:
    """The connection to one pod. `text`, `age`: what its agent reported last; they outlive the connection."""

    wanted: str = ""
    sent: str = ""
    text: str = ""
    age: float = 0.0
    process: Process | None = None
    is_opening: bool = False
    not_before: float = 0.0
    pause: float = PAUSE_SECONDS
    asked_at: float = 0.0
    unread: bytearray = field(default_factory=bytearray)
    unsent: bytes = b""
    # Of this connection. `has_rest`: the last turn did not read all; its descriptor need not be readable for that.
    has_rest: bool = False
    has_reported: bool = False
    has_complained: bool = False
    opened_at: float = 0.0
    counted: int = 0
    counted_at: float = 0.0


class Memberships:
    """The connections of one process. `open_agent` starts the agent in a pod and raises EngineRefused or
    EngineUnreachable; `on_change` is called after a worker has reported a new status."""

    def __init__(self, open_agent: Callable[[str], Process], on_change: Callable[[], None]) -> None:
        self._open_agent, self._on_change = open_agent, on_change
        self._lines: dict[str, _Line] = {}
        self._lock = threading.Lock()
        self._workers = _Workers()
        self._thread: threading.Thread | None = None
        self._far, self._near = socket.socketpair()
        self._near.setblocking(False)
        self._is_closed = False

    def exchange(self, pod_name: str, membership: str, *, is_running: bool) -> MemberReport:
        """See engines.base.MembershipEngine. Returns at once: what is sent arrives within milliseconds, and what the
        pod wrote is what its agent reported last."""
        now = time.monotonic()
        with self._lock:
            line = self._lines.setdefault(pod_name, _Line())
            line.asked_at = now
            # A caller without news asks with "": what was to be sent before is still to be sent.
            line.wanted = membership or line.wanted
            wants_open = is_running and line.process is None and not line.is_opening
            if wants_open and now >= line.not_before and not self._is_closed:
                line.is_opening = True
                self._start()
                self._workers.submit(lambda: self._open(pod_name, line), OPENING)
            is_behind = line.process is not None and line.wanted != line.sent
            report = MemberReport(line.text, line.age) if line.text else MemberReport()
        if is_behind:
            self._wake()
        return report

    def forget(self, pod_name: str) -> None:
        """Drop what is known of a pod that has ended."""
        with self._lock:
            line = self._lines.get(pod_name)
            if line is not None:
                line.asked_at = 0.0
        self._wake()

    def close(self) -> None:
        """Close all connections, at once. Returns after CLOSING_SECONDS at the latest; what ends later does so on
        daemon threads."""
        with self._lock:
            self._is_closed, lines = True, list(self._lines.values())
        self._wake()
        if self._thread is not None:
            self._thread.join()
        for line in lines:
            self._end(line)
        self._workers.wait_idle(CLOSING_SECONDS)
        self._far.close()
        self._near.close()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="membership", daemon=True)
            self._thread.start()

    def _open(self, pod_name: str, line: _Line) -> None:
        process = None
        try:
            if not self._is_closed:
                process = self._open_agent(pod_name)
        except (EngineRefused, EngineUnreachable) as error:
            logger.info("the membership of pod %s is not delivered yet: %s", pod_name, error)
        finally:
            with self._lock:
                # `close` has ended those that it found, and this one was not among them.
                late, process = (process, None) if self._is_closed else (None, process)
                line.process, line.is_opening = process, False
                line.sent, line.unsent = "", b""
                line.unread.clear()
                line.has_reported = line.has_complained = False
                line.counted, line.opened_at = 0, time.monotonic()
                line.not_before = line.opened_at + PAUSE_SECONDS
        if late is not None:
            late.close()
        self._wake()

    def _wake(self) -> None:
        try:
            self._far.send(b".", socket.MSG_DONTWAIT)
        except OSError:
            # Full: it is awake. Or closed.
            pass

    def _serve(self) -> None:
        """Read and write all connections, on a thread of its own."""
        while not self._is_closed:
            with selectors.DefaultSelector() as ready:
                ready.register(self._near, selectors.EVENT_READ)
                lines = self._open_lines()
                for line in lines:
                    assert line.process is not None
                    events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.unsent else 0)
                    ready.register(line.process.fileno(), events, line)
                rest = [line for line in lines if line.has_rest]
                found = {key.data for key, _ in ready.select(0 if rest else PAUSE_SECONDS)}
                if None in found:
                    # Any number of wake-ups is one.
                    self._near.recv(4096)
                for line in lines:
                    if line.has_rest or line in found:
                        self._turn(line)

    def _open_lines(self) -> list[_Line]:
        """Return the connections that are open, after those of forgotten pods were closed, with what they are to
        send."""
        now = time.monotonic()
        with self._lock:
            old = [name for name, line in self._lines.items() if now - line.asked_at > UNASKED_SECONDS]
            gone = [self._lines.pop(name) for name in old if not self._lines[name].is_opening]
            lines = [line for line in self._lines.values() if line.process is not None]
        for line in gone:
            self._end(line)
        for line in lines:
            if line.wanted != line.sent and not line.unsent:
                line.sent = line.wanted
                line.unsent = json.dumps(line.sent).encode() + b"\n"
                self._write(line)
        return [line for line in lines if line.process is not None]

    def _turn(self, line: _Line) -> None:
        self._write(line)
        line.has_rest = False
        try:
            for _ in range(READS_PER_TURN):
                if line.process is None or self._is_closed:
                    return
                output, data = line.process.read()
                if not data:
                    return
                if output == STDOUT:
                    self._take(line, data)
                else:
                    _log_once(line, data)
                if _is_flood(line, data):
                    line.has_reported = False
                    self._end(line)
                    return
            line.has_rest = True
        except (EOFError, OSError):
            self._end(line)

    def _write(self, line: _Line) -> None:
        if line.process is None or not line.unsent:
            return
        try:
            line.unsent = line.unsent[line.process.write(line.unsent) :]
        except OSError:
            self._end(line)

    def _take(self, line: _Line, data: bytes) -> None:
        *whole, rest = (bytes(line.unread) + data).split(b"\n")
        line.unread = bytearray(rest)
        for text in whole:
            try:
                said = json.loads(text)
                line.age = float(said["age"])
                line.has_reported = True
                if str(said.get("text", line.text)) != line.text:
                    line.text = str(said["text"])
                    self._on_change()
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                # The lines are the pod's user's to write: what is no report of the agent is passed over.
                continue

    def _end(self, line: _Line) -> None:
        process, line.process = line.process, None
        if process is None:
            return
        # Its age is not known while there is no connection, and a pod is not frozen for that.
        line.age, line.has_rest = 0.0, False
        now = time.monotonic()
        # A worker that imports for long has nothing to report yet, and something between us may cut the connection.
        is_useful = line.has_reported or now - line.opened_at > LONGEST_PAUSE_SECONDS
        line.pause = PAUSE_SECONDS if is_useful else min(2 * line.pause, LONGEST_PAUSE_SECONDS)
        line.not_before = now + line.pause
        # It may wait for the pod.
        self._workers.submit(process.close, CLOSING if self._is_closed else OPENING)


class _Workers:
    """Threads for calls that may wait for a pod. They end when there is nothing to do; daemons, since those of a lost
    API server must not hold up the end of the process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: deque[Callable[[], object]] = deque()
        self._running = 0

    def submit(self, call: Callable[[], object], most: int) -> None:
        """Make the call soon, beside at most `most` - 1 others."""
        with self._changed:
            self._calls.append(call)
            if self._running >= most:
                return
            self._running += 1
        threading.Thread(target=self._work, name="membership-worker", daemon=True).start()

    def wait_idle(self, timeout_seconds: float) -> None:
        """Return when all calls have ended, or after the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running, timeout_seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._calls:
                    self._running -= 1
                    self._changed.notify_all()
                    return
                call = self._calls.popleft()
            try:
                call()
            except Exception:
                logger.exception("a connection to an elastic pod could not be opened or closed")


def _log_once(line: _Line, data: bytes) -> None:
    if not line.has_complained:
        line.has_complained = True
        logger.info("the membership agent says: %s", data[:200].decode(errors="replace"))


def _is_flood(line: _Line, data: bytes) -> bool:
    """Count what was read; return whether it is more than an agent sends."""
    now = time.monotonic()
    if now - line.counted_at >= 1.0:
        line.counted, line.counted_at = 0, now
    line.counted += max(1, data.count(b"\n"), len(data) // (64 * 1024))
    return line.counted > MOST_LINES or len(line.unread) > LONGEST_LINE
