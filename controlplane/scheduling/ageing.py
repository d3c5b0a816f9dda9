"""Ageing of gangs: a job of several pods that has waited for long takes GPUs that projects borrow.

What its own share allows no longer counts then, only limits. Little work is lost: only jobs that wrote a checkpoint a
moment ago are stopped, so the gang waits until enough of them have. A job does this before its first start only, so
these stops end.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable

from controlplane.scheduling.accounts import Account
from controlplane.scheduling.candidates import Candidates
from controlplane.scheduling.order import Waiting
from controlplane.scheduling.victims import Candidate, Kind
from controlplane.scheduling.view import JobView

# A job that has run for less is not stopped for an aged gang.
LEAST_RUN_SECONDS = 3600
# A job whose last checkpoint is older is not stopped for an aged gang.
MOST_LOST_SECONDS = 300


def can_age(item: Waiting) -> bool:
    """Return whether the job is a gang of several pods that has never started."""
    return item.request.pods > 1 and item.job.waiting_since is not None and not item.job.grows


def is_aged(item: Waiting, now: int, after_seconds: int) -> bool:
    """Return whether a gang that can age has waited for at least so many seconds for its first start."""
    since = item.job.waiting_since
    return since is not None and now - since >= after_seconds


class AgeingPolicy:
    """Allows jobs of the gang's own project whose priority is not higher, and those of others as long as all of these
    projects and departments keep their quotas."""

    kind: Kind = "ageing"

    def __init__(self, item: Waiting) -> None:
        self._account = item.account
        self._priority = item.job.priority

    @property
    def signature(self) -> Hashable:
        """The gang's project and priority."""
        return self.kind, self._account.name, self._priority

    def concerns(self, victim_account: Account) -> bool:
        """Return whether the account and its department hold more than their quotas, or are the gang's own."""
        return all(_borrowed(account) > 0 for account in self._losing(victim_account))

    def may_preempt(self, candidate: Candidate) -> bool:
        """Return whether this job alone may be stopped."""
        if candidate.account is self._account and candidate.job.priority > self._priority:
            return False
        return self.concerns(candidate.account) and self.accepts((candidate,))

    def accepts(self, victims: Collection[Candidate]) -> bool:
        """Return whether all other projects and departments keep their quotas without these jobs together."""
        taken: dict[Account, int] = {}
        for victim in victims:
            for account in self._losing(victim.account):
                taken[account] = taken.get(account, 0) + victim.milli_gpus
        return all(milli_gpus <= _borrowed(account) for account, milli_gpus in taken.items())

    def _losing(self, victim_account: Account) -> list[Account]:
        """Return the accounts that have less with the gang in the place of a job of this one: not the gang's own."""
        return [account for account in victim_account.line() if account not in self._account.line()]


def _borrowed(account: Account) -> int:
    return 0 if account.quota is None else account.running - account.quota


def just_checkpointed(candidates: Iterable[Candidate], now: int) -> Candidates:
    """Return those that have run for a while and would lose next to nothing if they were stopped now."""
    found = Candidates(now)
    for candidate in candidates:
        if _is_cheap(candidate.job, now):
            found.add(candidate)
    return found


def _is_cheap(job: JobView, now: int) -> bool:
    if job.last_checkpoint_at is None or job.started_at is None:
        return False
    return now - job.last_checkpoint_at <= MOST_LOST_SECONDS and now - job.started_at >= LEAST_RUN_SECONDS
