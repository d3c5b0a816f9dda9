"""Accounts of projects and departments: how many GPUs each is entitled to, and how many it has."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from operator import attrgetter
from typing import Any, NamedTuple

from controlplane.scheduling.shares import Claim, divide
from controlplane.scheduling.view import ClusterView, JobView


@dataclass(slots=True, eq=False)
class Account:
    """What one project or department is entitled to and uses, in milli-GPUs; None means unlimited. Limits, and the
    quota of non-preemptible jobs, bound both `allocated` and `held`.

    `allocated`: what counts against the fair share: jobs that run (not stopping), start, or have a promise. `held`:
    GPUs that are not proven free yet, so that stopping jobs count and promises do not. `fixed`, `held_fixed`: the
    non-preemptible parts of these. `requested`: `allocated`, `growth` and what queued jobs request. `sure`: what no
    other project can reclaim: the fair share, but at most the quota while shares are oversold. `reclaimed`: what this
    cycle takes for other projects; the account's own waiting jobs may not use it, although it no longer counts as
    allocated.

    `running`: held by jobs that started before this cycle and that it keeps; only these can become victims. `sizes`:
    how many of them there are, by milli-GPUs per job; `placed`: the same for the jobs that this cycle starts or
    promises capacity. `changes`: incremented by every change of `running` or `sizes`, so that cached values are known
    to be outdated. `growth`: what active jobs request beyond `allocated` (see `_growth`). `rank`: lower is older.
    `usage`: the fraction of the cluster that was used recently, 0 to 1.
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
    held: int = 0
    held_fixed: int = 0
    reclaimed: int = 0
    running: int = 0
    growth: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    placed: Counter[int] = field(default_factory=Counter)
    changes: int = 0

    @property
    def entitled(self) -> int | None:
        """The entitlement in milli-GPUs: the larger of quota and fair share, at most the limit. None if there is
        neither a quota nor a limit."""
        # Not all of it is safe: a project inside its own quota reclaims down to the quota of this one (`sure`).
        if self.quota is None:
            return self.limit
        entitled = max(self.quota, self.fair_share)
        return entitled if self.limit is None else min(self.limit, entitled)

    @property
    def is_within_limit(self) -> bool:
        """Whether the plan so far keeps the account within its limit. Jobs that ran above the limit before this cycle
        do not count."""
        return self.limit is None or self.allocated <= max(self.limit, self.running)

    def line(self) -> tuple[Account, ...]:
        """Return this account and, if it has one, that of its department."""
        return (self,) if self.parent is None else (self, self.parent)

    def is_in_quota_with(self, milli_gpus: int) -> bool:
        """Return whether the account stays within its quota if `milli_gpus` are added."""
        return self.quota is None or self.allocated + milli_gpus <= self.quota

    def is_in_share_with(self, milli_gpus: int) -> bool:
        """Return whether the account stays within its fair share, or else within its quota, if `milli_gpus` are
        added.

        The quota counts too, because shares follow demand: a job that was not counted in the demand does not raise
        its project's share.
        """
        with_more = self.allocated + milli_gpus
        return with_more <= self.fair_share or (self.quota is not None and with_more <= self.quota)

    def start(self, milli_gpus: int, is_preemptible: bool) -> None:
        """Count a job that starts; negative `milli_gpus` undo that."""
        for account in self.line():
            account.allocated += milli_gpus
            account.held += milli_gpus
            if not is_preemptible:
                account.fixed += milli_gpus
                account.held_fixed += milli_gpus
            account._place(milli_gpus)

    def promise(self, milli_gpus: int, is_preemptible: bool) -> None:
        """Count a job to which capacity is promised; negative `milli_gpus` undo that."""
        for account in self.line():
            account.allocated += milli_gpus
            account.fixed += 0 if is_preemptible else milli_gpus
            account._place(milli_gpus)

    def _place(self, milli_gpus: int) -> None:
        size = abs(milli_gpus)
        self.placed[size] += (milli_gpus > 0) - (milli_gpus < 0)
        if not self.placed[size]:
            del self.placed[size]

    def sizes_with_plan(self) -> Mapping[int, int]:
        """Return how many jobs hold GPUs of this account once the plan is carried out, by milli-GPUs per job."""
        return self.sizes + self.placed if self.placed else self.sizes

    def stop(self, milli_gpus: int) -> None:
        """Count a running preemptible job of this size as stopping."""
        for account in self.line():
            account.allocated -= milli_gpus
        self.run(milli_gpus, -1)

    def keep(self, milli_gpus: int) -> None:
        """Undo `stop`."""
        for account in self.line():
            account.allocated += milli_gpus
        self.run(milli_gpus)

    def run(self, milli_gpus: int, count: int = 1) -> None:
        """Add `count` jobs of this size to those that could become victims. A negative `count` removes jobs."""
        for account in self.line():
            account.running += count * milli_gpus
            account.sizes[milli_gpus] += count
            account.changes += 1

    def book(self, milli_gpus: int, is_preemptible: bool, is_stopping: bool, count: int = 1) -> None:
        """Count `count` active jobs of the view, each of this size, in this account and in its department's. A
        negative `count` removes them."""
        change = count * milli_gpus
        for account in self.line():
            account.held += change
            account.held_fixed += 0 if is_preemptible else change
            if not is_stopping:
                account.allocated += change
                account.fixed += 0 if is_preemptible else change
        if not is_stopping:
            self.run(milli_gpus, count)


