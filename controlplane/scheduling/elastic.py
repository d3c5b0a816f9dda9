"""Choose the number of pods with which an elastic job starts: as many as fit and are allowed, at least its
minimum.

Elsewhere in this package an elastic job is a gang of its minimum size: it queues, is refused, gets promises
and stops other jobs for that size only. Additional pods never stop other jobs. They are added in two steps
(`widening`), because this package does not resize running jobs:

1. Served within its share, the job gets what is free now (or free soon, if it has a promise), up to what no
other project can reclaim; the rest is left to the jobs after it.

2. Once all jobs are served, it gets what is still idle, within limits, unless a waiting job could reclaim
that: a reclaim would stop the whole job.

Elastic jobs are preferred as victims, because they can continue with fewer pods on the remaining capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Set

from controlplane.scheduling.accounts import Account
from controlplane.scheduling.capacity import FreeCapacity
from controlplane.scheduling.fit import place, pods_that_fit, request_of
from controlplane.scheduling.limits import exceeds_limits, must_wait_for_limits
from controlplane.scheduling.order import Waiting
from controlplane.scheduling.sizes import largest_size
from controlplane.scheduling.victims import Candidate, VictimPolicy
from controlplane.scheduling.view import PodPlacement


def most_pods(item: Waiting, *, is_held: bool, is_sure: bool) -> int:
    """Return the largest number of pods that limits and quotas permit; at least the minimum, which the caller has
    checked. `is_held`: count the GPUs of stopping jobs too. `is_sure`: only what no other project can reclaim."""

    def is_allowed(pods: int) -> bool:
        wider = item.of(pods)
        if exceeds_limits(wider) or (is_held and must_wait_for_limits(wider)):
            return False
        return not is_sure or item.account.allocated + wider.milli_gpus <= item.account.sure

    most = _last(item.request.pods, item.job.pods, is_allowed)
    return max(item.request.pods, largest_size(item.job.sizes, most))


def widest(item: Waiting, room: FreeCapacity, most: int) -> tuple[PodPlacement, ...] | None:
    """Return the placements of as many of the job's pods as fit into this free capacity, at most `most`; None if not
    even its minimum fits."""
    placements = place(item.of(most).request, room, item.job.avoid)
    if placements is not None:
        return placements
    fit = largest_size(item.job.sizes, pods_that_fit(item.request, room, most))
    return place(item.of(fit).request, room, item.job.avoid) if fit >= item.request.pods else None


def as_promised(item: Waiting) -> Waiting | None:
    """Return the job with the number of pods for which capacity is promised; None if the job no longer allows that
    number."""
    if not item.is_elastic:
        return item
    pods = len(item.job.promised)
    return item.of(pods) if item.request.pods <= pods <= item.job.pods else None


class ShrinkPolicy(VictimPolicy):
    """Which jobs may be stopped: those that the wrapped `policy` accepts and that can shrink."""

    def __init__(self, policy: VictimPolicy) -> None:
        self._policy = policy

    @property
    def signature(self) -> Hashable:
        """What the policy's verdicts depend on: that of the wrapped policy, and that victims can shrink."""
        return "shrink", self._policy.signature

    def concerns(self, victim_account: Account) -> bool:
        """Return whether the wrapped policy may accept jobs of this project."""
        return self._policy.concerns(victim_account)

    def may_preempt(self, candidate: Candidate) -> bool:
        """Return whether the job is elastic, above its minimum size, and accepted by the wrapped policy."""
        return candidate.can_shrink and self._policy.may_preempt(candidate)

    def accepts(self, victims: Collection[Candidate]) -> bool:
        """Return whether the wrapped policy accepts the set."""
        return self._policy.accepts(victims)

    @property
    def required(self) -> Set[Candidate]:
        """Candidates of which each set must contain at least one, as in the wrapped policy; empty if any set will
        do."""
        return self._policy.required

    def completes(self, victims: Collection[Candidate]) -> bool:
        """Return whether the set is enough for the wrapped policy."""
        return self._policy.completes(victims)


def can_go_on(victims: Collection[Candidate], preemptor: Waiting, soon: FreeCapacity) -> bool:
    """Return whether every victim would still fit at its minimum size once the preemptor is placed on the freed
    capacity. `soon`: the capacity that is free without stopping the victims."""
    room = soon.copy()
    for victim in victims:
        for placement in victim.placements:
            room.give(placement, victim.job)
    needs = [(preemptor.request, preemptor.job)]
    for victim in sorted(victims, key=lambda victim: (victim.job.submit_rank, victim.job.id)):
        pools = {room.node(name).pool for name in victim.nodes if name in room.positions}
        # Only the pools where it runs now are tried, because a running job is not moved to other pools.
        needs.append((request_of(victim.job, tuple(sorted(pools))), victim.job))
    for request, job in needs:
        placements = place(request, room)
        if placements is None:
            return False
        for placement in placements:
            room.take(placement, job)
    return True


def _last(low: int, high: int, is_fine: Callable[[int], bool]) -> int:
    """Return the largest number from `low` to `high` for which `is_fine` holds. It must hold up to some number and
    for none above; `low` is not tested."""
    while low < high:
        middle = (low + high + 1) // 2
        if is_fine(middle):
            low = middle
        else:
            high = middle - 1
    return low
