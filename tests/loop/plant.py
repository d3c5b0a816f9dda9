"""The control plane in a test: rows, the memory engine under virtual time, and the loop, run by the test."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import connection
from django.utils import timezone

from controlplane.engines.memory import MemoryEngine, VirtualClock
from controlplane.loop.cluster_context import context_of, forget_contexts
from controlplane.loop.cycle import run_cycle
from controlplane.loop.execute import execute_due
from controlplane.models import Cluster, Lease
from jobs.models import Allocation, Job
from tests.builders import make_cluster
from tests.engines import give_engine

MOST_TICKS = 20
STEP_SECONDS, LONG_SECONDS, LONG_STEP_SECONDS = 1.0, 12.0, 3.0


def until_quiet(turn: Callable[[], Sequence[object]]) -> None:
    """Call `turn` until it returns no changes. Raises AssertionError after MOST_TICKS calls."""
    changes: Sequence[object] = ()
    for _ in range(MOST_TICKS):
        changes = turn()
        if not changes:
            return
    raise AssertionError(f"not settled after {MOST_TICKS} ticks: {changes}")


class Written:
    def __init__(self) -> None:
        self.statements: list[str] = []

    def __call__(
        self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Mapping[str, Any]
    ) -> Any:
        result = execute(sql, params, many, context)
        if sql.startswith(("INSERT", "UPDATE", "DELETE")) and Lease._meta.db_table not in sql:
            self.statements.append(sql)
        return result


@dataclass
class Plant:
    """A cluster with a memory engine. `tick` runs one cycle and its commands; `settle` ticks until nothing
    changes."""

    nodes: int = 2
    gpus: int = 8
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(timezone.now()))
    cluster: Cluster = field(init=False)
    engine: MemoryEngine = field(init=False)

    def __post_init__(self) -> None:
        forget_contexts()  # of tests before: their clusters had the same keys
        self.cluster = make_cluster(nodes=self.nodes, gpus=self.gpus)
        self.restart_engine()

    def restart_engine(self) -> None:
        """Replace the engine by a new one, which has no pods."""
        self.engine = MemoryEngine(self.cluster.settings, clock=self.clock)
        give_engine(self.cluster, self.engine)

    def tick(self, seconds: float = 0.0) -> None:
        """Let time pass, then run one cycle and its commands."""
        self.clock.advance(seconds)
        # Slow plans are postponed where nothing waits: how fast this machine is must not decide on a test.
        context_of(self.cluster).plan_seconds = 0.0
        assert run_cycle(self.clock()) is not None, "another process holds the loop's lease"
        while execute_due():
            pass

    def settle(self) -> None:
        """Tick until a tick writes nothing; without time passing, further ticks would not either."""
        until_quiet(self.written_by_tick)

    def written_by_tick(self) -> list[str]:
        """Tick and return the SQL statements that changed rows, without those for the loop's lease."""
        with connection.execute_wrapper(written := Written()):
            self.tick()
        return written.statements

    def close(self) -> None:
        give_engine(self.cluster, None)

    def states(self) -> dict[str, str]:
        """Return the state of each job, by name."""
        return dict(Job.objects.values_list("name", "state"))

    def allocated(self) -> dict[str, float]:
        """Return GPUs by project, from unreleased allocations."""
        totals: dict[str, float] = {}
        rows = Allocation.objects.filter(released_at=None).values_list(
            "pod__job__project__name", "milli_gpus"
        )
        for project, milli in rows:
            totals[project] = totals.get(project, 0) + milli / 1000
        return totals

    def in_seconds(self, seconds: float) -> None:
        """Let `seconds` pass in steps of STEP_SECONDS, a tick after each; a long time in larger steps."""
        until = self.clock() + timedelta(seconds=seconds)
        while (left := (until - self.clock()).total_seconds()) > 0:
            self.tick(min(left, STEP_SECONDS if seconds <= LONG_SECONDS else LONG_STEP_SECONDS))
