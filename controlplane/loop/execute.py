"""EXECUTE: claim short commands and call the engine, outside any transaction. After a crash a call is repeated, so
that engines' calls are idempotent.

Every cluster has two worker pools of its own, so that a slow cluster delays no other and stops never wait behind
starts. Long commands are Celery tasks: see controlplane.commands.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Case, F, Q, QuerySet, Value, When
from django.db.models.functions import Now

from controlplane.clusters.credentials import installation
from controlplane.commands.dispatch import carry_out_due
from controlplane.commands.outcomes import (
    TooLate,
    claimable,
    due,
    finish,
    is_any_unfinished,
    note_failure,
)
from controlplane.commands.registry import ENGINE_QUEUES, ENGINE_STARTS, ENGINE_STOPS, handler_for, kinds_on
from controlplane.commands.run import CLAIM_SECONDS, CommandRun
from controlplane.loop.claim_tokens import new_token
from controlplane.models import Cluster, Command
from controlplane.models.prepared import Rows, prepared

# Seconds after the claim within which a call may begin: it then returns, or times out, before the claim
# expires.
BEGIN_SECONDS = 15
# Commands also become due when a back-off ends, which notifies no pool.
LOOK_AGAIN_SECONDS = 1.0
# A pool claims up to this many times its width, so that a thread that is done need not wait for the next
# claim.
AHEAD = 3
# Results that arrive within this time are recorded together, because each recording is a transaction.
GATHER_SECONDS = 0.03


@dataclass(frozen=True, slots=True)
class PoolKind:
    """A kind of worker pool. `queue`: the queue of its commands; `width`: how many it executes at a time, many
    because a call of an engine mostly waits for the network."""

    name: str
    queue: str
    width: int


STARTS = PoolKind("starts", ENGINE_STARTS, width=32)
ENDS = PoolKind("ends", ENGINE_STOPS, width=8)
POOLS = (ENDS, STARTS)


def clusters_with_work() -> list[int]:
    """Return the primary keys of the clusters that need worker pools: all that are not detached, and detached ones
    with unfinished commands."""
    return [key for (key,) in _with_work()]


@prepared
def _with_work() -> Rows[Cluster]:
    wanted = Q(detached_at=None) | Q(pk__in=_open_commands().values("cluster"))
    return Cluster.objects.filter(wanted).order_by("pk").values_list("pk")


def execute_due() -> int:
    """Execute all due commands in this process, stops first and long commands last. Return how many were tried."""
    if not is_any_unfinished():
        return 0
    done = 0
    for cluster_id in clusters_with_work():
        for kind in POOLS:
            pool = WorkerPool(cluster_id, kind)
            try:
                done += pool.work()
            finally:
                pool.close()
    return done + carry_out_due()


def _open_commands() -> QuerySet[Command]:
    return Command.objects.unfinished().of_kinds(kinds_on(*ENGINE_QUEUES))


class WorkerPool:
    """Executes one cluster's commands of one queue. `work` runs on one thread, and the pool's own threads call the
    engine. `on_progress` is called whenever results have been recorded."""

    def __init__(
        self, cluster_id: int, kind: PoolKind, on_progress: Callable[[], None] = lambda: None
    ) -> None:
        self.name, self.wakeup = kind.name, threading.Event()
        self._cluster_id, self._kind, self._on_progress = cluster_id, kind, on_progress
        self._token = new_token()
        self._is_closed, self._closing = False, threading.Lock()
        # True when there may be more due commands than the last query returned.
        self._is_asked = True
        self._looked_at = 0.0
        self._executor = ThreadPoolExecutor(kind.width, thread_name_prefix=f"pool-{cluster_id}-{kind.name}")
        self._under_way: dict[Future[Any], Command] = {}

    def work(self) -> int:
        """Execute due commands until none is left. Return how many were tried, with or without success."""
        done, self._is_asked = 0, True
        while True:
            # Cleared before anything is read, so that a later notification still ends the wait below.
            self.wakeup.clear()
            ended = [future for future in self._under_way if future.done()]
            self._write(ended)
            done += len(ended)
            self._take()
            if not self._under_way:
                return done
            # Each call that returns sets the event, so its result is recorded without a delay.
            self.wakeup.wait(LOOK_AGAIN_SECONDS)
            if not all(future.done() for future in self._under_way):
                time.sleep(GATHER_SECONDS)

    def notify(self) -> None:
        """Wake the pool, because more commands may be due. Thread-safe."""
        self._is_asked = True
        self.wakeup.set()

    def is_open(self) -> bool:
        return not self._is_closed

    def close(self) -> None:
        """Claim no more commands. Another process executes claimed commands that have not begun, once their claim
        expires."""
        with self._closing:
            self._is_closed = True
            self._executor.shutdown(wait=False, cancel_futures=True)
        self.wakeup.set()

    def _take(self) -> None:
        """Claim enough due commands to keep the threads busy, and submit them to the threads."""
        room = AHEAD * self._kind.width - len(self._under_way)
        is_due = self._is_asked or time.monotonic() - self._looked_at >= LOOK_AGAIN_SECONDS
        # Claim in batches, because each claim is a transaction.
        if not self.is_open() or room < self._kind.width or not is_due:
            return
        self._is_asked, self._looked_at = False, time.monotonic()
        commands = self._claim(room)
        if not commands:
            return
        # The query was limited, so there may be more.
        self._is_asked = True
        cluster = Cluster.objects.get(pk=self._cluster_id)
        # Loaded here once, because the pool's threads must not use the database.
        installation()
        with self._closing:
            begin_until = time.monotonic() + BEGIN_SECONDS
            for command in commands if self.is_open() else ():
                run = CommandRun(command, self._token, cluster)
                future = self._executor.submit(_carry_out_in_time, run, begin_until)
                self._under_way[future] = command
                future.add_done_callback(lambda _: self.wakeup.set())

    def _claim(self, limit: int) -> list[Command]:
        # This query is compiled once, that of the due commands by each call.
        if not is_any_unfinished():
            return []
        mine = [command.pk for command in self._under_way.values()]
        due = self._due().exclude(pk__in=mine)
        keys = list(due.values_list("pk", flat=True)[:limit])
        if not keys:
            return []
        with transaction.atomic():
            # Two processes may have selected the same commands; SKIP LOCKED lets neither wait for the other.
            free = Command.objects.filter(claimable(), pk__in=keys).order_by("pk")
            claimed = list(free.select_for_update(skip_locked=True))
            Command.objects.filter(pk__in=[command.pk for command in claimed]).update(
                state=Command.CLAIMED,
                claim_token=self._token,
                claim_expires_at=Now() + timedelta(seconds=CLAIM_SECONDS),
                tries=F("tries") + 1,
            )
        for command in claimed:
            # The UPDATE did not change these objects, which were read before it.
            command.tries += 1
        # The order of `_due`: stops first.
        return sorted(claimed, key=lambda command: keys.index(command.pk))

    def _due(self) -> QuerySet[Command]:
        kinds = kinds_on(self._kind.queue)
        ours = Command.objects.filter(due(), cluster=self._cluster_id)
        urgent = [kind for kind in kinds if handler_for(kind).goes_first]
        order = (Case(When(kind__in=urgent, then=Value(0)), default=Value(1)), "pk") if urgent else ("pk",)
        return ours.of_kinds(kinds).order_by(*order)

    def _write(self, ended: Sequence[Future[Any]]) -> None:
        """Record the results of calls that have returned, the successful ones in one statement."""
        if not ended:
            return
        well = []
        for future in ended:
            command = self._under_way.pop(future)
            # The pool was closed before the call began; the claim expires by itself.
            if future.cancelled():
                continue
            error = future.exception()
            if error is None:
                well.append(command)
            else:
                note_failure(command, self._token, error)
        finish(well, self._token, Command.DONE)
        self._on_progress()


def _carry_out_in_time(run: CommandRun, begin_until: float) -> Any:
    if time.monotonic() > begin_until:
        raise TooLate
    return handler_for(run.command.kind).run(run)
