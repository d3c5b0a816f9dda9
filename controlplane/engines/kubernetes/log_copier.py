"""Copy pods' logs from the API server into the log store, many at once, on one event loop.

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
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from controlplane.engines.base import EngineUnreachable
from controlplane.engines.kubernetes import log_streams
from controlplane.engines.kubernetes.log_copy import PASSING, PAUSE_SECONDS, LogCopy, LogSource
from controlplane.engines.kubernetes.log_streams import LogNotThere, LogStreams, is_removed
from controlplane.engines.kubernetes.sanitize import line
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.errors import ApiError
from controlplane.kubernetes_api.event_loops import event_loop
from controlplane.logstore.reader import tail

log = logging.getLogger(__name__)

LOOP = "pod logs"
# How long reading an ended pod's log is retried. Bounded, because the pod is kept until its log is read.
DRAIN_SECONDS = 60.0
# Shorter if the API server reports that the log does not exist, because the container may never have been created.
MISSING_SECONDS = 2.0
# How long it is retried if the node reports that the log's file does not exist.
AWAY_SECONDS = 10.0
MOST_PAUSE_SECONDS = 30.0
# The interval of checks on a pod that has not started or does not exist. Changes notify, so a check only finds a missed
# one.
WAITING_SECONDS = 10.0
# The interval of checks on open streams, and the shortest time for which one is kept open while other logs wait.
CHECK_SECONDS = 2.0
# How long the server has to close the stream of an ended pod. Kubelets check every 5 s whether a container has ended.
END_SECONDS = 5.0
CLOSING_SECONDS = 10.0
# How long a call waits for the end of a log; after that the command is refused and retried.
DRAINED_SECONDS = 0.5
# How long to wait for a process that has begun to copy a log and does not finish; then the log counts as read, so that
# the pod can be removed.
LOG_SECONDS = 600.0
# How long to wait for a process that begins to copy a log. The loop lists the logs every second or two, later on a busy
# machine, and a short pod may end before.
BEGINNING_SECONDS = 15.0


@dataclass(slots=True, eq=False)
class _WantedLog:
    """One log to be copied. Times are of time.monotonic()."""

    name: str
    copy: LogCopy
    # Set when its pod has changed.
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    # Whether the pod, or a file with its log, ever existed.
    has_begun: bool = False
    # Since when reading the rest of an ended pod's log was possible: the retries are limited from then on.
    ended_at: float | None = None
    # Why the last try failed, so that each problem is logged once.
    problem: str = ""

    async def wait(self, seconds: float) -> None:
        """Wait until the pod changes, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        self.changed.clear()

    async def pause(self) -> None:
        """Wait before the next try; twice as long after each try without new output. A change of the pod ends the
        wait."""
        # Random, so that logs that failed together are not all tried together.
        seconds = self.copy.pause_seconds * random.uniform(0.5, 1.0)
        self.copy.pause_seconds = min(MOST_PAUSE_SECONDS, self.copy.pause_seconds * 2)
        await self.wait(seconds)