def open_accounts(view: ClusterView) -> dict[str, Account]:
    """Return one empty account per project, by the project's name. The projects of a department have its account as
    their parent, whose `usage` is the sum of theirs."""
    parents = {
        item.name: Account(
            item.name, None, item.quota_milli_gpus, item.limit_milli_gpus, item.weight, item.priority,
            item.created_rank,
        )
        for item in view.departments
    }  # fmt: skip
    accounts = {
        item.name: Account(
            item.name, parents.get(item.department or ""), item.quota_milli_gpus, item.limit_milli_gpus,
            item.weight, item.priority, item.created_rank, item.usage,
        )
        for item in view.projects
    }  # fmt: skip
    for account in accounts.values():
        if account.parent is not None:
            account.parent.usage += account.usage
    return accounts


def held_milli_gpus(job: JobView) -> int:
    """Return how many milli-GPUs an active job holds, all its pods together."""
    if len(job.placements) == 1 and len(job.placements[0].devices) == 1:
        # Most jobs hold one device, and this is read for each job of a cluster.
        return job.placements[0].devices[0][1]
    return sum([milli_gpus for placement in job.placements for _, milli_gpus in placement.devices])


class AlikeJobs(NamedTuple):
    """Active jobs that accounts and policies treat alike. `milli_gpus`: what each of them holds. `can_shrink`: they are
    elastic and above their minimum size. `is_fresh`: they have not run for the minimum run time."""

    project: str
    priority: int
    is_preemptible: bool
    is_stopping: bool
    min_pods: int | None
    milli_gpus: int
    can_shrink: bool
    is_fresh: bool
    jobs: Sequence[JobView]


_of_job = attrgetter("project", "priority", "is_preemptible", "is_stopping", "min_pods")


def alike(jobs: Iterable[JobView], fresh_after: int) -> list[AlikeJobs]:
    """Return active jobs in groups that are treated alike: thousands of jobs make few. `fresh_after`: jobs that started
    after this time, in Unix seconds, are fresh."""
    groups: defaultdict[tuple[Any, ...], list[JobView]] = defaultdict(list)
    for job in jobs:
        can_shrink = job.min_pods is not None and len(job.placements) > job.min_pods
        is_fresh = job.started_at is not None and job.started_at > fresh_after
        groups[_of_job(job), held_milli_gpus(job), can_shrink, is_fresh].append(job)
    return [AlikeJobs._make((*same, *more, members)) for (same, *more), members in groups.items()]


