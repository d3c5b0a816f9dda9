"""Exchange memberships with elastic pods, over one long-lived exec per pod.

The agent in the pod (member_agent.py) writes the membership file and reports the worker's status. What is lost with
a connection is sent again over the next one. Decision 54 has the measurements; a connection is one task on the event
loop of all streams to pods (decision 81).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from controlplane.engines.base import STDOUT, EngineRefused, EngineUnreachable, MemberReport, Process
from controlplane.kubernetes_api.channel_socket import STREAMS
from controlplane.kubernetes_api.event_loops import event_loop

logger = logging.getLogger(__name__)

# How many connections are being opened at the same time, at most, because each occupies a thread until it is open.
OPENING = 8
# How many connections are being closed at the same time, and how long `close` waits for them. Without an API server
# each takes as long as a connection time-out, and the engine with the next settings waits for this.
CLOSING, CLOSING_SECONDS = 200, 15.0
# The pause after a connection ended or could not be opened. It doubles, up to the longest, with each connection
# that soon ended without a report (an image without python3) or printed too much.
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
# A pod for which `exchange` was not called for this long is no longer part of an elastic job, so its connection is
# closed.
UNASKED_SECONDS = 120.0
# The longest line: a status has at most 64 KiB, and JSON escapes may take six times as much.
LONGEST_LINE = 512 * 1024
# How many reads from one pod are done before the next pod's turn, because all pods share one event loop.
READS_PER_TURN = 16
# The most lines per second from one pod, error output included; every 64 KiB count as one. The user controls the
# pod's python3, so its output must be limited.
MOST_LINES = 500

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class _Member:
    """What is known of one elastic pod. Callers' threads write `wanted` and `asked_at`, the event loop everything
    else. Times are of time.monotonic()."""

    wanted: str = ""
    asked_at: float = 0.0
    text: str = ""
    age: float = 0.0
    is_connected: bool = False
    is_over: bool = False
    not_before: float = 0.0
    pause: float = PAUSE_SECONDS
    # Set when the connection has something to read or to send, or must end.
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def seconds_left(self) -> float:
        """Return for how many seconds the pod still counts as part of an elastic job; 0 or less if it no longer
        does."""
        return 0.0 if self.is_over else self.asked_at + UNASKED_SECONDS - time.monotonic()

    def end(self) -> None:
        """Have the pod's connection closed."""
        self.is_over = True
        self.changed.set()


class Memberships:
    """The connections of this process to elastic pods. Thread-safe. `open_agent` starts the agent in a pod and raises
    EngineRefused or EngineUnreachable; `on_change` is called on the event loop after a worker reported a new status."""

    def __init__(self, open_agent: Callable[[str], Process], on_change: Callable[[], None]) -> None:
        self._open_agent, self._on_change = open_agent, on_change
        self._members: dict[str, _Member] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening, self._closing = asyncio.Semaphore(OPENING), asyncio.Semaphore(CLOSING)
        self._is_closed = False

    def exchange(self, pod_name: str, membership: str, *, is_running: bool) -> MemberReport:
        """Set a pod's membership, JSON text ("" keeps the last one), and return the last report of its agent, empty
        if there is none. Returns at once; the membership arrives within milliseconds if the pod is connected.
        `is_running`: connect to it if it is not."""
        member = self._members.setdefault(pod_name, _Member())
        member.asked_at = time.monotonic()
        is_new = membership not in ("", member.wanted)
        # With "" the membership passed before remains to be sent.
        member.wanted = membership or member.wanted
        if is_new or (is_running and not member.is_connected):
            self._call(self._tend, pod_name, member, is_running)
        return MemberReport(member.text, member.age) if member.text else MemberReport()

    def forget(self, pod_name: str) -> None:
        """Close the connection to a pod that has ended, and drop its report. Returns at once."""
        if pod_name in self._members:
            self._call(self._forget, pod_name)

    def close(self) -> None:
        """Close all connections. Blocks for CLOSING_SECONDS at most; the remaining ones are closed on daemon
        threads."""
        self._is_closed = True
        if self._members:
            asyncio.run_coroutine_threadsafe(self._end_all(), event_loop(STREAMS)).result()

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if not self._is_closed:
            event_loop(STREAMS).call_soon_threadsafe(function, *arguments)

    # The methods below run on the event loop.

    def _tend(self, pod_name: str, member: _Member, is_running: bool) -> None:
        """Connect to a running pod without a connection, unless its pause lasts; then have the membership sent."""
        is_due = is_running and not member.is_connected and time.monotonic() >= member.not_before
        # A member that was dropped meanwhile is a new one at the next exchange.
        if is_due and not self._is_closed and self._members.get(pod_name) is member:
            member.is_connected = True
            task = asyncio.create_task(self._connect(pod_name, member))
            self._tasks.add(task)
            task.add_done_callback(self._finish)
        member.changed.set()

    def _forget(self, pod_name: str) -> None:
        if member := self._members.pop(pod_name, None):
            member.end()

    async def _end_all(self) -> None:
        for member in list(self._members.values()):
            member.end()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSING_SECONDS)

    async def _connect(self, pod_name: str, member: _Member) -> None:
        """Connect to a pod's agent, serve the connection until it ends, and close it. A refusal is only logged."""
        connection: _Connection | None = None
        try:
            async with self._opening:
                if not member.is_over:
                    process = await _on_thread(lambda: self._open_agent(pod_name))
                    connection = _Connection(member, process, self._on_change)
            if connection is not None:
                await connection.serve()
        except (EngineRefused, EngineUnreachable) as error:
            logger.info("the membership of pod %s is not delivered yet: %s", pod_name, error)
        finally:
            self._pause(member, connection)
            if connection is not None:
                async with self._closing:
                    await _on_thread(connection.process.close)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if error := task.exception():
            logger.error("a connection to an elastic pod could not be opened or closed", exc_info=error)

    def _pause(self, member: _Member, connection: _Connection | None) -> None:
        """Set when to connect to the pod again, and drop pods that no longer count. `connection`: the one that has
        ended, None if none could be opened."""
        if connection is not None:
            longer = min(2 * member.pause, LONGEST_PAUSE_SECONDS)
            member.pause = PAUSE_SECONDS if connection.was_useful() else longer
        member.not_before = time.monotonic() + (PAUSE_SECONDS if connection is None else member.pause)
        # Without a connection the age is unknown, which must not make the pod appear frozen.
        member.age, member.is_connected = 0.0, False
        for name, other in list(self._members.items()):
            if not other.is_connected and other.seconds_left() <= 0:
                del self._members[name]


