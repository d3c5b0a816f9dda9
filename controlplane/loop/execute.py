"""EXECUTE: claim commands and call the engine, outside any transaction. Each may be repeated after a crash.

Every cluster has two lanes of its own, so that a slow one holds up no other, and ends never wait behind starts.
"""

import logging
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
from django.utils import timezone

from controlplane.clusters.credentials import installation
from controlplane.engines.base import (
    CLUSTER_FAILED,
    DISRUPTIONS,
    NOT_PERMITTED,
    EngineRefused,
    EngineUnreachable,
)
from controlplane.loop.claim_tokens import new_token
from controlplane.loop.effects import carry_out, note_done, note_given_up, note_waiting
from controlplane.models import Cluster, Command

logger = logging.getLogger(__name__)

CLAIM_SECONDS = 30
BACKOFF_SECONDS = (1, 2, 5, 10, 30)
STARTING_SECONDS = 300  # so long a start is tried that the cluster puts off; then it is queued again
BEGIN_SECONDS = (
    15  # after its claim; a call that begins in time is over, or has given up, when the claim ends
)
LOOK_AGAIN_SECONDS = 1.0
AHEAD = 3  # times its width: so much a lane holds claimed
GATHER_SECONDS = 0.03  # calls that return so soon after one another are recorded together


@dataclass(frozen=True, slots=True)
class LaneKind:
    """Which commands a lane carries out, and how many at a time: an engine behind a network waits for most of a
    call, which takes some ms."""

    name: str
    commands: tuple[str, ...]
    width: int


STARTS = LaneKind("starts", (Command.START_POD,), width=32)
ENDS = LaneKind("ends", tuple(kind for kind in Command.KINDS if kind != Command.START_POD), width=8)
LANES = (ENDS, STARTS)


class TooLate(Exception):
    """A call that did not begin while its claim was young: others may be at the same command."""


def clusters_with_work() -> list[int]:
    """Return the clusters that there are, and detached ones that have something left to clean up."""
    open_commands = Command.objects.filter(state__in=(Command.PENDING, Command.CLAIMED))
    wanted = Q(detached_at=None) | Q(pk__in=open_commands.values("cluster"))
    return list(Cluster.objects.filter(wanted).order_by("pk").values_list("pk", flat=True))


def execute_due() -> int:
    """Carry out all that is due, ends first, and return how much this process got hold of."""
    done = 0
    for cluster_id in clusters_with_work():
        for kind in LANES:
            lane = Lane(cluster_id, kind)
            try:
                done += lane.work()
            finally:
                lane.close()
    return done


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
        self._under_way: dict[Future[Any], tuple[Cluster, Command]] = {}

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
                future = self._pool.submit(_carry_out_in_time, cluster, command, begin_until)
                self._under_way[future] = (cluster, command)
                future.add_done_callback(lambda _: self.bell.set())

    def _claim(self, limit: int) -> list[Command]:
        mine = [command.pk for _, command in self._under_way.values()]
        due = self._due().exclude(pk__in=mine)
        keys = list(due.values_list("pk", flat=True)[:limit])
        if not keys:
            return []
        with transaction.atomic():
            # two processes may look at the same ones: neither waits for the other
            free = Command.objects.filter(_claimable(), pk__in=keys).order_by("pk")
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
        ours = Command.objects.filter(cluster=self._cluster_id, kind__in=self._kind.commands)
        stops_first = Case(When(kind=Command.STOP_POD, then=Value(0)), default=Value(1))
        order = (stops_first, "pk") if len(self._kind.commands) > 1 else ("pk",)
        return ours.filter(_claimable(), not_before__lte=Now()).order_by(*order)

    def _write(self, ended: Sequence[Future[Any]]) -> None:
        """Record how calls ended: what went well in one go."""
        if not ended:
            return
        well = []
        for future in ended:
            cluster, command = self._under_way.pop(future)
            if future.cancelled():
                continue
            error = future.exception()
            if error is not None:
                _take_failure(cluster, command, self._token, error)
                continue
            try:
                note_done(cluster, command, future.result())
            except Exception as failure:  # noqa: BLE001  _take_failure logs it; it must keep no other's end
                _take_failure(cluster, command, self._token, failure)
                continue
            well.append(command)
        _finish(well, self._token, Command.DONE, "")
        self._on_progress()


