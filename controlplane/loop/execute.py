"""EXECUTE: claim short commands and call the engine, outside any transaction. Each may be repeated after a crash.

Every cluster has two lanes of its own, so that a slow one holds up no other, and ends never wait behind starts. Long
commands are Celery tasks: see controlplane.commands.
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
from controlplane.commands.outcomes import TooLate, claimable, finish, note_failure
from controlplane.commands.registry import ENGINE_QUEUES, ENGINE_STARTS, ENGINE_STOPS, handler_for, kinds_on
from controlplane.commands.run import CLAIM_SECONDS, CommandRun
from controlplane.loop.claim_tokens import new_token
from controlplane.models import Cluster, Command

BEGIN_SECONDS = (
    15  # after its claim; a call that begins in time is over, or has given up, when the claim ends
)
LOOK_AGAIN_SECONDS = 1.0
AHEAD = 3  # times its width: so much a lane holds claimed
GATHER_SECONDS = 0.03  # calls that return so soon after one another are recorded together


@dataclass(frozen=True, slots=True)
class LaneKind:
    """Which queue a lane carries out, and how many commands at a time: an engine behind a network waits for most of a
    call, which takes some ms."""

    name: str
    queue: str
    width: int


STARTS = LaneKind("starts", ENGINE_STARTS, width=32)
ENDS = LaneKind("ends", ENGINE_STOPS, width=8)
LANES = (ENDS, STARTS)


def clusters_with_work() -> list[int]:
    """Return the clusters that there are, and detached ones that have something left to clean up."""
    wanted = Q(detached_at=None) | Q(pk__in=_open_commands().values("cluster"))
    return list(Cluster.objects.filter(wanted).order_by("pk").values_list("pk", flat=True))


def execute_due() -> int:
    """Carry out all that is due, ends first and long commands last, and return how much this process got hold of."""
    done = 0
    for cluster_id in clusters_with_work():
        for kind in LANES:
            lane = Lane(cluster_id, kind)
            try:
                done += lane.work()
            finally:
                lane.close()
    return done + carry_out_due()


def _open_commands() -> QuerySet[Command]:
    return Command.objects.unfinished().of_kinds(kinds_on(*ENGINE_QUEUES))


class Lane:
    """One cluster's commands of some kinds. `work` is called by one thread; the engine is called by a pool."""

    def __init__(
        self, cluster_id: int, kind: LaneKind, on_progress: Callable[[], None] = lambda: None
    ) -> None:
        self.name, self.bell = kind.name, threading.Event()
        self._cluster_id, self._kind, self._on_progress = cluster_id, kind, on_progress
        self._token = new_token()
        self._is_closed, self._closing = False, threading.Lock()
        self._is_asked = True  # there may be more than was found at the last look
        self._looked_at = 0.0
        self._pool = ThreadPoolExecutor(kind.width, thread_name_prefix=f"lane-{cluster_id}-{kind.name}")
        self._under_way: dict[Future[Any], Command] = {}

    def work(self) -> int:
        """Carry out what is due until nothing is, and return how much that was."""
        done, self._is_asked = 0, True
        while True:
            self.bell.clear()
            ended = [future for future in self._under_way if future.done()]
            self._write(ended)
            done += len(ended)
            self._take()
            if not self._under_way:
                return done
            self.bell.wait(LOOK_AGAIN_SECONDS)  # rung by every call that returns
            if not all(future.done() for future in self._under_way):
                time.sleep(GATHER_SECONDS)

    def ring(self) -> None:
        """There may be more to do."""
        self._is_asked = True
        self.bell.set()

    def is_open(self) -> bool:
        return not self._is_closed

    def close(self) -> None:
        """Take nothing more. What has not begun is carried out by whoever comes next, when its claim expires."""
        with self._closing:
            self._is_closed = True
            self._pool.shutdown(wait=False, cancel_futures=True)
        self.bell.set()

    def _take(self) -> None:
        """Claim as much as keeps the pool busy until the next look, and hand it over."""
        room = AHEAD * self._kind.width - len(self._under_way)
        is_due = self._is_asked or time.monotonic() - self._looked_at >= LOOK_AGAIN_SECONDS
        if not self.is_open() or room < self._kind.width or not is_due:
            return
        self._is_asked, self._looked_at = False, time.monotonic()
        commands = self._claim(room)
        if not commands:
            return
        self._is_asked = True  # where there were some there may be more
        cluster = Cluster.objects.get(pk=self._cluster_id)
        installation()  # read here, once: the pool's threads touch no row
        with self._closing:
            begin_until = time.monotonic() + BEGIN_SECONDS
            for command in commands if self.is_open() else ():
                run = CommandRun(command, self._token, cluster)
                future = self._pool.submit(_carry_out_in_time, run, begin_until)
                self._under_way[future] = command
                future.add_done_callback(lambda _: self.bell.set())

    def _claim(self, limit: int) -> list[Command]:
        mine = [command.pk for command in self._under_way.values()]
        due = self._due().exclude(pk__in=mine)
        keys = list(due.values_list("pk", flat=True)[:limit])
        if not keys:
            return []
        with transaction.atomic():
            # two processes may look at the same ones: neither waits for the other
            free = Command.objects.filter(claimable(), pk__in=keys).order_by("pk")
            claimed = list(free.select_for_update(skip_locked=True))
            Command.objects.filter(pk__in=[command.pk for command in claimed]).update(
                state=Command.CLAIMED,
                claim_token=self._token,
                claim_expires_at=Now() + timedelta(seconds=CLAIM_SECONDS),
                tries=F("tries") + 1,
            )
        for command in claimed:
            command.tries += 1
        return sorted(claimed, key=lambda command: keys.index(command.pk))  # stops first

    def _due(self) -> QuerySet[Command]:
        kinds = kinds_on(self._kind.queue)
        ours = Command.objects.filter(claimable(), not_before__lte=Now(), cluster=self._cluster_id)
        urgent = [kind for kind in kinds if handler_for(kind).goes_first]
        order = (Case(When(kind__in=urgent, then=Value(0)), default=Value(1)), "pk") if urgent else ("pk",)
        return ours.of_kinds(kinds).order_by(*order)

    def _write(self, ended: Sequence[Future[Any]]) -> None:
        """Record how calls ended: what went well in one go."""
        if not ended:
            return
        well = []
        for future in ended:
            command = self._under_way.pop(future)
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
