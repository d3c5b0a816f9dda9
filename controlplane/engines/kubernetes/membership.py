"""Exchange memberships with elastic pods, over one long-lived exec per pod.

The agent in the pod (member_agent.py) writes the membership file and reports the worker's status. What is lost with
a connection is sent again over the next one. Decision 54 has the measurements.
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

# How many connections are being opened at the same time, at most.
OPENING = 8
# How many connections are being closed at the same time, and how long `close` waits for them. Without an API server
# each takes as long as a connection time-out, and the engine with the next settings waits for this.
CLOSING, CLOSING_SECONDS = 200, 15.0
# The pause after a connection ended or could not be opened. It doubles, up to the longest, with each connection
# that soon ended without a report (an image without python3) or printed too much.
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
# A pod for which `exchange` was not called for this long is no longer part of an elastic job.
UNASKED_SECONDS = 120.0
# The longest line: a status has at most 64 KiB, and JSON escapes may take six times as much.
LONGEST_LINE = 512 * 1024
# How many reads from one pod are done before the next pod's turn.
READS_PER_TURN = 16
# The most lines per second from one pod, error output included; every 64 KiB count as one. The user controls the
# pod's python3, so its output must be limited.
MOST_LINES = 500


@dataclass(slots=True, eq=False)
class _Line:
    """The connection to one pod. `text`, `age`: its agent's last report, kept when the connection ends."""

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
    # State of the present connection. `has_rest`: the last turn left data unread, so the descriptor may not be
    # readable although there is more.
    has_rest: bool = False
    has_reported: bool = False
    has_complained: bool = False
    opened_at: float = 0.0
    counted: int = 0
    counted_at: float = 0.0


class Memberships:
    """The connections of one process to elastic pods. `open_agent` starts the agent in a pod and raises
    EngineRefused or EngineUnreachable; `on_change` is called after a worker has reported a new status."""

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
        """Pass a pod the membership ("" keeps the one passed before), and return the last report of the pod's
        agent. Returns at once; the membership arrives within milliseconds."""
        now = time.monotonic()
        with self._lock:
            line = self._lines.setdefault(pod_name, _Line())
            line.asked_at = now
            # With "" the membership passed before remains to be sent.
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
        """Stop asking a pod that has ended: its connection is closed as an unused one."""
        with self._lock:
            line = self._lines.get(pod_name)
            if line is not None:
                line.asked_at = 0.0
        self._wake()

    def close(self) -> None:
        """Close all connections. Returns after CLOSING_SECONDS at the latest; the remaining ones are closed on
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
                # `close` did not see this connection, which was still being opened.
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
            # If the buffer is full, the thread has been woken already; if the socket is closed, nothing is left to
            # wake.
            pass

    def _serve(self) -> None:
        """Read and write all connections; runs on a thread of its own."""
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
                    # One read consumes any number of wake-ups.
                    self._near.recv(4096)
                for line in lines:
                    if line.has_rest or line in found:
                        self._turn(line)

    def _open_lines(self) -> list[_Line]:
        """Close the connections of forgotten pods, write pending memberships, and return the connections that are
        open."""
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
                # The user controls the pod's output, so a line that is no report of the agent is skipped.
                continue

    def _end(self, line: _Line) -> None:
        process, line.process = line.process, None
        if process is None:
            return
        # Without a connection the age is unknown, which must not make the pod appear frozen.
        line.age, line.has_rest = 0.0, False
        now = time.monotonic()
        # A worker with long imports has nothing to report yet, and a proxy may cut the connection, so a long one
        # counts as useful.
        is_useful = line.has_reported or now - line.opened_at > LONGEST_PAUSE_SECONDS
        line.pause = PAUSE_SECONDS if is_useful else min(2 * line.pause, LONGEST_PAUSE_SECONDS)
        line.not_before = now + line.pause
        # On another thread, because closing may wait for the pod.
        self._workers.submit(process.close, CLOSING if self._is_closed else OPENING)


class _Workers:
    """Threads for calls that may block on a pod. They end when idle; daemon threads, so that a lost API server
    cannot delay the end of the process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: deque[Callable[[], object]] = deque()
        self._running = 0

    def submit(self, call: Callable[[], object], most: int) -> None:
        """Run the call soon, with at most `most` calls at the same time."""
        with self._changed:
            self._calls.append(call)
            if self._running >= most:
                return
            self._running += 1
        threading.Thread(target=self._work, name="membership-worker", daemon=True).start()

    def wait_idle(self, timeout_seconds: float) -> None:
        """Block until all calls have ended, at most for the timeout."""
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
    """Count what was read; return whether it is more than an agent would send."""
    now = time.monotonic()
    if now - line.counted_at >= 1.0:
        line.counted, line.counted_at = 0, now
    line.counted += max(1, data.count(b"\n"), len(data) // (64 * 1024))
    return line.counted > MOST_LINES or len(line.unread) > LONGEST_LINE
