"""Place all jobs of a plan again, together, so that a victim is not needed or one more job has room.

Jobs are served one by one, so a set of victims is minimal only for its own job. All sets together may free
more than all jobs need, and a job may lack room only because of where others were placed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.scheduling.attribution import attribute_preempts
from controlplane.scheduling.cycle_state import CycleState
from controlplane.scheduling.fit import place
from controlplane.scheduling.moves import Moves
from controlplane.scheduling.order import JobClass, Waiting
from controlplane.scheduling.plan_queries import free_at_minimum, milli_gpus_on_open, pools_of
from controlplane.scheduling.reservation import keep_free
from controlplane.scheduling.together import MAX_JOBS, serve_together
from controlplane.scheduling.victims import Candidate, cost_of_one
from controlplane.scheduling.widening import Widening


@dataclass(frozen=True, slots=True)
class _Placed:
    """The jobs of a plan that start, those with a promise, and the ids of those that must not use reserved nodes
    (`beside`)."""

    started: list[Waiting]
    promised: list[Waiting]
    beside: set[str]


class Rearrangement:
    """Places the jobs of one cycle's plan again. An attempt that fails leaves the plan as it is. `classes`: those
    that may be served in this cycle."""

    def __init__(
        self, state: CycleState, moves: Moves, widening: Widening, classes: Iterable[JobClass]
    ) -> None:
        self._state = state
        self._moves = moves
        self._widening = widening
        self._classes = classes

    def reprieve_needless(self) -> bool:
        """Let every victim run on that the jobs of this plan can do without. Return whether there was any."""
        before, is_changed = len(self._state.victims), bool(self._state.victims)
        while is_changed:
            pools = pools_of([*self._started(), *self._promised()])
            free = free_at_minimum(self._state, self._widening.elastic, pools)
            victims = sorted(self._state.victims.values(), key=cost_of_one, reverse=True)
            # The most expensive victim first. Keeping one may make another needless, so all are tested again. A
            # victim that holds more than stays free is needed; the rest is tried, which is a search for each.
            is_changed = any(
                milli_gpus_on_open(self._state, victim, pools) <= free and self._reprieve(victim)
                for victim in victims
            )
        return len(self._state.victims) < before

    def _reprieve(self, victim: Candidate) -> bool:
        """Let the victim run on if all jobs of this plan still fit, elsewhere if necessary. Return whether they do;
        if not, nothing is changed."""
        state, mark, placed = self._state, self._state.mark(), self._placed()
        is_replaced = self._is_replaced(victim)
        # All ways to place the jobs together are tried, and their number grows with every job.
        are_few = len(placed.promised) + len(placed.started) <= MAX_JOBS
        # Of many jobs, those that start stay where they are: only the promised ones wait for victims.
        self._withdraw([*placed.promised, *(placed.started if are_few else ())])
        state.reprieve(victim)
        self._moves.forget_searches()
        if are_few:
            is_served = serve_together(state, placed.started, placed.promised, placed.beside)
        else:
            is_served = all(self._moves.serve(item) for item in placed.promised)
        self._moves.forget_searches()
        is_served = is_served and all(one.is_within_limit for one in victim.account.line())
        # Other projects lose jobs to this one only for what it gains inside its quota: if the victim ran on too, the
        # project would be above its quota.
        is_served = is_served and not (is_replaced and not victim.account.is_in_quota_with(0))
        return self._complete(mark, is_served=is_served)

    def _is_replaced(self, victim: Candidate) -> bool:
        """Return whether the victim stops for a job of its own project for which jobs of other projects stop as
        well."""
        preempts = self._state.preempts
        mine = preempts[victim.job.id]
        return mine.kind == "preempt" and any(
            one.kind == "reclaim" and one.beneficiary == mine.beneficiary for one in preempts.values()
        )

    def serve_as_well(self, item: Waiting) -> bool:
        """Serve one more job if it fits once all others of the plan are placed again. Return whether it does; if not,
        nothing is changed."""
        state, mark, reservation = self._state, self._state.mark(), self._state.binding(item)
        # In a full cluster nothing is left for one more job, wherever the others are.
        with keep_free(reservation, state.capacity.soon):
            free = free_at_minimum(state, self._widening.elastic, item.request.pools)
        if free < item.milli_gpus:
            return False
        placed = self._placed()
        if reservation is not None:
            placed.beside.add(item.job.id)
        self._withdraw(placed.promised)
        self._moves.forget_searches()
        # Tried only where the job fits on what the others are promised: a quick test before the search.
        has_room = place(item.request, state.capacity.soon) is not None
        if has_room:
            self._withdraw(placed.started)
            has_room = serve_together(state, placed.started, [*placed.promised, item], placed.beside)
        return self._complete(mark, is_served=has_room)

    def _complete(self, mark: int, *, is_served: bool) -> bool:
        """Keep the new placements if `is_served` and every victim still has a beneficiary; else undo them. Return
        whether they are kept."""
        if is_served and attribute_preempts(self._state):
            # The jobs may have moved to nodes where more or fewer of their pods fit.
            self._widening.in_share()
            return True
        self._state.roll_back(mark)
        return False

    def _placed(self) -> _Placed:
        state, started, promised = self._state, self._started(), self._promised()
        # A job on reserved nodes was allowed there when it was placed, so it may be placed there again.
        beside = {
            item.job.id
            for item in (*started, *promised)
            if state.binding(item, is_placed=True) and not state.uses_reserved_nodes(item)
        }
        return _Placed(started, promised, beside)

    def _started(self) -> list[Waiting]:
        starts = self._state.starts
        return [item for one in self._classes for item in one.decided() if item.job.id in starts]

    def _promised(self) -> list[Waiting]:
        return [item for item, _ in self._state.promises.values()]

    def _withdraw(self, items: Iterable[Waiting]) -> None:
        for item in items:
            self._state.withdraw(item)