def _carry_out_in_time(cluster: Cluster, command: Command, begin_until: float) -> Any:
    if time.monotonic() > begin_until:
        raise TooLate
    return carry_out(cluster, command)


def _claimable() -> Q:
    return Q(state=Command.PENDING) | Q(state=Command.CLAIMED, claim_expires_at__lte=Now())


def _take_failure(cluster: Cluster, command: Command, token: str, error: BaseException) -> None:
    """What passes is tried again, what is for good is given up."""
    if isinstance(error, TooLate):
        _give_back(command, token)
    elif isinstance(error, EngineUnreachable):
        # whether the engine is out of reach is for reconcile to say; one that answers everything but this is broken
        is_reachable = Cluster.objects.filter(pk=cluster.pk, is_reachable=True).exists()
        failing = EngineRefused(CLUSTER_FAILED, str(error), is_passing=True)
        if is_reachable:
            note_waiting(command, failing)
        _try_again(cluster, command, token, failing, is_bounded=is_reachable)
    elif isinstance(error, EngineRefused):
        if error.is_passing:
            note_waiting(command, error)
            _try_again(cluster, command, token, error, is_bounded=True)
        elif command.kind in Command.CLEANING_UP and error.code == NOT_PERMITTED:
            _try_again(cluster, command, token, error, is_bounded=True)  # until the account may
        else:
            _give_up(cluster, command, token, error)
    elif isinstance(error, Exception):
        # a fault of ours or of the engine's: a poison command must neither stop the others nor be tried for ever
        logger.error("%s of %s failed", command.kind, command.pod_name, exc_info=error)
        failed = EngineRefused("engine_error", f"The engine failed {Command.MOST_TRIES} times: {error}")
        _try_again(cluster, command, token, failed, is_bounded=True)
    else:
        raise error


def _give_back(command: Command, token: str) -> None:
    """Let whoever comes next have a command of which nothing was tried."""
    ours = Command.objects.filter(pk=command.pk, claim_token=token, state=Command.CLAIMED)
    ours.update(state=Command.PENDING, tries=F("tries") - 1)


def _try_again(
    cluster: Cluster, command: Command, token: str, error: EngineRefused, *, is_bounded: bool
) -> None:
    if is_bounded and command.tries >= Command.MOST_TRIES and not _may_pass(command, error):
        _give_up(cluster, command, token, _as_disruption(error) if error.is_passing else error)
        return
    wait = BACKOFF_SECONDS[min(command.tries, len(BACKOFF_SECONDS)) - 1]
    Command.objects.filter(pk=command.pk, claim_token=token, state=Command.CLAIMED).update(
        state=Command.PENDING, error=str(error)[:500], not_before=Now() + timedelta(seconds=wait)
    )


def _may_pass(command: Command, error: EngineRefused) -> bool:
    """Whether more tries are worth it: what the cluster puts off is in time put right by whoever runs it. A start ends
    with that; what only cleans up has time, and `findings.tell_of_leftovers` tells."""
    if command.kind in Command.CLEANING_UP or (command.kind == Command.FORGET_POD and error.is_passing):
        return True
    is_young = timezone.now() - command.created_at < timedelta(seconds=STARTING_SECONDS)
    return error.is_passing and command.kind == Command.START_POD and is_young


def _as_disruption(error: EngineRefused) -> EngineRefused:
    """What passes says nothing of the job: it goes back to the queue."""
    return error if error.code in DISRUPTIONS else EngineRefused(CLUSTER_FAILED, error.message)


def _give_up(cluster: Cluster, command: Command, token: str, refusal: EngineRefused) -> None:
    logger.info("%s of %s refused: %s", command.kind, command.pod_name, refusal.message)
    with transaction.atomic():
        if _finish([command], token, Command.FAILED, refusal.message):
            note_given_up(cluster, command, refusal)


def _finish(commands: Sequence[Command], token: str, state: str, error: str) -> int:
    """Write ends under the claims' token: a claim that expired and was taken over leaves no trace."""
    if not commands:
        return 0
    keys = [command.pk for command in commands]
    ours = Command.objects.filter(pk__in=keys, claim_token=token, state=Command.CLAIMED)
    if any(command.kind == Command.CHECK_CLUSTER for command in commands):
        # credentials are kept nowhere but on their cluster
        ours.filter(kind=Command.CHECK_CLUSTER).update(payload={})
    return ours.update(state=state, error=error[:500], finished_at=timezone.now())
