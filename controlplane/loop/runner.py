"""The loop's threads, hosted by a Celery worker or by `manage.py runloop`.

Each thread works when notified and once per period; either alone is sufficient. Several processes may host a loop:
leases and claims give each piece of work to one of them, and the others take over when it dies.
"""

import gc
import logging
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext

from django.conf import settings
from django.db import close_old_connections, connections
from django.utils import timezone

from controlplane.commands.dispatch import Dispatcher
from controlplane.engines.base import EngineUnreachable
from controlplane.loop import garbage
from controlplane.loop.claim_tokens import free_what_the_dead_hold
from controlplane.loop.cluster_context import forget_contexts
from controlplane.loop.cycle import Due, keep_fresh, run_cycle
from controlplane.loop.engine_look import have_engines_changed
from controlplane.loop.engine_pool import attached_clusters, close_engines, engine_for
from controlplane.loop.execute import POOLS, WorkerPool, clusters_with_work
from controlplane.loop.log_shipping import LogKeeper
from controlplane.loop.period import (
    BUSY,
    PERIOD_SECONDS,
    QUIET_PASS_SECONDS,
    QUIET_SECONDS,
    QUIET_WORK_SECONDS,
    STAGGER_SECONDS,
    Period,
)
from controlplane.loop.project_sync import sync_projects_once, sync_requested
from controlplane.loop.statistics import refresh_statistics
from controlplane.loop.steps import StepRunner, run_at_start
from controlplane.loop.telemetry_step import collect_once
from controlplane.loop.wake import listen, stop_listening
from controlplane.models import Cluster, Event

logger = logging.getLogger(__name__)

# Another process holds the lease for the length of a cycle, so asking more often would only cost queries.
BUSY_PAUSE_SECONDS = 0.05
# The pause after a cycle, as a multiple of the cycle's duration: cycles take at most a third of the time
# while their pauses stay below the bounds that follow.
PACE = 2
# The longest pause after a user action, in seconds, because the user waits for its effect.
SHORT_PAUSE_SECONDS = 0.25
# The longest pause otherwise, in seconds, so that slow cycles do not delay the reports of pods further.
LONG_PAUSE_SECONDS = 1.0
# How long pauses stay short after a user action, because its effects take several cycles.
ORDERED_SECONDS = 5.0
# Changes of a cluster within this time cause one notification, because the pods of a gang change together.
GATHER_SECONDS = 0.02
# A step that reads all jobs is followed by a pause of this many times its duration, up to a bound, so that it
# takes a fifth of the time at most until pauses reach the bound.
SPARED = 4
LONGEST_SPARED_SECONDS = 2.0
# Seconds between syncs. Changed quotas request one at once; changed members wait for the next.
TENANTS_EVERY = 3
# New commands wake the loop, so this interval only finds those whose back-off ended or whose worker died.
DISPATCH_SECONDS = 5.0
ALIVE = "loop.alive"


