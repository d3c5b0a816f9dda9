"""Questions about an unfinished plan: which jobs could be stopped for another one, and how much capacity stays free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controlplane.scheduling.cycle_state import CycleState
from controlplane.scheduling.fit import place
from controlplane.scheduling.order import Waiting, job_key
from controlplane.scheduling.reservation import Reservation
from controlplane.scheduling.search import find_victims
from controlplane.scheduling.victims import Candidate, ReclaimPolicy, VictimPolicy


def could_reclaim(state: CycleState, item: Waiting) -> bool:
    """Return whether a waiting job could get enough capacity by stopping jobs of other projects."""
    policy = ReclaimPolicy(item)
    return (
        policy.is_open()
        and state.has_victim(policy)
        and find_victims(item.request, state.capacity.soon, policy, state.candidates) is not None
    )


def may_keep_promise(state: CycleState, item: Waiting) -> bool:
    """Return whether the project stays within its share with what an earlier cycle promised to the job; for missing
    workers, also within its quotas.

    Running jobs of the project that come after the job in the queue do not count: they may have started on idle
    capacity since.
    """
    if _is_in_share(item, item.milli_gpus):
        return True
    younger = (one for one in state.candidates.of(item.account) if job_key(one.job) > job_key(item.job))
    return _is_in_share(item, item.milli_gpus - sum(one.milli_gpus for one in younger))


def _is_in_share(item: Waiting, added: int) -> bool:
    """Return whether the project stays within its share with `added` milli-GPUs; for missing workers, whether project
    and department also stay within their quotas."""
    line = item.account.line()
    is_in_quota = not item.job.workers_for or all(account.is_in_quota_with(added) for account in line)
    return is_in_quota and item.account.is_in_share_with(added)


def victims_beside(
    state: CycleState, reservation: Reservation, item: Waiting, policy: VictimPolicy
) -> frozenset[Candidate] | None:
    """Return jobs to stop so that the job fits on capacity that is not reserved for the gang. None if there are none,
    or if the job would fit on the reserved capacity with one of them running."""
    soon = state.capacity.soon
    with reservation.kept(soon):
        among = range(len(soon.nodes))
        victims = find_victims(item.request, soon, policy, state.candidates, among)
    if victims is None or any(_fits_without(state, item, victims, one) for one in victims):
        return None
    return victims


def _fits_without(state: CycleState, item: Waiting, victims: frozenset[Candidate], one: Candidate) -> bool:
    with state.trial():
        state.evict(victims - {one}, item)
        return place(item.request, state.capacity.soon) is not None


def pools_of(items: Iterable[Waiting]) -> tuple[str, ...]:
    """Return the pools that these jobs may use; () for all."""
    usable = [item.request.pools for item in items]
    return tuple(sorted({pool for pools in usable for pool in pools})) if all(usable) else ()


def free_at_minimum(state: CycleState, elastic: Iterable[Waiting], pools: Sequence[str]) -> int:
    """Return the milli-GPUs of these pools that are free after this plan once all its elastic jobs have their minimum
    size."""
    widened = sum(
        pod.milli_gpus for item in elastic for pod in state.placements_of(item)[item.request.pods :]
    )
    return state.capacity.soon.free_milli_gpus(pools) + widened


def milli_gpus_on_open(state: CycleState, victim: Candidate, pools: Sequence[str]) -> int:
    """Return how many milli-GPUs the victim holds on open nodes of these pools (empty: all). To let it run takes at
    least as much free capacity."""
    soon = state.capacity.soon
    return sum(
        pod.milli_gpus
        for pod in victim.placements
        if soon.is_open(pod.node) and (not pools or soon.node(pod.node).pool in pools)
    )


def may_leave_room(item: Waiting, victims: Iterable[Candidate]) -> bool:
    """Return whether the victims may free more than the job takes: not if its pods are the same as theirs."""
    pods = [
        (pod.milli_gpus, victim.job.milli_cpus, victim.job.memory_mib, victim.job.extras)
        for victim in victims
        for pod in victim.placements
    ]
    asked = item.request
    pod = (asked.milli_gpus, asked.milli_cpus, asked.memory_mib, asked.extras)
    return len(pods) != asked.pods or any(one != pod for one in pods)