def book_active(accounts: Mapping[str, Account], groups: Iterable[AlikeJobs], sign: int = 1) -> None:
    """Count active jobs in their projects' accounts; with `sign` -1, no longer. Jobs of deleted projects, which are
    still stopping, are skipped."""
    for group in groups:
        account = accounts.get(group.project)
        if account is None:
            continue
        count = sign * len(group.jobs)
        account.book(group.milli_gpus, group.is_preemptible, group.is_stopping, count)
        if group.is_stopping or group.min_pods is not None:
            grown = [_growth(job, group.milli_gpus) for job in group.jobs if job.placements]
            account.growth += sign * sum(grown)


def _growth(job: JobView, held: int) -> int:
    """Return the milli-GPUs that an active job requests beyond what is counted as allocated.

    An elastic job requests all of its pods, and a job that is being preempted requests its GPUs again. Without
    this, shares would change with the current sizes of elastic jobs and while victims are stopping.
    """
    each = held // len(job.placements)
    if job.is_stopping:
        return each * job.pods if job.was_preempted_by is not None else 0
    return each * (job.pods - len(job.placements)) if job.min_pods is not None else 0


def divide_cluster(
    total: int,
    accounts: Mapping[str, Account],
    waiting: Mapping[str, tuple[int, int]],
    usage_weight_milli: int,
) -> None:
    """Set `requested`, `fair_share` and `sure` of every account.

    `total`: the milli-GPUs to divide. `waiting`: by project, the (preemptible, non-preemptible) milli-GPUs that its
    queued jobs request. Non-preemptible requests count only up to the quota, because such jobs can never use more.
    `usage_weight_milli`: see `shares.divide`.
    """
    for account in accounts.values():
        account.requested = _requested(account, *waiting.get(account.name, (0, 0)))
    tops: dict[int, Account] = {}
    children: dict[int, list[Account]] = {}
    for account in accounts.values():
        if account.parent is None:
            tops[id(account)] = account
        else:
            tops[id(account.parent)] = account.parent
            children.setdefault(id(account.parent), []).append(account)
    for key, members in children.items():
        tops[key].requested = sum(_wanted(member) for member in members)
    _divide(total, list(tops.values()), usage_weight_milli)
    for key, members in children.items():
        # A department's quota may exceed the size of the cluster; without this cap the excess would be divided
        # as surplus.
        _divide(min(total, tops[key].fair_share), members, usage_weight_milli)
    is_oversold = sum([account.fair_share for account in accounts.values()]) > total
    for account in accounts.values():
        share, quota = account.fair_share, account.quota
        account.sure = min(share, quota) if is_oversold and quota is not None else share


def _requested(account: Account, preemptible: int, fixed: int) -> int:
    if account.quota is not None:
        fixed = max(0, min(fixed, account.quota - account.fixed))
    return account.allocated + account.growth + preemptible + fixed


def _wanted(account: Account) -> int:
    return account.requested if account.limit is None else min(account.limit, account.requested)


def _divide(total: int, siblings: list[Account], usage_weight_milli: int) -> None:
    by_age = sorted(siblings, key=attrgetter("rank", "name"))
    claims = [
        Claim(
            str(place), account.quota, account.weight, account.requested, account.priority, account.limit,
            account.usage, account.rank,
        )
        for place, account in enumerate(by_age)
    ]  # fmt: skip
    shares = divide(total, claims, usage_weight_milli)
    for place, account in enumerate(by_age):
        account.fair_share = shares[str(place)]


def most_inside(sizes: Mapping[int, int], bound: int | None) -> int:
    """Return the largest total of milli-GPUs, at most `bound` (None: no bound), that a selection of these jobs can
    have. `sizes`: number of jobs, by milli-GPUs per job."""
    total = sum(size * count for size, count in sizes.items())
    if bound is None or total <= bound:
        return total
    present = [(size, count) for size, count in sizes.items() if size and count > 0]
    unit = gcd(*(size for size, _ in present))
    # Subset sums as a bit set: bit n is set when some selection of jobs sums to n units, so adding a job is one
    # shift of the whole integer.
    sums, mask = 1, (1 << (bound // unit + 1)) - 1
    for size, count in present:
        step = 1
        while count > 0:
            step = min(step, count)
            sums |= (sums << (size // unit * step)) & mask
            count -= step
            step *= 2
    return (sums.bit_length() - 1) * unit