class Runner:
    """Runs the loop's threads until `stop`. With a broker (`has_broker`), Celery workers execute long commands;
    without one, this process does."""

    def __init__(self, *, has_broker: bool = True) -> None:
        self._is_stopping, self._period = threading.Event(), Period()
        self._cycle_wakeup = threading.Event()
        self._action_wakeup = threading.Event()
        self._ordered_at = float("-inf")
        self._pools_wakeup = threading.Event()
        self._pools: dict[int, list[WorkerPool]] = {}
        self._threads: list[threading.Thread] = []
        self._steps = StepRunner()
        self._logs = LogKeeper()
        self._dispatcher, self._dispatch_wakeup = Dispatcher(has_broker=has_broker), threading.Event()
        # Whether this process has prepared its first cycle, and whether its worker pools may start pods.
        self._is_prepared = self._may_start_pods = False
        # Whether a cycle of this process has been completed: the first one makes the objects that all later ones keep.
        self._has_led = False

    def start(self) -> None:
        """Start the threads, and listen for wake-ups in this process."""
        gc.set_threshold(*garbage.THRESHOLDS)
        listen(self.wake)
        self._spawn("cycle", self._cycle, self._cycle_wakeup, quiet_seconds=QUIET_SECONDS)
        self._spawn("pools", self._sync_pools, self._pools_wakeup, quiet_seconds=QUIET_WORK_SECONDS)
        self._spawn(
            "dispatch",
            self._dispatch,
            self._dispatch_wakeup,
            period_seconds=DISPATCH_SECONDS,
            quiet_seconds=QUIET_WORK_SECONDS,
        )
        self._spawn("collect", _duty_cycle(self._collect, self._is_stopping), threading.Event())
        # Not joined by `stop`: nothing interrupts a wait for changes, and it holds nothing that others need.
        watch = (self._watch, None, lambda: True, PERIOD_SECONDS, PERIOD_SECONDS)
        threading.Thread(target=self._repeat, args=watch, name="loop-watch", daemon=True).start()
        self._spawn("tenants", self._sync_projects, sync_requested, period_seconds=TENANTS_EVERY)
        self._spawn("steps", self._run_steps, threading.Event())
        statistics = _duty_cycle(refresh_statistics, self._is_stopping)
        self._spawn("statistics", statistics, threading.Event(), quiet_seconds=QUIET_WORK_SECONDS)
        self._spawn("logs", _duty_cycle(self._keep_logs, self._is_stopping), threading.Event())
        self.wake()
        sync_requested.set()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Stop the threads, waiting up to `timeout_seconds` for each to finish its work. Other processes repeat
        unfinished work when its claim expires."""
        stop_listening(self.wake)
        self._is_stopping.set()
        self._steps.stop()
        self.wake()
        sync_requested.set()
        for pool in self._all_pools():
            pool.close()
        for thread in self._threads:
            thread.join(timeout_seconds)
        self._logs.stop()
        self._dispatcher.close()
        close_engines()

    def wake(self) -> None:
        """Request a cycle and the execution of commands at once, because a user has done something."""
        self._action_wakeup.set()
        self._cycle_wakeup.set()
        self._dispatch_wakeup.set()
        self._notify_pools()
        self._period.rouse()

    def _again(self) -> None:
        """Request a cycle at once, because an engine has reported a change or a worker pool has finished a command."""
        self._cycle_wakeup.set()
        self._period.rouse()

    def _spawn(
        self,
        name: str,
        work: Callable[[], object],
        wakeup: threading.Event | None,
        is_wanted: Callable[[], bool] = lambda: True,
        period_seconds: float = PERIOD_SECONDS,
        quiet_seconds: float = QUIET_PASS_SECONDS,
    ) -> None:
        phase = STAGGER_SECONDS * len(self._threads)
        how = (work, wakeup, is_wanted, period_seconds, quiet_seconds, phase)
        thread = threading.Thread(target=self._repeat, args=how, name=f"loop-{name}", daemon=True)
        thread.start()
        # Appended last: `stop` cannot join a thread that has not started.
        self._threads.append(thread)

    def _repeat(
        self,
        work: Callable[[], object],
        wakeup: threading.Event | None,
        is_wanted: Callable[[], bool],
        period_seconds: float,
        quiet_seconds: float,
        phase: float = 0.0,
    ) -> None:
        """Run `work` whenever `wakeup` is set and once per `period_seconds` (while no work is unfinished, per
        `quiet_seconds`, in the given `phase`), until the runner stops or `is_wanted()` returns False. `wakeup` None:
        without a pause, because `work` waits by itself.

        An exception is logged, and the next run repeats the work, because all of it is derived from rows.
        """
        while not self._is_stopping.is_set() and is_wanted():
            if wakeup is not None:
                self._period.pause(wakeup, period_seconds, quiet_seconds, phase)
                wakeup.clear()
            try:
                # After a database restart old connections only fail; closing them lets the next query open new
                # ones.
                close_old_connections()
                work()
            except Exception:
                logger.exception("the loop's %s failed; it tries again", threading.current_thread().name)
                # Not at once, because most causes last for a while, such as a database that restarts.
                self._is_stopping.wait(PERIOD_SECONDS)
        connections.close_all()

    def _cycle(self) -> None:
        self._mark_alive()
        if not self._is_prepared:
            self._prepare()
            self._is_prepared = True
        self._accept_notices()
        if not self._period.has_news(have_engines_changed):
            keep_fresh()
            return
        # Read before the cycle, so that an event written during it counts as new for the next one.
        began, seen_event = time.monotonic(), Event.objects.last_seq()
        # The first cycle makes the objects that all later ones keep, so these are exempted from garbage
        # collection.
        with nullcontext() if self._has_led else garbage.long_lived():
            due = run_cycle(timezone.now(), self._notify_pools)
        if due is None:
            # Another process holds the lease and may have read the rows before our notification, so run again
            # soon.
            self._is_stopping.wait(BUSY_PAUSE_SECONDS)
            self._action_wakeup.wait(0 if self._is_ordered() else SHORT_PAUSE_SECONDS)
            self._cycle_wakeup.set()
            return
        self._has_led = True
        if due:
            self._notify_pools()
            self._period.rouse()
        elif not self._is_ordered():
            self._period.settle(seen_event)
        if due == Due.AT_ONCE:
            self._cycle_wakeup.set()
        else:
            self._pace(PACE * (time.monotonic() - began))

    def _prepare(self) -> None:
        """Do the apps' work at the start. Free what a dead process of this machine holds, so that it need not expire
        first. Renew the planner's statistics: without them, such as after a restore, PostgreSQL reads all jobs for each
        join of the first cycle."""
        run_at_start()
        self._may_start_pods = True
        self._pools_wakeup.set()
        if free_what_the_dead_hold():
            self._notify_pools()
            self._dispatch_wakeup.set()
        refresh_statistics()

    def _pace(self, seconds: float) -> None:
        """Pause for at most `seconds`, so that changes gather; less after a user's action."""
        short = min(seconds, SHORT_PAUSE_SECONDS)
        # Half of the pause batches a burst of changes; a user action in the other half begins a cycle at once.
        self._is_stopping.wait(short / 2)
        self._action_wakeup.wait(short / 2)
        self._accept_notices()
        if not self._is_ordered():
            self._action_wakeup.wait(min(seconds, LONG_PAUSE_SECONDS) - short)

    def _accept_notices(self) -> None:
        if self._action_wakeup.is_set():
            self._action_wakeup.clear()
            self._ordered_at = time.monotonic()

    def _is_ordered(self) -> bool:
        return time.monotonic() - self._ordered_at < ORDERED_SECONDS

    def _mark_alive(self) -> None:
        """Touch the file that the liveness probe reads: its age is the time since the last cycle began, also if
        cycles fail."""
        mark = settings.STATE_DIR / "control" / ALIVE
        try:
            mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            mark.touch()
        except OSError:
            logger.warning("%s could not be written; liveness probes will fail", mark, exc_info=True)

    def _notify_pools(self) -> None:
        self._pools_wakeup.set()
        for pool in self._all_pools():
            pool.notify()

    def _all_pools(self) -> list[WorkerPool]:
        return [pool for pools in list(self._pools.values()) for pool in pools]

    def _sync_pools(self) -> None:
        """Start worker pools for clusters that have none, and close those of clusters that are gone. Does nothing
        before the apps' work at the start is done."""
        if not self._may_start_pods:
            return
        wanted = set(clusters_with_work())
        for cluster_id in wanted - self._pools.keys():
            # The callback requests a cycle, so that the report of a started or stopped pod is read at once.
            self._pools[cluster_id] = [WorkerPool(cluster_id, kind, self._again) for kind in POOLS]
            for pool in self._pools[cluster_id]:
                self._spawn(
                    f"pool-{cluster_id}-{pool.name}",
                    pool.work,
                    pool.wakeup,
                    pool.is_open,
                    quiet_seconds=QUIET_WORK_SECONDS,
                )
                pool.notify()
        for cluster_id in self._pools.keys() - wanted:
            for pool in self._pools.pop(cluster_id):
                pool.close()
        # Closed after the worker pools that call them.
        close_engines(keep=wanted)
        forget_contexts(keep=wanted)

    def _dispatch(self) -> None:
        if not self._is_stopping.is_set():
            self._dispatcher.dispatch()

    def _collect(self) -> None:
        collect_once(timezone.now(), is_quiet=self._period.changes != BUSY)

    def _sync_projects(self) -> None:
        if self._is_stopping.is_set():
            return
        if not sync_projects_once(on_synced=self._again):
            # Another process holds the lease and may have read the rows before our notification, so run again
            # soon.
            self._is_stopping.wait(SHORT_PAUSE_SECONDS)
            sync_requested.set()

    def _run_steps(self) -> None:
        self._steps.run_due(timezone.now(), self._period.changes)

    def _keep_logs(self) -> None:
        self._logs.look(timezone.now())

    def _watch(self) -> None:
        """Request a cycle whenever an engine reports that a pod changed; for one period, with the clusters that exist
        at its beginning."""
        clusters = list(attached_clusters())
        # Close the database connection, which is not needed while waiting.
        connections.close_all()
        if not clusters:
            # The first cluster ends the long period when it is attached, and is then watched within a short one.
            self._period.pause(self._is_stopping, PERIOD_SECONDS)
            return
        until = time.monotonic() + self._period.seconds
        others = [
            # Daemons: the end of the process does not wait for a wait that nothing interrupts.
            threading.Thread(target=self._watch_one, args=(cluster, until), name="loop-watch", daemon=True)
            for cluster in clusters[1:]
        ]
        for thread in others:
            thread.start()
        self._watch_one(clusters[0], until)
        for thread in others:
            thread.join()

    def _watch_one(self, cluster: Cluster, until: float) -> None:
        while (left := until - time.monotonic()) > 0 and not self._is_stopping.is_set():
            try:
                if engine_for(cluster).wait_for_change(left):
                    self._again()
                    self._is_stopping.wait(GATHER_SECONDS)
            except EngineUnreachable:
                self._is_stopping.wait(left)
            except Exception:
                logger.exception(
                    "changes on %s are not noticed at once; the next period tries again", cluster.name
                )
                self._is_stopping.wait(left)


def _duty_cycle(work: Callable[[], object], is_stopping: threading.Event) -> Callable[[], None]:
    """Return a function that runs `work` and then pauses SPARED times as long (less one period), up to
    LONGEST_SPARED_SECONDS or until `is_stopping`. It is for work whose duration grows with the number of jobs."""

    def do() -> None:
        began = time.monotonic()
        work()
        is_stopping.wait(min(SPARED * (time.monotonic() - began) - PERIOD_SECONDS, LONGEST_SPARED_SECONDS))

    return do
