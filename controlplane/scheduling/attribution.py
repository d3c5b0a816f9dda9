"""For which job each victim of a plan stops, once the jobs of the plan have been placed again."""

from __future__ import annotations

from controlplane.scheduling.cycle_state import CycleState
from controlplane.scheduling.order import Waiting
from controlplane.scheduling.plan import Preempt
from controlplane.scheduling.replacement import ReplaceOwnPolicy
from controlplane.scheduling.victims import Candidate, ReclaimPolicy


def attribute_preempts(state: CycleState) -> bool:
    """Give each victim a beneficiary that uses it: the present one if it has a promise, else a job whose promise uses
    the victim's capacity, else the present one if it starts. Return False if a victim has no such job; others may have
    been changed by then, so the caller must roll back."""
    # The next cycle renews a beneficiary's promise in any case, so it must be the job that waits for the victim.
    return all(
        preempt.beneficiary in state.promises
        or _attribute(state, preempt)
        or preempt.beneficiary in state.starts
        for preempt in state.record_preempts()
    )


def _attribute(state: CycleState, preempt: Preempt) -> bool:
    victim = state.victims[preempt.job]
    for item, placements in list(state.promises.values()):
        stopping = {job.id for job in state.stopping_for(item, placements)}
        if preempt.job in stopping and _may_take(state, item, victim):
            state.attribute(victim, item)
            return True
    return False


def _may_take(state: CycleState, item: Waiting, victim: Candidate) -> bool:
    """Return whether the job may take this victim in addition to its others, judged as if none of them was stopped
    yet."""
    if item.account is victim.account:
        return ReplaceOwnPolicy(item).may_preempt(victim)
    mine = [
        state.victims[one.job]
        for one in state.preempts.values()
        if one.beneficiary == item.job.id and one.kind == "reclaim"
    ]
    with state.trial():
        # Promises count as allocated: with them, the job's account would appear further above its share than when the
        # victims were chosen.
        for other, _ in list(state.promises.values()):
            if item.account.line()[-1] in other.account.line():
                state.withdraw(other)
        for one in (victim, *mine):
            state.reprieve(one)
        policy = ReclaimPolicy(item)
        return policy.is_open() and policy.accepts([victim, *mine])
