"""Ageing of gangs (jobs of several pods): one that has waited long for its first start may stop jobs that others run
above their quotas.

The fair share of its project is ignored then; limits still apply. Little work is lost, because only jobs that have
just written a checkpoint are stopped; the gang waits until there are enough of them. A gang ages only before its
first start, so that it cannot stop jobs again after it was preempted itself.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable

from controlplane.scheduling.accounts import Account
from controlplane.scheduling.candidates import Candidates
from controlplane.scheduling.order import Waiting
from controlplane.scheduling.victims import Candidate, VictimPolicy
from controlplane.scheduling.view import JobView

# A job that has run for less is not stopped for an aged gang, so that jobs make progress between two such
# stops.
LEAST_RUN_SECONDS = 3600
# A job whose last checkpoint is older is not stopped for an aged gang, because it would lose more work than
# that.
MOST_LOST_SECONDS = 300


def can_age(item: Waiting) -> bool:
    """Return whether the job is a gang of several pods that has never started. Missing workers of a running job are
    none."""
    return item.request.pods > 1 and item.job.waiting_since is not None and not item.job.workers_for


def is_aged(item: Waiting, now: int, after_seconds: int) -> bool:
    """Return whether a gang for which `can_age` holds has waited for at least `after_seconds`. `now`: in Unix
    seconds."""
    since = item.job.waiting_since
    return since is not None and now - since >= after_seconds


class AgeingPolicy(VictimPolicy):
    """Which jobs an aged gang may stop: those of its own project with at most its priority, and those of other projects
    that, with their departments, still hold their quotas afterwards."""

    def __init__(self, item: Waiting) -> None:
        self._account = item.account
        self._priority = item.job.priority

    @property
    def signature(self) -> Hashable:
        """What the policy's verdicts depend on: the project and the priority of the gang."""
        return "ageing", self._account.name, self._priority

    def concerns(self, victim_account: Account) -> bool:
        """Return whether the victim's project and department hold more than their quotas. Accounts that are also the
        gang's are not tested."""
        return all(_borrowed(account) > 0 for account in self._losing(victim_account))

    def may_preempt(self, candidate: Candidate) -> bool:
        """Return whether this job alone may be stopped."""
        if candidate.account is self._account and candidate.job.priority > self._priority:
            return False
        return self.concerns(candidate.account) and self.accepts((candidate,))

    def accepts(self, victims: Collection[Candidate]) -> bool:
        """Return whether every other project and department keeps its quota once all these jobs have stopped."""
        taken: dict[Account, int] = {}
        for victim in victims:
            for account in self._losing(victim.account):
                taken[account] = taken.get(account, 0) + victim.milli_gpus
        return all(milli_gpus <= _borrowed(account) for account, milli_gpus in taken.items())

    def _losing(self, victim_account: Account) -> list[Account]:
        """Return the victim's project and department, except those that are also the gang's: these lose nothing."""
        return [account for account in victim_account.line() if account not in self._account.line()]


def _borrowed(account: Account) -> int:
    return 0 if account.quota is None else account.running - account.quota


def just_checkpointed(candidates: Iterable[Candidate], now: int) -> Candidates:
    """Return the candidates that have run for LEAST_RUN_SECONDS and wrote a checkpoint within the last
    MOST_LOST_SECONDS. `now`: in Unix seconds."""
    found = Candidates(now)
    for candidate in candidates:
        if _is_cheap(candidate.job, now):
            found.add(candidate)
    return found


def _is_cheap(job: JobView, now: int) -> bool:
    if job.last_checkpoint_at is None or job.started_at is None:
        return False
    return now - job.last_checkpoint_at <= MOST_LOST_SECONDS and now - job.started_at >= LEAST_RUN_SECONDS
