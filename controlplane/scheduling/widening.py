"""Widen elastic jobs: give those of a plan more pods than their minimum (README.md, rules 5 and 6).

Every phase serves an elastic job at its minimum size, so that no job is stopped for additional pods. The
allowed sizes are computed in `elastic`. Missing workers of running jobs are `growth` instead: they queue like
jobs.
"""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.scheduling.cycle_state import CycleState
from controlplane.scheduling.elastic import most_pods, widest
from controlplane.scheduling.moves import Moves
from controlplane.scheduling.order import JobClass, Waiting
from controlplane.scheduling.plan_queries import could_reclaim
from controlplane.scheduling.reservation import keep_free


class Widening:
    """Gives elastic jobs of one cycle's plan more pods. `classes`: those that may be served in the cycle; `elastic`:
    their elastic jobs, in the plan or not."""

    def __init__(self, state: CycleState, moves: Moves, classes: Sequence[JobClass]) -> None:
        self._state = state
        self._moves = moves
        self._classes = classes
        self.elastic = [one.waiting(job) for one in classes if one.head.is_elastic for job in one.jobs]

    def in_share(self) -> None:
        """Give the jobs that start or have a promise more pods, within what no other project can reclaim."""
        for item in self.elastic:
            if self._state.placements_of(item):
                self._widen(item, is_sure=True)

    def on_idle(self) -> bool:
        """Give the jobs that start more pods on idle capacity, unless a waiting job could reclaim that. Return
        whether any got more.

        While other jobs are stopping, a job that starts on promised devices gets none: the freed capacity may be
        promised to others.
        """
        state = self._state
        starting = [item for item in self.elastic if item.job.id in state.starts]
        starting = [item for item in starting if not (item.job.promised and state.is_releasing)]
        mark = state.mark()
        widened = [item for item in starting if self._widen(item, is_sure=False)]
        # A reclaim in the next cycle would stop the whole job, and not only its additional pods.
        if starting and self._could_be_taken_back():
            state.roll_back(mark)
            return False
        return bool(widened)

    def _could_be_taken_back(self) -> bool:
        """Return whether a waiting job could reclaim capacity once the plan is carried out."""
        waiting = [one.head for one in self._classes if not one.is_decided]
        with self._state.trial():
            self._state.assume_started()
            return any(
                not self._moves.must_not_start(item) and could_reclaim(self._state, item) for item in waiting
            )

    def _widen(self, item: Waiting, *, is_sure: bool) -> bool:
        """Place a job of the plan again with as many pods as fit; keep its placements if these are not more. Return
        whether it got more.

        `is_sure`: stay within what no other project can reclaim.
        """
        if not item.is_elastic:
            return False
        state, is_promised = self._state, item.job.id in self._state.promises
        before, mark = state.placements_of(item), state.mark()
        state.withdraw(item)
        most = most_pods(item, is_held=not is_promised, is_sure=is_sure)
        capacity = state.capacity.soon if is_promised else state.capacity.now
        with keep_free(state.binding(item, is_idle=not is_sure), capacity):
            placements = widest(item, capacity, most) if most > len(before) else None
        # The additional pods may be on other nodes than the minimum was, so there may be room on those now.
        self._moves.forget_rooms()
        # The same number of pods elsewhere would be a move without a gain.
        if placements is None or len(placements) <= len(before):
            state.roll_back(mark)
            return False
        if is_promised:
            state.promise(item, state.capacity.on_idle_devices(item.job, placements))
        else:
            state.start(item, placements)
        return True
