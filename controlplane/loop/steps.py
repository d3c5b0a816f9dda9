"""Work that apps declare as `STEPS` in their module `loop_steps`, and that the loop runs periodically. A step must be
short and safe to repeat.

Work of more than a second or two belongs in a command; a step may write one.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from django.db import close_old_connections, connections
from django.db.models.functions import Now

from controlplane.loop.claims import LONG_AGO, claim_all, extend, extend_all, release_all
from controlplane.loop.period import BUSY, QUIET_WORK_SECONDS
from controlplane.models import Lease
from controlplane.models.prepared import Rows, prepared
from controlplane.registration import app_modules

logger = logging.getLogger(__name__)

# Short, so that a loop on another machine soon continues the work of a killed process. While a step runs its lease is
# extended.
LEASE_SECONDS, RENEW_SECONDS = 15, 5.0
# A step that hangs, as on a file system that does not answer, loses its lease after a minute in all.
RENEWALS = 9
LEASE_PREFIX = "step:"
RENEWAL = "loop-step-leases"


@dataclass(frozen=True, slots=True)
class LoopStep:
    """Work to do about every `every_seconds`, by one process at a time. `name`: unique; names the step's lease.

    While no job or command is unfinished, a step runs once after the last change and then every QUIET_WORK_SECONDS, if
    that is longer. A step whose work also comes with time, or from a cluster, declares `has_work`: it runs at its own
    period if `has_work` returns True for the present time. `has_work` is asked without a lease, by every process.
    `at_start`: work that each process does before it starts any pod."""

    name: str
    run: Callable[[datetime], object]
    every_seconds: float
    has_work: Callable[[datetime], bool] | None = None
    at_start: Callable[[], object] | None = None

    @property
    def lease(self) -> str:
        return f"{LEASE_PREFIX}{self.name}"


@cache
def declared_steps() -> Sequence[LoopStep]:
    """Return the steps of all installed apps."""
    return [step for module in app_modules("loop_steps") for step in module.STEPS]


def run_at_start() -> None:
    """Do the work that steps declare as `at_start`. Exceptions propagate: no pod may be started then."""
    for step in declared_steps():
        if step.at_start is not None:
            step.at_start()


class StepRunner:
    """Runs the steps that are due. For use by one thread."""

    def __init__(self) -> None:
        self._ran_at = {step.name: time.monotonic() for step in declared_steps()}
        # By step, the number of changes when it was last completed; BUSY if something was unfinished.
        self._changes = dict.fromkeys(self._ran_at, BUSY)
        self._is_stopping = threading.Event()

    def stop(self) -> None:
        """Start no more steps; the leases of those that were about to run are released after the present one. Call it
        from any thread."""
        self._is_stopping.set()

    def run_due(self, now: datetime, changes: int = BUSY) -> None:
        """Run the steps that are due, except those that another process runs or has just run. An exception is logged,
        and the step runs again after its next period. `changes`: how often something has changed, while nothing is
        unfinished, else BUSY."""
        clock = time.monotonic()
        due = [step for step in declared_steps() if self._is_due(step, clock, changes)]
        self._ran_at |= {step.name: clock for step in due}
        # A step that fails, or that another process has, runs again after its own period.
        self._changes |= {step.name: BUSY for step in due}
        if stale := _stale([step for step in due if _has_work(step, now)]):
            completed = _run_claimed(stale, now, self._is_stopping)
            self._changes |= {step.name: changes for step in stale if step.lease in completed}

    def _is_due(self, step: LoopStep, clock: float, changes: int) -> bool:
        ran_at = self._ran_at[step.name]
        is_settled = changes != BUSY and self._changes[step.name] == changes
        if step.has_work is None and is_settled and step.every_seconds <= QUIET_WORK_SECONDS:
            # By the number of the minute, so that all such steps run in one pass, with one claim of their leases.
            return ran_at // QUIET_WORK_SECONDS < clock // QUIET_WORK_SECONDS
        return clock - ran_at >= step.every_seconds


def _has_work(step: LoopStep, now: datetime) -> bool:
    """Return whether the step must run. An exception counts as work, so that it keeps no other step from running."""
    try:
        return step.has_work is None or step.has_work(now)
    except Exception:
        logger.exception("whether the loop's step %s has work is unknown; it runs", step.name)
        return True


@prepared
def _completions() -> Rows[Lease]:
    return Lease.objects.filter(name__startswith=LEASE_PREFIX).values_list("name", "completed_at", Now())


def _stale(due: Sequence[LoopStep]) -> list[LoopStep]:
    """Return the steps that no process has completed within the last half of their period. Creates missing leases."""
    if not due:
        return []
    # By the database's clock, as all that is written into leases.
    seconds = {name: (now - at).total_seconds() if at else math.inf for name, at, now in _completions()}
    missing = [step.lease for step in due if step.lease not in seconds]
    if missing:
        new = [Lease(name=name, expires_at=LONG_AGO) for name in missing]
        Lease.objects.bulk_create(new, ignore_conflicts=True)
    return [step for step in due if seconds.get(step.lease, math.inf) > step.every_seconds / 2]


def _run_claimed(steps: Sequence[LoopStep], now: datetime, is_stopping: threading.Event) -> set[str]:
    """Run those of the steps whose leases are free, until `is_stopping`. Return the leases of those that were
    completed. All leases are claimed, and released, by one statement: the statements of one lease take more time than
    most steps."""
    token, held = claim_all([step.lease for step in steps], LEASE_SECONDS)
    completed: set[str] = set()
    renewal = _Renewal(held, token)
    try:
        for step in steps:
            if is_stopping.is_set():
                # A loop on another machine would wait until the leases expire if this process ended with them.
                break
            if step.lease in held and renewal.begin(step) and _has_run(step, now):
                completed.add(step.lease)
    finally:
        renewal.end()
        if completed:
            release_all(completed, token, is_complete=True)
        if rest := held - completed:
            release_all(rest, token, is_complete=False)
    return completed


class _Renewal:
    """Extends the leases `held` while steps run, from a thread of its own: the process may be killed in a step."""

    def __init__(self, held: Collection[str], token: str) -> None:
        self._held, self._token = held, token
        self._renewed_at = time.monotonic()
        self._left = RENEWALS
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, step: LoopStep) -> bool:
        """Return whether this process still has the step's lease, which is extended if that was not done recently."""
        self._left = RENEWALS
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name=RENEWAL, daemon=True)
            self._thread.start()
        is_recent = time.monotonic() - self._renewed_at <= LEASE_SECONDS / 2
        return is_recent or extend(step.lease, self._token, LEASE_SECONDS)

    def end(self) -> None:
        self._is_over.set()
        if self._thread is not None:
            # Otherwise its connection may outlive the runner's.
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._is_over.wait(RENEW_SECONDS) and self._left > 0:
                self._left -= 1
                self._extend()
        finally:
            connections.close_all()

    def _extend(self) -> None:
        now = time.monotonic()
        try:
            extended = extend_all(self._held, self._token, LEASE_SECONDS)
        except Exception:
            # The database may answer again before the leases expire.
            logger.exception("the leases of the loop's steps could not be extended")
            close_old_connections()
            return
        # If another process has one, after a pause of this one or of the database, each step asks for its own.
        self._renewed_at = now if extended == len(self._held) else -math.inf


def _has_run(step: LoopStep, now: datetime) -> bool:
    try:
        step.run(now)
    except Exception:
        logger.exception("the loop's step %s failed; it runs again in %g s", step.name, step.every_seconds)
        return False
    return True
