"""Where projects and departments stand: what they are owed, what they hold, what one more job would mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from controlplane.scheduling.shares import Claim, divide
from controlplane.scheduling.view import ClusterView, JobView


@dataclass(slots=True)
class Account:
    """One project or department. Milli-GPUs; `None` means no bound.

    `allocated` leaves out jobs that are stopping: they are on their way out. `held` counts them, because
    limits and the interactive rule bind until a GPU is proven free. `fixed` is the non-preemptible part.
    `sure` is what nobody takes back: the fair share, but no more than the quota where shares are oversold.
    """

    name: str
    parent: Account | None
    quota: int | None
    limit: int | None
    weight: int
    priority: int
    rank: int
    usage: float = 0.0
    fair_share: int = 0
    sure: int = 0
    requested: int = 0
    allocated: int = 0
    fixed: int = 0
    promised: int = 0
    held: int = 0
    held_fixed: int = 0

    @property
    def occupied(self) -> int:
        """What it has in hand: allocated without promises. Only this can be taken from it."""
        return self.allocated - self.promised

    @property
    def entitled(self) -> int | None:
        """What it may hold without having to give anything back: quota or fair share, within its limit."""
        if self.quota is None:
            return self.limit
        owed = max(self.quota, self.fair_share)
        return owed if self.limit is None else min(self.limit, owed)

    def line(self) -> Iterator[Account]:
        """Itself, then its department."""
        yield self
        if self.parent is not None:
            yield self.parent

    def add(self, milli_gpus: int, is_preemptible: bool) -> None:
        """One more job holds GPUs here (or one less, when negative), all the way up."""
        for account in self.line():
            account.allocated += milli_gpus
            account.held += milli_gpus
            if not is_preemptible:
                account.fixed += milli_gpus
                account.held_fixed += milli_gpus

    def add_promised(self, milli_gpus: int, is_preemptible: bool) -> None:
        """One more job is promised GPUs here (or one less, when negative): it counts, and holds nothing yet."""
        for account in self.line():
            account.allocated += milli_gpus
            account.promised += milli_gpus
            account.fixed += 0 if is_preemptible else milli_gpus

    def add_stopping(self, milli_gpus: int, is_preemptible: bool) -> None:
        """A stopping job still holds GPUs here, all the way up."""
        for account in self.line():
            account.held += milli_gpus
            account.held_fixed += 0 if is_preemptible else milli_gpus

    def mark_stopping(self, milli_gpus: int) -> None:
        """A preemptible job that was counted by `add` is told to stop: it holds, and counts no more.

        With a negative number: it is not told to stop after all.
        """
        for account in self.line():
            account.allocated -= milli_gpus


def open_accounts(view: ClusterView) -> dict[str, Account]:
    """One account per project, by name, with nothing in it yet; projects of a department share its account."""
    parents = {
        item.name: Account(
            item.name, None, item.quota_milli_gpus, item.limit_milli_gpus, item.weight, item.priority,
            item.created_rank,
        )
        for item in view.departments
    }  # fmt: skip
    return {
        item.name: Account(
            item.name, parents.get(item.department or ""), item.quota_milli_gpus, item.limit_milli_gpus,
            item.weight, item.priority, item.created_rank, item.usage,
        )
        for item in view.projects
    }  # fmt: skip


def held_milli_gpus(job: JobView) -> int:
    """What an active job holds, over all its pods."""
    return sum(placement.milli_gpus for placement in job.placements)


def book_active(accounts: Mapping[str, Account], jobs: Iterable[JobView]) -> None:
    """Enter what active jobs hold."""
    for job in jobs:
        account = accounts.get(job.project)
        if account is None:
            continue  # the project is gone and its job is still being stopped: nobody's share
        milli_gpus = held_milli_gpus(job)
        if job.is_stopping:
            account.add_stopping(milli_gpus, job.is_preemptible)
        else:
            account.add(milli_gpus, job.is_preemptible)


def divide_cluster(
    total: int,
    accounts: Mapping[str, Account],
    waiting: Mapping[str, tuple[int, int]],
    usage_weight_milli: int,
) -> None:
    """Fill in `requested`, `fair_share` and `sure` of every account.

    `waiting`: per project, (preemptible, non-preemptible) milli-GPUs that its queued jobs ask for. The latter
    count up to the quota only, because they could never use more.
    """
    for account in accounts.values():
        account.requested = _requested(account, *waiting.get(account.name, (0, 0)))
    tops: dict[int, Account] = {}
    children: dict[int, list[Account]] = {}
    for account in accounts.values():
        top = account.parent or account
        tops[id(top)] = top
        if account.parent is not None:
            children.setdefault(id(top), []).append(account)
    for key, members in children.items():
        tops[key].requested = sum(_wanted(member) for member in members)
    _divide(total, list(tops.values()), usage_weight_milli)
    for key, members in children.items():
        # a department's quota above the cluster must not become a surplus that does not exist
        _divide(min(total, tops[key].fair_share), members, usage_weight_milli)
    is_oversold = sum(account.fair_share for account in accounts.values()) > total
    for account in accounts.values():
        share, quota = account.fair_share, account.quota
        account.sure = min(share, quota) if is_oversold and quota is not None else share


def _requested(account: Account, preemptible: int, fixed: int) -> int:
    if account.quota is not None:
        fixed = max(0, min(fixed, account.quota - account.fixed))
    return account.allocated + preemptible + fixed


def _wanted(account: Account) -> int:
    return account.requested if account.limit is None else min(account.limit, account.requested)


def _divide(total: int, siblings: list[Account], usage_weight_milli: int) -> None:
    claims = [
        Claim(
            str(place), account.quota, account.weight, account.requested, account.priority, account.limit,
            account.usage, account.rank,
        )
        for place, account in enumerate(sorted(siblings, key=lambda account: (account.rank, account.name)))
    ]  # fmt: skip
    shares = divide(total, claims, usage_weight_milli)
    for place, account in enumerate(sorted(siblings, key=lambda account: (account.rank, account.name))):
        account.fair_share = shares[str(place)]
