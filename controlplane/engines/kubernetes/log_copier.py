"""Copy pods' logs from the API server into the log store, many at once, on one thread.

The only state is what the store has of a log: after any break, also of this process, a stream is requested
again from the last stored line, and known lines are skipped. Output that the node no longer has (it keeps the
newest file of about 10 MiB) is a gap; so is output that it may have lost when it began a new file. The API
merges stdout and stderr: all lines are kept as stdout.

A log is complete when its pod has ended, all that the node still has was read, and the end was written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping

import aiohttp

from controlplane.engines.base import EngineUnreachable
from controlplane.engines.kubernetes import log_streams
from controlplane.engines.kubernetes.log_copy import PASSING, LogCopy
from controlplane.engines.kubernetes.log_streams import LogNotThere, LogStreams, StreamRefused, is_removed
from controlplane.engines.kubernetes.log_target import FIRST_PAUSE_SECONDS, LogSource, WantedLog
from controlplane.kubernetes_api.client import Client
from controlplane.logstore.reader import tail
from controlplane.logstore.writer import LogWriter

log = logging.getLogger(__name__)

# Of one log; beyond it only the last lines are kept, when the pod has ended.
MOST_BYTES = 1 << 30
# How long a stream is kept at least while others wait for their turn.
SLICE_SECONDS = 2.0
# How long an ended pod's log is tried for.
DRAIN_SECONDS = 60.0
# The same where the API server says that there is none.
MISSING_SECONDS = 2.0
# And where the node says so of its file.
AWAY_SECONDS = 10.0
MOST_PAUSE_SECONDS = 30.0
# Changes come in bursts.
GATHER_SECONDS = 0.02
# Between looks at a pod that has not started, or is not there, and is not heard of.
WAITING_SECONDS = 10.0
# Streams opened in one go.
MOST_AT_ONCE = 100
CHECK_SECONDS = 5.0
TICK_SECONDS = 0.5


class LogCopier:
    """See the module's docstring. `look` returns from memory where a pod's log is, None for an absent pod.

    Thread-safe. The thread starts with the first wanted log.
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
        self._most_bytes = most_bytes
        self._most_streams = most_streams or log_streams.most_streams()
        self._drain_seconds = drain_seconds
        self._checked_at = 0.0
        self._logs: dict[str, WantedLog] = {}
        self._drained = threading.Condition()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bell: asyncio.Event | None = None
        self._streams: LogStreams | None = None
        self._is_closed = False

    def want(self, paths: Mapping[str, str]) -> None:
        """Keep these logs (pod name -> file) up to date, and no others. Returns at once."""
        if paths or self._thread is not None:
            self._call(self._take_wanted, dict(paths))

    def notice(self, changed: Iterable[str] = ()) -> None:
        """Note that these pods have changed. Cheap; harmless before the first `want`."""
        if self._thread:
            self._call(self._note, changed)

    def wait_drained(self, pod_name: str, timeout_seconds: float) -> bool:
        """Block until the pod's log has its end; False after the timeout, or if the log is not wanted."""
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
            self._loop.call_soon_threadsafe(self._ring)
            self._thread.join(10)

    # From here on: on the thread.

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with self._starting:
            if self._is_closed:
                return
            if self._thread is None:
                self._start()
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The thread is gone: who tells us of a change must not suffer for it.
            if not self._is_closed:
                log.exception("logs are not copied any more: the thread has ended")
                self._is_closed = True

    def _start(self) -> None:
        is_ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(is_ready)), name="pod-logs", daemon=True
        )
        self._thread.start()
        is_ready.wait()

    async def _run(self, is_ready: threading.Event) -> None:
        self._loop, self._bell = asyncio.get_running_loop(), asyncio.Event()
        # Streams last as long as their pods.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        # The number of streams is limited here, by most_streams: the library's own limit of 100 would let the others
        # wait.
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False
        ) as session:
            self._streams = LogStreams(self._client, session)
            is_ready.set()
            while not self._is_closed:
                try:
                    self._serve()
                except Exception:
                    # Whatever it is, the logs of a whole cluster hang on this thread.
                    log.exception("a round of copying logs failed")
                    await asyncio.sleep(TICK_SECONDS)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._bell.wait(), TICK_SECONDS)
                await asyncio.sleep(GATHER_SECONDS)
                self._bell.clear()
            await _cancel(entry.task for entry in self._logs.values())

    def _ring(self) -> None:
        assert self._bell is not None
        self._bell.set()

    def _note(self, changed: Iterable[str]) -> None:
        for name in self._logs.keys() & set(changed):
            self._logs[name].look_at = 0.0
        self._ring()

    def _take_wanted(self, paths: dict[str, str]) -> None:
        for name in self._logs.keys() - paths.keys():
            task = self._logs.pop(name).task
            if task is not None:
                task.cancel()
        for name, path in paths.items():
            if name not in self._logs:
                self._logs[name] = WantedLog(name, path)
        self._ring()

    def _is_drained(self, pod_name: str) -> bool:
        entry = self._logs.get(pod_name)
        return entry is not None and entry.is_drained

    def _serve(self) -> None:
        """Open streams for the logs that need one: ended pods first, then the least recently served."""
        now = time.monotonic()
        if now - self._checked_at >= CHECK_SECONDS:
            self._checked_at = now
            self._end_stuck(now)
        waiting = [
            (not source.end_word, entry.opened_at, entry.name, entry, source)
            for entry in self._logs.values()
            if (source := self._source_if_due(entry, now)) is not None
        ]
        streaming = [entry for entry in self._logs.values() if entry.task is not None]
        room = self._most_streams - len(streaming)
        first = sorted(waiting, key=lambda item: item[:3])[: max(0, min(room, MOST_AT_ONCE))]
        for _, _, _, entry, source in first:
            entry.note_asked(source)
            entry.task = asyncio.ensure_future(self._copy(entry, source))
        if len(first) == MOST_AT_ONCE:
            self._ring()
        self._make_room(streaming, len(waiting) - max(0, room), now)

    def _end_stuck(self, now: float) -> None:
        """Cancel streams that the server should have closed: their pods ended a while ago."""
        for entry in self._logs.values():
            source = self._source_of(entry) if entry.task is not None else None
            if source is None or entry.task is None or not source.end_word:
                continue
            if entry.ended_at is None:
                entry.ended_at = now
            elif entry.opened_at < entry.ended_at < now - CHECK_SECONDS:
                entry.task.cancel()

    def _make_room(self, streaming: list[WantedLog], wanted: int, now: float) -> None:
        """End the oldest streams in favour of waiting logs. Resuming is exact, so nothing is lost."""
        for entry in sorted(streaming, key=lambda entry: entry.opened_at)[: max(0, wanted)]:
            if now - entry.opened_at >= SLICE_SECONDS and entry.task is not None:
                entry.note_left()
                entry.task.cancel()

    def _source_if_due(self, entry: WantedLog, now: float) -> LogSource | None:
        """Return where the log is, if a stream of it is to be opened now."""
        if entry.is_drained or entry.task is not None or now < entry.look_at:
            return None
        if now < entry.retry_at and entry.is_odd:
            return None
        source = self._source_of(entry)
        if source is None:
            if now >= entry.retry_at and not entry.is_odd:
                entry.look_at = now + WAITING_SECONDS
                self._settle_missing(entry)
            return None
        entry.was_seen = True
        if source.end_word and not entry.is_end_known:
            entry.is_end_known, entry.retry_at, entry.pause_seconds = True, 0.0, FIRST_PAUSE_SECONDS
            entry.ended_at = entry.ended_at or now
        if not source.has_started and not source.end_word:
            entry.look_at = now + WAITING_SECONDS
            return None
        return source if now >= entry.retry_at else None

    def _source_of(self, entry: WantedLog) -> LogSource | None:
        """Return where the log is. A pod that cannot be read is left alone for a while: others' logs go on."""
        try:
            source, was_odd = self._look(entry.name), entry.is_odd
        except Exception:
            if not entry.is_odd:
                log.exception("the pod of the log of %s cannot be read", entry.name)
            entry.is_odd = True
            self._pause(entry)
            return None
        if was_odd:
            entry.is_odd, entry.retry_at, entry.pause_seconds = False, 0.0, FIRST_PAUSE_SECONDS
        return source

    def _settle_missing(self, entry: WantedLog) -> None:
        """End the log of an absent pod that existed before; one that never did may still come."""
        if entry.was_seen or os.path.exists(entry.path):
            self._end(entry, "the pod was removed before the end of its output was read", "pod_deleted None")

    async def _copy(self, entry: WantedLog, source: LogSource) -> None:
        """Read one stream of a log, to its end or its break."""
        assert self._streams is not None
        try:
            with contextlib.closing(LogWriter(entry.path)) as writer:
                await LogCopy(entry, source, self._streams, writer, self._most_bytes).run()
            entry.problem = ""
            if entry.is_drained:
                self._note_end(entry)
        except PASSING as error:
            if entry.problem != (problem := str(error) or type(error).__name__):
                log.info("log of %s: %s", entry.name, problem)
            entry.problem, entry.patience_seconds = problem, self._patience_with(error)
            self._take_break(entry, error)
        except Exception as error:
            if entry.problem != (problem := type(error).__name__):
                log.exception("log of %s", entry.name)
            entry.problem, entry.patience_seconds = problem, self._drain_seconds
        finally:
            entry.task = None
            self._ring()
        self._pause(entry)
        if source.end_word and not entry.is_drained and self._is_hopeless(entry):
            self._end(entry, f"the end of the output could not be read: {entry.problem}", source.end_word)

    def _is_hopeless(self, entry: WantedLog) -> bool:
        """Return whether the rest of an ended pod's output will not be read."""
        return entry.ended_at is not None and time.monotonic() - entry.ended_at > entry.patience_seconds

    def _take_break(self, entry: WantedLog, error: Exception) -> None:
        # A time-out of ours has no errno: the store is as we left it.
        is_silence = isinstance(error, TimeoutError) and error.errno is None
        if isinstance(error, OSError) and not is_silence and not isinstance(error, aiohttp.ClientError):
            # what the disk did not take is asked for again, from where the store ends
            entry.size = -1
        if (
            isinstance(error, (aiohttp.ClientConnectionError, EngineUnreachable))
            and entry.ended_at is not None
        ):
            # while the API server cannot be reached, the log's patience does not run out
            entry.ended_at = time.monotonic()

    def _patience_with(self, error: Exception) -> float:
        if isinstance(error, StreamRefused) and error.is_missing:
            return MISSING_SECONDS
        if isinstance(error, LogNotThere):
            return MISSING_SECONDS if is_removed(str(error)) else AWAY_SECONDS
        return self._drain_seconds

    def _pause(self, entry: WantedLog) -> None:
        entry.retry_at = time.monotonic() + entry.pause_seconds * random.uniform(0.5, 1.0)
        entry.pause_seconds = min(MOST_PAUSE_SECONDS, entry.pause_seconds * 2)

    def _end(self, entry: WantedLog, gap: str, end_word: str) -> None:
        """Close a log that cannot be read to its end. While the disk is full it is tried again."""
        try:
            with contextlib.closing(LogWriter(entry.path)) as writer:
                if not tail(entry.path, 1).complete:
                    writer.gap(gap)
                    writer.end(end_word)
        except OSError as error:
            log.warning("the end of the log of %s could not be written: %s", entry.name, error)
            self._pause(entry)
            return
        self._note_end(entry)

    def _note_end(self, entry: WantedLog) -> None:
        with self._drained:
            entry.is_drained = True
            self._drained.notify_all()


async def _cancel(tasks: Iterable[asyncio.Task[None] | None]) -> None:
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
