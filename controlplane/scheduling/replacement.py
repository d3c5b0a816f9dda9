"""Which lower priorities of its own project a job may replace, alone or together with jobs of other projects.

To replace is to run inside the share or quota in the place of jobs that ran there, which a job above both could not do.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Set

from controlplane.scheduling.accounts import Account
from controlplane.scheduling.order import Waiting
from controlplane.scheduling.victims import Candidate, ReclaimPolicy, VictimPolicy


class ReplaceOwnPolicy(VictimPolicy):
    """Allows lower priorities of the job's own project. `stays_in_share` is for the caller to check, once the victims
    are known."""

    def __init__(self, item: Waiting) -> None:
        self._account = item.account
        self._priority = item.job.priority
        self._request = item.milli_gpus

    @property
    def signature(self) -> Hashable:
        """Return the project, the milli-GPUs that it and its department hold, and the job's priority."""
        holds = tuple((account.running, account.allocated) for account in self._account.line())
        return "replace own", self._account.name, holds, self._priority

    def concerns(self, victim_account: Account) -> bool:
        """Return whether the account is that of the waiting job's own project."""
        return victim_account is self._account

    def may_preempt(self, candidate: Candidate) -> bool:
        """Return whether the candidate is in the same project and has lower priority."""
        return candidate.account is self._account and candidate.job.priority < self._priority

    def accepts(self, victims: Collection[Candidate]) -> bool:
        """Return True: any of these may be part of a set."""
        return True

    def stays_in_share(self, victims: Collection[Candidate]) -> bool:
        """Return whether the project stays within its share, or its quota, with the job in the place of these."""
        return self._account.is_in_share_with(self._request - sum(one.milli_gpus for one in victims))


class ReplacePolicy(VictimPolicy):
    """Allows lower priorities of the job's own project together with jobs of other projects.

    The project gives up what its own jobs hold, so it gains only the rest, and reclaims what `ReclaimPolicy` allows for
    that gain. With the job it must be inside its quota: that is owed to it, while two projects that exchange GPUs
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
        """The project, the milli-GPUs that it and its department hold and that it would give up, the job's priority,
        and whether it was stopped itself."""
        account, job = self._item.account, self._item.job
        holds = tuple((one.running, one.allocated) for one in account.line())
        return "replace", account.name, holds, self._given_up, job.priority, job.was_preempted_by is not None

    @property
    def required(self) -> Set[Candidate]:
        """Return the lower priorities: without one of them it is a reclaim, which has been tried."""
        return self._lower

    def concerns(self, victim_account: Account) -> bool:
        """Return whether the account is that of the waiting job's project, or of a project that may lose jobs
        to it."""
        return victim_account is self._item.account or self._loosest.concerns(victim_account)

    def may_preempt(self, candidate: Candidate) -> bool:
        """Return whether this job could be one of the victims."""
        return candidate in self._lower or self._loosest.may_preempt(candidate)

    def accepts(self, victims: Collection[Candidate]) -> bool:
        """Return whether the jobs of other projects among these could be reclaimed if all lower priorities of
        the own project were stopped."""
        return self._loosest.accepts([one for one in victims if one not in self._lower])

    def completes(self, victims: Collection[Candidate]) -> bool:
        """Return whether the project, once these jobs are stopped, gains GPUs, stays inside its quota, and
        may reclaim the jobs of other projects among these for that gain."""
        given_up = sum(one.milli_gpus for one in victims if one in self._lower)
        gain = self._item.milli_gpus - given_up
        if gain <= 0 or not self._item.account.is_in_quota_with(gain):
            return False
        reclaim = ReclaimPolicy(self._item, given_up=given_up)
        return reclaim.accepts([one for one in victims if one not in self._lower])