class LogCopier:
    """Copies the wanted logs of one cluster, each by a task on the event loop. Thread-safe. `look` returns, without a
    request, where a pod's log is; None if there is no such pod. `clock` returns monotonic seconds, by which `is_read`
    gives up."""

    def __init__(
        self,
        client: Client,
        look: Callable[[str], LogSource | None],
        *,
        most_streams: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._look, self._clock = client, look, clock
        most = most_streams or log_streams.most_streams()
        # A part of the streams is reserved for ended pods: they wait to be deleted, and their logs are read
        # quickly.
        last = max(1, most // 8)
        self._turns, self._last_turns = asyncio.Semaphore(max(1, most - last)), asyncio.Semaphore(last)
        # The logs of running pods with an open stream, by what ends it, oldest first, because the oldest make room for
        # others.
        self._streaming: dict[asyncio.Timeout, _WantedLog] = {}
        # How many logs of running pods wait for a stream.
        self._waiting = 0
        self._logs: dict[str, _WantedLog] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._drained = threading.Condition()
        # Since when `is_read` waits for another process to copy a pod's log.
        self._awaited: dict[str, float] = {}
        self._streams: LogStreams | None = None
        self._checks: asyncio.Task[None] | None = None
        self._is_used = self._is_closed = False

    def want(self, paths: Mapping[str, str]) -> None:
        """Copy the logs of exactly these pods from now on. `paths`: pod name -> file of the log store. Returns at
        once."""
        self._is_used = self._is_used or bool(paths)
        self._call(self._take_wanted, dict(paths))

    def notice(self, changed: Iterable[str]) -> None:
        """Report that these pods have changed, so that their logs are read now. Returns at once; no effect before the
        first `want`."""
        if names := frozenset(changed):
            self._call(self._note, names)

    def wait_drained(self, pod_name: str, timeout_seconds: float) -> bool:
        """Block until the pod's log is complete, and return True; False after the timeout, or if the log is not
        wanted."""
        self.notice((pod_name,))

        def is_drained() -> bool:
            wanted = self._logs.get(pod_name)
            return wanted is not None and wanted.copy.is_drained

        with self._drained:
            return self._drained.wait_for(is_drained, timeout_seconds)

    def is_wanted(self, pod_name: str) -> bool:
        return pod_name in self._logs

    def is_read(self, pod_name: str, path: Path, *, has_begun: bool) -> bool:
        """Return whether the log at `path` of an ended pod is complete; until then the pod must not be deleted.
        `has_begun`: its container once ran.

        Another process may write the log. One that no process begins within BEGINNING_SECONDS, or that stays
        incomplete for LOG_SECONDS, counts as read.
        """
        if self.is_wanted(pod_name):
            return self.wait_drained(pod_name, DRAINED_SECONDS)
        with self._drained:
            waited_seconds = self._clock() - self._awaited.setdefault(pod_name, self._clock())
        if not path.exists():
            return not has_begun or waited_seconds > BEGINNING_SECONDS
        return tail(path, 1).complete or waited_seconds > LOG_SECONDS

    def forget(self, pod_name: str) -> None:
        """Forget how long `is_read` has waited for this pod's log, after the pod was removed."""
        with self._drained:
            self._awaited.pop(pod_name, None)

    def close(self) -> None:
        """End the copying; blocks for at most CLOSING_SECONDS. What was copied stays."""
        self._is_closed = True
        if self._is_used:
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._end(), event_loop(LOOP)).result(CLOSING_SECONDS)

    def _call(self, function: Callable[..., None], argument: object) -> None:
        if self._is_used and not self._is_closed:
            event_loop(LOOP).call_soon_threadsafe(function, argument)

    # The methods below run on the event loop.

    def _take_wanted(self, paths: dict[str, str]) -> None:
        if self._is_closed:
            return
        if self._streams is None:
            self._streams = LogStreams(self._client)
            self._checks = asyncio.create_task(self._check_streams())
        for name in self._logs.keys() - paths.keys():
            del self._logs[name]
            self._tasks.pop(name).cancel()
        for name in paths.keys() - self._logs.keys():
            wanted = self._logs[name] = _WantedLog(name, LogCopy(paths[name]))
            self._tasks[name] = asyncio.create_task(self._keep(wanted))

    def _note(self, changed: frozenset[str]) -> None:
        for name in self._logs.keys() & changed:
            self._logs[name].changed.set()

    async def _end(self) -> None:
        if self._streams is not None and self._checks is not None:
            tasks = [self._checks, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._streams.close()

    async def _keep(self, wanted: _WantedLog) -> None:
        """Copy one log until its end record is written; errors are logged and retried."""
        while not wanted.copy.is_drained:
            try:
                await self._try(wanted, await self._wait_source(wanted))
                wanted.problem = ""
            except Exception as error:
                # Any error may be gone at the next try, and must not affect other logs.
                is_passing = isinstance(error, PASSING)
                known, wanted.problem = wanted.problem, _words(error)
                # Each problem is logged once.
                if wanted.problem != known:
                    level, trace = (logging.INFO, None) if is_passing else (logging.ERROR, error)
                    words = f"the log of {wanted.name} cannot be copied: {wanted.problem}"
                    log.log(level, "%s", words, exc_info=trace)
            if not wanted.copy.is_drained:
                await wanted.pause()
        with self._drained:
            self._drained.notify_all()

    async def _wait_source(self, wanted: _WantedLog) -> LogSource | None:
        """Wait until there is something to read, and return where. None if a pod that existed is gone; one that never
        existed may still appear."""
        while True:
            source = self._look_at(wanted)
            if source is None and wanted.has_begun:
                return None
            if source is not None and (source.has_started or source.end_word):
                return source
            await wanted.wait(WAITING_SECONDS)

    def _look_at(self, wanted: _WantedLog) -> LogSource | None:
        source = self._look(wanted.name)
        wanted.has_begun = wanted.has_begun or source is not None or os.path.exists(wanted.copy.path)
        if source is not None and source.end_word and wanted.ended_at is None:
            wanted.ended_at, wanted.copy.pause_seconds = time.monotonic(), PAUSE_SECONDS
        elif source is not None and not source.end_word:
            # The pod runs, also one that counted as dead until its node came back.
            wanted.ended_at = None
        return source

    async def _try(self, wanted: _WantedLog, source: LogSource | None) -> None:
        """Read one log until its stream ends. If its rest can no longer be read, close it with a gap record. Raise
        the stream's error if a retry may help."""
        if source is None:
            words = "the pod was removed before the end of its output was read"
            return wanted.copy.give_up(words, "pod_deleted None")
        try:
            async with self._last_turn(wanted) if source.end_word else self._turn(wanted):
                assert self._streams is not None
                await wanted.copy.read(source, self._streams)
        except Exception as error:
            if not source.end_word or not self._is_hopeless(wanted, error):
                raise
            words = f"the end of the output could not be read: {_words(error)}"
            wanted.copy.give_up(words, source.end_word)

    @contextlib.asynccontextmanager
    async def _turn(self, wanted: _WantedLog) -> AsyncIterator[None]:
        """Context manager that waits until a stream for a running pod may be opened, and then allows it.
        `_check_streams` ends it when other logs wait."""
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._streaming[limit] = wanted
                yield
        except TimeoutError:
            if not limit.expired():
                # A time-out of the stream itself, not the end of its turn.
                raise
            # The stream ended without a fault, so the next turn needs no back-off.
            wanted.copy.pause_seconds = PAUSE_SECONDS
        finally:
            self._streaming.pop(limit, None)
            self._turns.release()

    @contextlib.asynccontextmanager
    async def _last_turn(self, wanted: _WantedLog) -> AsyncIterator[None]:
        """Context manager that waits for a free stream for an ended pod and holds it."""
        began = time.monotonic()
        async with self._last_turns:
            if wanted.ended_at is not None:
                # Nothing could be tried in this time, so it does not count.
                wanted.ended_at += time.monotonic() - began
            yield

    async def _check_streams(self) -> None:
        """Every CHECK_SECONDS, end streams of running pods: those whose pod has ended, if the server does not close
        them, and the oldest, as many as logs wait. An ended stream is resumed exactly, so nothing is lost."""
        known: set[asyncio.Timeout] = set()
        looked_at = time.monotonic()
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            # A lost node ends its pods without a watch event. Looking takes 20 us a pod, so it is done less often.
            if time.monotonic() - looked_at > END_SECONDS:
                looked_at = time.monotonic()
                for wanted in self._streaming.values():
                    # The exception is reported when the pod's log is tried next.
                    with contextlib.suppress(Exception):
                        self._look_at(wanted)
            # None that was opened since the last check.
            old = [limit for limit in self._streaming if limit in known]
            needed = set(old[: self._waiting])
            for limit, wanted in list(self._streaming.items()):
                is_over = wanted.ended_at is not None and time.monotonic() - wanted.ended_at > END_SECONDS
                if is_over or limit in needed:
                    del self._streaming[limit]
                    # A time in the past ends the stream at once.
                    limit.reschedule(0)
            known = set(self._streaming)

    def _is_hopeless(self, wanted: _WantedLog, error: Exception) -> bool:
        """Return whether to give up reading the rest of an ended pod's output after `error`."""
        now = time.monotonic()
        if wanted.ended_at is None or isinstance(error, (aiohttp.ClientConnectionError, EngineUnreachable)):
            # Time in which the API server is unreachable does not count.
            wanted.ended_at = now
        patience_seconds = DRAIN_SECONDS
        if isinstance(error, LogNotThere):
            patience_seconds = MISSING_SECONDS if is_removed(str(error)) else AWAY_SECONDS
        # 400: the container does not exist, not yet or no longer.
        elif isinstance(error, ApiError) and error.status in (400, 404):
            patience_seconds = MISSING_SECONDS
        return now - wanted.ended_at > patience_seconds


def _words(error: Exception) -> str:
    return line(error) or type(error).__name__