class _Connection:
    """One connection to the agent in a pod. Used on the event loop only."""

    def __init__(self, member: _Member, process: Process, on_change: Callable[[], None]) -> None:
        self.process, self._member, self._on_change = process, member, on_change
        self._opened_at = time.monotonic()
        self._sent, self._unsent, self._unread = "", b"", bytearray()
        self._has_reported = self._has_complained = False
        # How many lines were read since when.
        self._counted, self._counted_at = 0, 0.0

    async def serve(self) -> None:
        """Send memberships and take reports, until the connection ends or the pod no longer counts as part of an
        elastic job."""
        loop, descriptor, changed = asyncio.get_running_loop(), self.process.fileno(), self._member.changed
        loop.add_reader(descriptor, changed.set)
        try:
            while (seconds := self._member.seconds_left()) > 0:
                changed.clear()
                self._write()
                if self._unsent:
                    loop.add_writer(descriptor, changed.set)
                else:
                    loop.remove_writer(descriptor)
                if self._read():
                    # Other pods have their turn first. The descriptor may not be readable for what remains.
                    await asyncio.sleep(0)
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await changed.wait()
        except (EOFError, OSError):
            # The agent or the connection has ended.
            return
        finally:
            loop.remove_reader(descriptor)
            loop.remove_writer(descriptor)

    def was_useful(self) -> bool:
        """Return whether the connection brought a report or lasted long. A worker with long imports has nothing to
        report yet, and a proxy may cut the connection."""
        return self._has_reported or time.monotonic() - self._opened_at > LONGEST_PAUSE_SECONDS

    def _write(self) -> None:
        if self._member.wanted != self._sent and not self._unsent:
            self._sent = self._member.wanted
            self._unsent = json.dumps(self._sent).encode() + b"\n"
        if self._unsent:
            self._unsent = self._unsent[self.process.write(self._unsent) :]

    def _read(self) -> bool:
        """Read what the pod has printed; return whether there may be more. Raise EOFError or OSError at the end, and
        EOFError if the pod prints too much."""
        for _ in range(READS_PER_TURN):
            output, data = self.process.read()
            if not data:
                return False
            if output == STDOUT:
                self._take(data)
            elif not self._has_complained:
                self._has_complained = True
                logger.info("the membership agent says: %s", data[:200].decode(errors="replace"))
            if self._is_flood(data):
                self._has_reported = False
                raise EOFError
        return True

    def _take(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            try:
                said = json.loads(line)
                self._member.age = float(said["age"])
                self._has_reported = True
                if str(said.get("text", self._member.text)) != self._member.text:
                    self._member.text = str(said["text"])
                    self._on_change()
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                # The user controls the pod's output, so a line that is no report of the agent is skipped.
                continue

    def _is_flood(self, data: bytes) -> bool:
        """Count what was read; return whether it is more than an agent sends."""
        now = time.monotonic()
        if now - self._counted_at >= 1.0:
            self._counted, self._counted_at = 0, now
        self._counted += max(1, data.count(b"\n"), len(data) // (64 * 1024))
        return self._counted > MOST_LINES or len(self._unread) > LONGEST_LINE


async def _on_thread(call: Callable[[], Result]) -> Result:
    """Return the result of a blocking call, run on a daemon thread, so that an API server that does not answer cannot
    delay the end of the process."""
    result = concurrent.futures.Future[Result]()

    def run() -> None:
        try:
            result.set_result(call())
        except Exception as error:  # noqa: BLE001  the caller gets whatever it is
            result.set_exception(error)

    threading.Thread(target=run, name="membership-worker", daemon=True).start()
    return await asyncio.wrap_future(result)
