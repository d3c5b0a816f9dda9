"""Copy pods' logs from the API server into the log store, many at once, on one thread.

The only state is what the store contains of a log: after any interruption, even a restart of this process, a stream
is requested again from the last stored line, and lines that are stored already are skipped. Output that the node no
longer has (it keeps the newest file of about 10 MiB) is a gap; so is output that may have been lost when the node
began a new file. The API merges stdout and stderr, so all lines are stored as stdout.

A log is complete when its pod has ended, everything that the node still has was read, and the end record was
written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

import aiohttp

from controlplane.engines.base import EngineUnreachable
from controlplane.engines.kubernetes import log_streams
from controlplane.engines.kubernetes.log_copy import (
    FIRST_PAUSE_SECONDS,
    PASSING,
    LogCopy,
    LogSource,
    WantedLog,
)
from controlplane.engines.kubernetes.log_streams import LogNotThere, LogStreams, is_removed
from controlplane.engines.kubernetes.sanitize import line
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.errors import ApiError
from controlplane.logstore.reader import tail
from controlplane.logstore.writer import LogWriter

log = logging.getLogger(__name__)

# The largest size of one log. Beyond it, only the last lines of the output are added when the pod has ended.
MOST_BYTES = 1 << 30
# The shortest time that a stream is kept open while other logs wait for one.
SLICE_SECONDS = 2.0
# How long reading an ended pod's log is retried.
DRAIN_SECONDS = 60.0
# How long it is retried if the API server reports that the log does not exist.
MISSING_SECONDS = 2.0
# How long it is retried if the node reports that the log's file does not exist.
AWAY_SECONDS = 10.0
MOST_PAUSE_SECONDS = 30.0
# The interval of checks on a pod that has not started or does not exist, without a notification.
WAITING_SECONDS = 10.0
# The interval of checks whether pods with open streams have ended, and how long the server then has to close them.
CHECK_SECONDS = 5.0


class LogCopier:
    """Copies the wanted logs of one cluster. `look` returns, without a request, where the log of the pod with a
    name is; None if there is no such pod.

    Thread-safe. The thread starts with the first wanted log; each log is a task on it.
    """

    def __init__(
        self,
        client: Client,
        look: Callable[[str], LogSource | None],
        *,
        most_bytes: int = MOST_BYTES,
        most_streams: int | None = None,
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        self._client, self._look = client, look
        self._most_bytes, self._drain_seconds = most_bytes, drain_seconds
        most = most_streams or log_streams.most_streams()
        # A part of the streams is reserved for ended pods: they wait to be deleted, and their logs are read
        # quickly.
        last = max(1, most // 8)
        self._most_living = max(1, most - last)
        self._turns, self._last_turns = asyncio.Semaphore(self._most_living), asyncio.Semaphore(last)
        # By log of a running pod with a stream: when the stream was opened, oldest first. Excludes streams that
        # were asked to end.
        self._streaming: dict[WantedLog, float] = {}
        # How many logs of running pods wait for a stream.
        self._waiting = 0
        self._logs: dict[str, WantedLog] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._drained = threading.Condition()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: LogStreams | None = None
        self._closing = asyncio.Event()
        self._is_closed = False

    def want(self, paths: Mapping[str, str]) -> None:
        """Keep these logs (pod name -> file) up to date, and no others. Returns at once."""
        if paths or self._thread is not None:
            self._call(self._take_wanted, dict(paths))

    def notice(self, changed: Iterable[str] = ()) -> None:
        """Report that these pods have changed. Cheap; has no effect before the first `want`."""
        if self._thread is not None:
            self._call(self._note, frozenset(changed))

    def wait_drained(self, pod_name: str, timeout_seconds: float) -> bool:
        """Block until the pod's log is complete. Return False after the timeout, or if the log is not wanted."""
        self.notice((pod_name,))
        with self._drained:
            return self._drained.wait_for(lambda: self._is_drained(pod_name), timeout_seconds)

    def is_wanted(self, pod_name: str) -> bool:
        return pod_name in self._logs

    def close(self) -> None:
        """End the thread and its streams. The logs stay as they are."""
        with self._starting:
            self._is_closed = True
        if self._thread is not None and self._loop is not None:
            # The thread may have ended by itself.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(10)

    def _is_drained(self, pod_name: str) -> bool:
        entry = self._logs.get(pod_name)
        return entry is not None and entry.is_drained

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with self._starting:
            if self._is_closed:
                return
            if self._loop is None:
                self._loop = self._start()
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The thread has ended; the caller, who only reports a change, must not get an exception.
            if not self._is_closed:
                log.exception("logs are not copied any more: the thread has ended")
                self._is_closed = True

    def _start(self) -> asyncio.AbstractEventLoop:
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

        def run() -> None:
            with runner:
                runner.run(self._run())

        self._thread = threading.Thread(target=run, name="pod-logs", daemon=True)
        loop = runner.get_loop()
        self._thread.start()
        return loop

    # The methods below run on the thread.

    async def _run(self) -> None:
        # The number of streams is limited by `_turn`; the library's own limit of 100 would keep the other logs
        # waiting.
        connector = aiohttp.TCPConnector(limit=0)
        # No time limit, because streams last as long as their pods.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False
        ) as session:
            self._streams = LogStreams(self._client, session)
            ends = asyncio.create_task(self._watch_ends())
            await self._closing.wait()
            running = [ends, *self._tasks.values()]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _take_wanted(self, paths: dict[str, str]) -> None:
        for name in self._logs.keys() - paths.keys():
            del self._logs[name]
            self._tasks.pop(name).cancel()
        for name in paths.keys() - self._logs.keys():
            entry = self._logs[name] = WantedLog(name, paths[name])
            self._tasks[name] = asyncio.create_task(self._keep(entry))

    def _note(self, changed: frozenset[str]) -> None:
        for name in self._logs.keys() & changed:
            self._logs[name].changed.set()

    async def _watch_ends(self) -> None:
        """Every CHECK_SECONDS, look for ended pods among the open streams, and limit how long such a stream stays
        open. A lost node ends its pods without a watch event for them."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            for entry in self._logs.values():
                if entry.limit is not None:
                    self._look_quietly(entry)

    async def _keep(self, entry: WantedLog) -> None:
        """Copy one log until its end is written."""
        while not entry.is_drained:
            try:
                await self._try(entry, await self._wait_source(entry))
                entry.problem = ""
            except PASSING as error:
                if entry.is_news(problem := _words(error)):
                    log.info("log of %s: %s", entry.name, problem)
            except Exception as error:
                # Any error may be gone at the next try, and must not affect other logs.
                if entry.is_news(type(error).__name__):
                    log.exception("the log of %s cannot be copied", entry.name)
            if not entry.is_drained:
                await self._pause(entry)
        with self._drained:
            self._drained.notify_all()

    async def _wait_source(self, entry: WantedLog) -> LogSource | None:
        """Wait until there is something to read, and return its source. Return None if a pod that existed is gone;
        one that never existed may still appear."""
        while True:
            source = self._look_at(entry)
            if source is None and entry.has_begun():
                return None
            entry.was_seen = source is not None
            if source is not None and (source.has_started or source.end_word):
                return source
            await entry.has_changed(WAITING_SECONDS)

    def _look_at(self, entry: WantedLog) -> LogSource | None:
        source = self._look(entry.name)
        if source is not None and source.end_word and entry.ended_at is None:
            entry.ended_at, entry.pause_seconds = time.monotonic(), FIRST_PAUSE_SECONDS
            entry.leave(CHECK_SECONDS)
        return source

    def _look_quietly(self, entry: WantedLog) -> None:
        # The exception is reported when the pod's log is tried next.
        with contextlib.suppress(Exception):
            self._look_at(entry)

    async def _try(self, entry: WantedLog, source: LogSource | None) -> None:
        """Read one stream of a log until it ends or breaks; close the log if its rest cannot be read."""
        if source is None:
            words = "the pod was removed before the end of its output was read"
            return self._end(entry, words, "pod_deleted None")
        try:
            async with self._last_turn(entry) if source.end_word else self._turn(entry):
                assert self._streams is not None
                with contextlib.closing(LogWriter(entry.path)) as writer:
                    await LogCopy(entry, source, self._streams, writer, self._most_bytes).run()
        except Exception as error:
            if not source.end_word or not self._is_hopeless(entry, error):
                raise
            self._end(entry, f"the end of the output could not be read: {_words(error)}", source.end_word)

    @contextlib.asynccontextmanager
    async def _turn(self, entry: WantedLog) -> AsyncIterator[None]:
        """Context manager that waits for a stream of a running pod and holds it."""
        self._waiting += 1
        try:
            self._make_room()
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            entry.leave_at = None
            self._streaming[entry] = time.monotonic()
            # Others may have found no stream that they could ask to end.
            self._make_room()
            yield
        finally:
            self._streaming.pop(entry, None)
            self._turns.release()

    def _make_room(self) -> None:
        """Ask the oldest streams to end, so many that all waiting logs get one. They are resumed exactly, so nothing
        is lost."""
        while self._streaming and len(self._streaming) + self._waiting > self._most_living:
            oldest = next(iter(self._streaming))
            oldest.leave(self._streaming.pop(oldest) + SLICE_SECONDS - time.monotonic())

    @contextlib.asynccontextmanager
    async def _last_turn(self, entry: WantedLog) -> AsyncIterator[None]:
        """Context manager that waits for a stream of an ended pod and holds it."""
        began = time.monotonic()
        async with self._last_turns:
            entry.leave_at = None
            if entry.ended_at is not None:
                # Nothing could be tried in this time, so it does not count.
                entry.ended_at += time.monotonic() - began
            yield

    def _is_hopeless(self, entry: WantedLog, error: Exception) -> bool:
        """Return whether the rest of an ended pod's output can no longer be read."""
        now = time.monotonic()
        if entry.ended_at is None or isinstance(error, (aiohttp.ClientConnectionError, EngineUnreachable)):
            # Time in which the API server is unreachable does not count.
            entry.ended_at = now
        return now - entry.ended_at > self._retry_seconds_after(error)

    def _retry_seconds_after(self, error: Exception) -> float:
        if isinstance(error, LogNotThere) and not is_removed(str(error)):
            return AWAY_SECONDS
        # 400: the container does not exist, not yet or no longer.
        is_missing = isinstance(error, ApiError) and error.status in (400, 404)
        return MISSING_SECONDS if is_missing or isinstance(error, LogNotThere) else self._drain_seconds

    async def _pause(self, entry: WantedLog) -> None:
        """Wait before the next try, longer after each try without new output. Ends early when the pod ends."""
        until = time.monotonic() + entry.pause_seconds * random.uniform(0.5, 1.0)
        entry.pause_seconds = min(MOST_PAUSE_SECONDS, entry.pause_seconds * 2)
        ended_at = entry.ended_at
        while entry.ended_at == ended_at and await entry.has_changed(until - time.monotonic()):
            self._look_quietly(entry)

    def _end(self, entry: WantedLog, gap: str, end_word: str) -> None:
        """Close a log whose rest cannot be read, with a gap and an end record. Raise OSError on a full disk; then
        it is retried."""
        with contextlib.closing(LogWriter(entry.path)) as writer:
            if not tail(entry.path, 1).complete:
                writer.gap(gap)
                writer.end(end_word)
        entry.is_drained = True


def _words(error: Exception) -> str:
    return line(error) or type(error).__name__
