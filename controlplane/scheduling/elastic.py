"""How many pods an elastic job starts with: as many as fit and are allowed, up to all, and never fewer than it must.

Everywhere else in this package an elastic job is a gang of its fewest pods. That gang waits its turn, is refused, is
promised room, and others are stopped for that gang and for no pod more: an elastic job would sooner be small than have
others stopped. Here it is told how many more pods it takes, in two steps, because it cannot grow while it runs:

1. In its turn it takes what is free now, or free soon where room is kept for it, within what its project is sure of:
   room beyond belongs to whoever comes after it.
2. When everybody has had a turn, it takes what is left idle, within limits, unless somebody who still waits could take
   it back: that would stop the whole job.

Elastic work is the first to give way: stopped, it can go on smaller in what its taker leaves over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from controlplane.scheduling.capacity import FreeCapacity
from controlplane.scheduling.fit import place, pods_that_fit, request_of
from controlplane.scheduling.limits import over_limit, over_quota
from controlplane.scheduling.order import Waiting
from controlplane.scheduling.victims import Candidate, Kind, VictimPolicy
from controlplane.scheduling.view import PodPlacement


def most_pods(item: Waiting, *, is_held: bool, is_sure: bool) -> int:
    """The most pods that limits and quotas let the job have; with `is_sure`, of those that nobody would take back.
    `is_held`: jobs that are stopping count too. Never fewer than it must have: the gates are asked about those first.
    """

    def is_allowed(pods: int) -> bool:
        wider = item.of(pods)
        is_refused = over_limit(wider) or over_quota(wider)
        if is_held and is_refused is None:
            is_refused = over_limit(wider, is_held=True) or over_quota(wider, is_held=True)
        return is_refused is None and (
            not is_sure or item.account.allocated + wider.milli_gpus <= item.account.sure
        )

    return _last(item.request.pods, item.job.pods, is_allowed)


def widest(item: Waiting, room: FreeCapacity, most: int) -> tuple[PodPlacement, ...] | None:
    """Where as many of the job's pods as fit can stand in this room, at most `most`; None when too few do."""
    placements = place(item.of(most).request, room, item.job.avoid)
    if placements is not None:
        return placements
    fit = pods_that_fit(item.request, room, most)
    return place(item.of(fit).request, room, item.job.avoid) if fit >= item.request.pods else None


def as_promised(item: Waiting) -> Waiting | None:
    """The job with as many pods as it was promised room for; None when it may not have so many any more."""
    if not item.is_elastic:
        return item
    pods = len(item.job.promised)
    return item.of(pods) if item.request.pods <= pods <= item.job.pods else None


class ShrinkPolicy:
    """Another gate, for those only who can go on smaller."""

    def __init__(self, gate: VictimPolicy) -> None:
        self.kind: Kind = gate.kind
        self._gate = gate

    def may_give(self, candidate: Candidate) -> bool:
        """Elastic, with more pods than it must have."""
        return candidate.can_shrink and self._gate.may_give(candidate)

    def accepts(self, victims: Collection[Candidate]) -> bool:
        """As the other gate does."""
        return self._gate.accepts(victims)


def can_go_on(victims: Collection[Candidate], taker: Waiting, soon: FreeCapacity) -> bool:
    """Whether there is room for all of these with their fewest pods, once they have gone and the taker has its own."""
    room = soon.copy()
    for victim in victims:
        for placement in victim.placements:
            room.give(placement, victim.job)
    needs = [(taker.request, taker.job)]
    for victim in sorted(victims, key=lambda victim: victim.job.id):
        pools = {room.node(name).pool for name in victim.nodes if name in room.positions}
        needs.append((request_of(victim.job, tuple(sorted(pools))), victim.job))
    for request, job in needs:
        placements = place(request, room)
        if placements is None:
            return False
        for placement in placements:
            room.take(placement, job)
    return True


def _last(low: int, high: int, is_fine: Callable[[int], bool]) -> int:
    """The largest number up to `high` for which it holds, when it holds up to there; `low` is not asked about."""
    while low < high:
        middle = (low + high + 1) // 2
        if is_fine(middle):
            low = middle
        else:
            high = middle - 1
    return low
