"""Which lower priorities of its own project a job may replace, alone or together with jobs of other projects.

To replace is to run inside the share or quota in the place of jobs that ran there, which a job above both could not do.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Set

from controlplane.scheduling.accounts import Account
from controlplane.scheduling.order import Waiting
from controlplane.scheduling.victims import Candidate, PreemptPolicy, ReclaimPolicy, VictimPolicy


class ReplaceOwnPolicy(PreemptPolicy):
    """Which jobs may be stopped: those of lower priority in the job's own project. It is a quick search for the
    cheapest ones that make room.

    Only for that set the caller checks whether the project then `stays_in_share`: a job in share would otherwise stop
    more than it needs, while as a borrower it may have room later in the cycle. For a job that cannot borrow, because
    its project is at its limit, `ReplacePolicy` examines other sets.
    """

    name = "replace own"

    def accepts(self, victims: Collection[Candidate]) -> bool:
        """Return True: such jobs may be stopped in any number."""
        return True

    def stays_in_share(self, victims: Collection[Candidate]) -> bool:
        """Return whether the project stays within its share, or its quota, with the job in the place of these
        victims."""
        return self._account.is_in_share_with(self._request - sum(one.milli_gpus for one in victims))


class ReplacePolicy(VictimPolicy):
    """Which jobs may be stopped: those of lower priority in the job's own project, alone if the project stays within
    its share with the job in their place, else together with jobs of other projects.

    The project gives up what its own jobs hold. So it gains only the rest, and reclaims what `ReclaimPolicy` allows
    for that gain. With the job it must then be inside its quota, which is owed to it; two projects that exchange GPUs
    beyond their quotas could go on for many cycles.
    """

    def __init__(self, item: Waiting, lower: Collection[Candidate]) -> None:
        """`lower`: the running jobs of the project that the waiting job may replace."""
        self._item = item
        self._lower = frozenset(lower)
        # Gives up all lower jobs, so that whatever it refuses is refused with fewer of them too.
        self._given_up = sum(one.milli_gpus for one in lower)
        self._loosest = ReclaimPolicy(item, given_up=self._given_up, gain=item.milli_gpus)

    @property
    def signature(self) -> Hashable:
        """What the policy's verdicts depend on: the project, the milli-GPUs that it and its department hold and that
        it would give up, the job's priority, and whether the job was stopped itself."""
        account, job = self._item.account, self._item.job
        holds = tuple((one.running, one.allocated) for one in account.line())
        return "replace", account.name, holds, self._given_up, job.priority, job.was_preempted_by is not None

    @property
    def required(self) -> Set[Candidate]:
        """The jobs of lower priority: without one of them it is a reclaim, which was tried before."""
        return self._lower

    def concerns(self, victim_account: Account) -> bool:
        """Return whether this is the account of the waiting job's project, or of a project that may lose jobs to it."""
        return victim_account is self._item.account or self._loosest.concerns(victim_account)

    def may_preempt(self, candidate: Candidate) -> bool:
        """Return whether this job could be one of the victims."""
        return candidate in self._lower or self._loosest.may_preempt(candidate)

    def accepts(self, victims: Collection[Candidate]) -> bool:
        """Return whether the jobs of other projects among these could be reclaimed if all `lower` jobs of the own
        project were stopped."""
        return self._loosest.accepts([one for one in victims if one not in self._lower])

    def completes(self, victims: Collection[Candidate]) -> bool:
        """Return whether all of these are of the own project, and it stays within its share with the job in their
        place; else whether it gains GPUs, stays inside its quota, and may reclaim the jobs of other projects among
        these for that gain."""
        given_up = sum(one.milli_gpus for one in victims if one in self._lower)
        others = [one for one in victims if one not in self._lower]
        account, gain = self._item.account, self._item.milli_gpus - given_up
        # Preempted jobs could preempt each other forever.
        if not others and self._item.job.was_preempted_by is None and account.is_in_share_with(gain):
            return True
        if gain <= 0 or not account.is_in_quota_with(gain):
            return False
        return ReclaimPolicy(self._item, given_up=given_up).accepts(others)
