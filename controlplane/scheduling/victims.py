"""Policies: which running jobs may be stopped for another job (victims), and at what cost.

The cheapest set loses the least work since the last checkpoints, rounded up to powers of two of a GPU-hour. Among
equal ones it has the fewest jobs, then the fewest milli-GPUs, then exactly the least work lost, then the newest jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from controlplane.scheduling.accounts import Account, AlikeJobs, most_inside
from controlplane.scheduling.order import Waiting
from controlplane.scheduling.view import JobView, PodPlacement

VictimClass = tuple[str, int, int, bool, bool]
"""(project, milli-GPUs, priority, whether it can shrink, whether it is fresh): a policy gives one verdict for all
candidates of a class."""
Kind = Literal["reclaim", "preempt", "ageing"]
Cost = tuple[int, int, int, int, tuple[int, ...], tuple[str, ...]]
# Losses below this count as equal, so that no second job is stopped to avoid one.
GPU_HOUR = 3600 * 1000


class Candidate:
    """A running job that could be stopped. `work_lost`: milli-GPU-seconds since its last checkpoint or start.
    `is_fresh`: it has run for less than the minimum run time, which protects it from projects above their quota."""

    __slots__ = (
        "_devices",
        "account",
        "job",
        "milli_gpus",
        "nodes",
        "placements",
        "victim_class",
        "work_lost",
    )

    def __init__(
        self,
        job: JobView,
        account: Account,
        placements: tuple[PodPlacement, ...],
        victim_class: VictimClass,
        work_lost: int,
    ) -> None:
        self.job = job
        self.account = account
        self.placements = placements
        self.victim_class = victim_class
        self.milli_gpus = victim_class[1]
        self.work_lost = work_lost
        # By node; computed when first read, because most jobs of a large cluster are not examined.
        self._devices: dict[str, tuple[tuple[int, int], ...]] | None = None
        # The names of the nodes that it uses, sorted.
        if len(placements) == 1:
            self.nodes = [placements[0].node]
        else:
            self.nodes = sorted({placement.node for placement in placements})

    def on_node(self, name: str) -> tuple[tuple[int, int], ...]:
        """Return ((device index, milli-GPUs), ...) that the job holds on one node, over all its pods there; () if it
        holds none."""
        if self._devices is None:
            self._devices = _devices_by_node(self.placements)
        return self._devices.get(name, ())

    @property
    def is_fresh(self) -> bool:
        """Whether the minimum run time protects the job from projects above their quota."""
        return self.victim_class[4]

    @property
    def can_shrink(self) -> bool:
        """Whether the job is elastic and above its minimum size, so that it can continue with fewer pods."""
        return self.victim_class[3]


def victim_class_of(
    job: JobView, placements: Sequence[PodPlacement], milli_gpus: int, *, is_fresh: bool = False
) -> VictimClass:
    """Return the class of a job that runs with these placements and holds `milli_gpus`."""
    can_shrink = job.min_pods is not None and len(placements) > job.min_pods
    return (job.project, milli_gpus, job.priority, can_shrink, is_fresh)


def class_of_group(group: AlikeJobs) -> VictimClass:
    return (group.project, group.milli_gpus, group.priority, group.can_shrink, group.is_fresh)


def _devices_by_node(placements: Iterable[PodPlacement]) -> dict[str, tuple[tuple[int, int], ...]]:
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for placement in placements:
        found[placement.node] = found.get(placement.node, ()) + placement.devices
    return found


def work_lost(job: JobView, milli_gpus: int, now: int) -> int:
    """Return the work that is lost if the job is stopped at `now` (Unix seconds), in milli-GPU-seconds; 0 if it has
    not started."""
    since, saved = job.started_at, job.last_checkpoint_at
    if since is None:
        return 0
    # Not `max`: this is computed for each job of a cluster.
    if saved is not None and saved > since:
        since = saved
    return milli_gpus * (now - since) if now > since else 0


def preemption_cost(victims: Iterable[Candidate]) -> Cost:
    """Return the cost of stopping a set of jobs, which is compared item by item: smaller is better. Newer jobs cost
    less than older ones; ids break ties."""
    real = tuple(victims)
    lost = sum([victim.work_lost for victim in real])
    return (
        magnitude(lost),
        len(real),
        sum([victim.milli_gpus for victim in real]),
        lost,
        tuple(sorted([-victim.job.submit_rank for victim in real])),
        tuple(sorted([victim.job.id for victim in real])),
    )


def cost_of_one(victim: Candidate) -> Cost:
    return preemption_cost((victim,))


def magnitude(work_lost: int) -> int:
    """Return the number of binary digits of the whole GPU-hours in `work_lost` (milli-GPU-seconds): 0 below one
    GPU-hour, 1 below two, 2 below four. Sets with similar losses thus compare as equal."""
    return (work_lost // GPU_HOUR).bit_length()


class VictimPolicy(Protocol):
    """Decides which running jobs may be stopped for one waiting job. `accepts` is monotone: if it refuses a set, it
    refuses every larger set with these jobs."""

    @property
    def signature(self) -> Hashable:
        """A key of everything, beside the victims, on which the verdicts depend. A failed search is valid for all
        policies with an equal key."""
        ...

    def concerns(self, victim_account: Account) -> bool:
        """Return whether jobs of this account could be victims. The test is quick: True may be wrong, False
        never is."""
        ...

    def may_preempt(self, candidate: Candidate) -> bool:
        """Return whether this job could be a victim on its own."""
        ...

    def accepts(self, victims: Collection[Candidate]) -> bool:
        """Return whether this set may be stopped together, or be part of a larger set that may."""
        ...

    def completes(self, victims: Collection[Candidate]) -> bool:
        """Return whether this set, which `accepts` allows, may be stopped as it is, without more victims."""
        return True

    @property
    def required(self) -> Set[Candidate]:
        """Candidates of which each set must contain at least one; empty if any set will do."""
        return frozenset()


class PreemptPolicy(VictimPolicy):
    """Which jobs may be stopped: preemptible ones of strictly lower priority in the same project.

    After they stop, the jobs of the project, and those of its department, must be able to fill as much of its quota and
    of its entitlement as before (`accounts.most_inside`). Jobs count that run, start or have a promise, as they will in
    the next cycle. A victim of the waiting job's size does not count, because that job runs in its place.
    """

    name: ClassVar[str] = "preempt"

    def __init__(self, item: Waiting) -> None:
        self._account = item.account
        self._priority = item.job.priority
        self._request = item.milli_gpus

    @property
    def signature(self) -> Hashable:
        """What the policy's verdicts depend on: the project, what it and its department hold, and the job's
        priority."""
        holds = tuple(
            (account.running, account.allocated, tuple(sorted(account.placed.items())))
            for account in self._account.line()
        )
        return self.name, self._account.name, holds, self._priority

    def concerns(self, victim_account: Account) -> bool:
        """Return whether this is the account of the waiting job's project."""
        return victim_account is self._account

    def may_preempt(self, candidate: Candidate) -> bool:
        """Return whether the candidate is in the same project, has a lower priority and is accepted alone."""
        return (
            candidate.account is self._account
            and candidate.job.priority < self._priority
            and self.accepts((candidate,))
        )

    def accepts(self, victims: Collection[Candidate]) -> bool:
        """Return whether the project and its department lose nothing inside quota and entitlement if these jobs are
        stopped together."""
        taken = Counter(victim.milli_gpus for victim in victims)
        # One victim of its size is no loss, because the waiting job replaces it in the same project.
        taken[self._request] -= 1
        return all(
            _lost(account.sizes_with_plan(), taken, bound) <= 0
            for account in self._account.line()
            for bound in (account.quota, account.entitled)
        )


class ReclaimPolicy(VictimPolicy):
    """Which jobs may be stopped: those of other projects that hold more than they must keep.

    The waiting job's account is compared with the victim's: their departments if these differ, else their projects.
    Before each victim is stopped, the compared account must hold more than its entitlement, or than its quota if the
    waiting job stays within its own quota; so only the last victim can take the account below. Below a compared
    department, the victim's project must hold more than its quota, so that a project within its quota never loses a
    GPU. Jobs within their minimum run time are victims only for a job within its quotas.

    All victims together must not lose more within their quotas (within their fair shares, for a job above its quota)
    than the waiting job gains within its own; they must lose less if that job was itself preempted. A job above its
    fair share must also leave each compared account more GPUs per fair share than it gets. So every reclaim is
    progress, and sequences of reclaims end.
    """

    def __init__(self, item: Waiting, *, given_up: int = 0, gain: int | None = None) -> None:
        """`given_up`: milli-GPUs of the waiting job's own project that are stopped for it as well. `gain`: the
        milli-GPUs that the project gains; None for the rest of what the job requests."""
        self._account = item.account
        self._request = item.milli_gpus - given_up
        # One milli-GPU less, because two jobs could otherwise stop each other forever.
        is_stopped = item.job.was_preempted_by is not None
        self._gain = (self._request if gain is None else gain) - is_stopped
        self._is_in_quota = all(one.is_in_quota_with(self._request) for one in item.account.line())
        # A job that stays inside every quota and share may take any one job that is no larger than its gain.
        self._is_plain = self._is_in_quota and all(
            one.allocated + self._request <= one.fair_share for one in item.account.line()
        )
        # Cached: accounts do not change during a search, which asks about the same few of them thousands of
        # times.
        self._kept_of: dict[Account, tuple[tuple[Account, int, bool], ...]] = {}
        self._lost_of: dict[tuple[Account, int | None, tuple[int, ...]], int] = {}

    def is_open(self) -> bool:
        """Return whether the job may reclaim at all: it requests GPUs, and its project stays within its share with
        it."""
        return self._request > 0 and self._account.is_in_share_with(self._request)

    @property
    def signature(self) -> Hashable:
        """What the policy's verdicts depend on: the department, whether project and department stay within their
        quotas with the job, and the gain; above a fair share also what the job's accounts hold, because
        `_is_balanced` compares that."""
        line = self._account.line()
        is_in_quota = tuple(account.is_in_quota_with(self._request) for account in line)
        above = [account.allocated + self._request > account.fair_share for account in line]
        alone = tuple((account.name, account.allocated) for account in line) if any(above) else ()
        department = self._account.parent.name if self._account.parent else None
        return "reclaim", department, is_in_quota, self._gain, alone

    def concerns(self, victim_account: Account) -> bool:
        """Return whether the account is another project's, and it and its department hold more than they must keep."""
        if victim_account is self._account or (
            victim_account.quota is not None
            and victim_account.running <= min(victim_account.quota, victim_account.fair_share)
        ):
            return False
        return all(account.running > kept for account, kept, _ in self._kept(victim_account))

    def may_preempt(self, candidate: Candidate) -> bool:
        """Return whether the candidate is in another project, not protected by the minimum run time, and accepted
        alone."""
        is_protected = candidate.is_fresh and not self._is_in_quota
        if is_protected or not self.concerns(candidate.account):
            return False
        return (self._is_plain and candidate.milli_gpus <= self._gain) or self.accepts((candidate,))

    def accepts(self, victims: Collection[Candidate]) -> bool:
        """Return whether these jobs may be stopped together. Every account must hold more than it must keep until its
        largest victim, the last one, is stopped; and no more may be lost within quotas and shares than the waiting
        job gains."""
        taken: dict[int, _Taken] = {}
        for victim in victims:
            for account, kept, is_sibling in self._kept(victim.account):
                entry = taken.setdefault(id(account), _Taken(account, kept, is_sibling))
                # One account may be the sibling for one victim and the project of another; the stricter bound
                # applies.
                entry.kept = max(entry.kept, kept)
                entry.sizes.append(victim.milli_gpus)
        return (
            all(
                # The largest victim is stopped last; before that the account must still hold more than it must
                # keep.
                entry.account.running - (sum(entry.sizes) - max(entry.sizes)) > entry.kept
                for entry in taken.values()
            )
            and self._is_progress(taken.values())
            and self._is_balanced(victims)
        )

    def _is_progress(self, taken: Collection[_Taken]) -> bool:
        """Return whether the victims' projects and departments lose no more within their quotas than the waiting job
        gains there; for a job above its quotas, the same within fair shares."""
        if sum(sum(entry.sizes) for entry in taken if entry.is_sibling) <= self._gain and all(
            account.is_in_quota_with(self._request) for account in self._account.line()
        ):
            # All that is taken is no more than the gain, so no more can be lost within quotas.
            return True
        lost_in_quota = {True: 0, False: 0}
        lost_in_share = 0
        for entry in taken:
            account = entry.account
            lost_in_quota[account.parent is None] += self._lost(account, entry.sizes, account.quota)
            if entry.is_sibling:
                lost_in_share += self._lost(account, entry.sizes, account.entitled)
        tops = (self._account.parent or self._account, self._account)
        for is_top, account in zip((True, False), tops, strict=True):
            gain = self._gain if account.is_in_quota_with(self._request) else 0
            if lost_in_quota[is_top] > gain:
                return False
        return all(account.is_in_quota_with(self._request) for account in tops) or lost_in_share <= self._gain

    def _lost(self, account: Account, sizes: Sequence[int], bound: int | None) -> int:
        key = (account, bound, tuple(sorted(sizes)))
        lost = self._lost_of.get(key)
        if lost is None:
            lost = self._lost_of[key] = _lost(account.sizes, Counter(sizes), bound)
        return lost

    def _kept(self, victim_account: Account) -> tuple[tuple[Account, int, bool], ...]:
        kept = self._kept_of.get(victim_account)
        if kept is None:
            kept = self._kept_of[victim_account] = tuple(self._kept_by(victim_account))
        return kept

    def _kept_by(self, victim_account: Account) -> Iterator[tuple[Account, int, bool]]:
        """Yield (account, milli-GPUs that it must keep, whether it is compared with the waiting job's account), from
        the victim's project upwards. A victim may be stopped only while its account holds more than that."""
        preemptor, sibling = self._siblings(victim_account)
        if sibling is not victim_account:
            yield (
                victim_account,
                victim_account.quota if victim_account.quota is not None else victim_account.running,
                False,
            )
        kept = sibling.entitled if sibling.entitled is not None else sibling.running
        if preemptor.is_in_quota_with(self._request) and sibling.quota is not None:
            kept = min(kept, sibling.quota)
        yield sibling, kept, True

    def _siblings(self, victim_account: Account) -> tuple[Account, Account]:
        """Return the accounts to compare, the waiting job's and the victim's: their departments (or projects without
        one) if these differ, else their projects."""
        preemptor_top, victim_top = (
            self._account.parent or self._account,
            victim_account.parent or victim_account,
        )
        if preemptor_top is not victim_top:
            return preemptor_top, victim_top
        return self._account, victim_account

    def _is_balanced(self, victims: Collection[Candidate]) -> bool:
        """Return whether every victim's account keeps a higher ratio of held GPUs to fair share than the waiting
        job's account gets. Checked only for a job above its fair share."""
        taken: dict[int, tuple[Account, Account, int]] = {}
        for victim in victims:
            preemptor, sibling = self._siblings(victim.account)
            _, _, total = taken.get(id(sibling), (preemptor, sibling, 0))
            taken[id(sibling)] = (preemptor, sibling, total + victim.milli_gpus)
        for preemptor, sibling, total in taken.values():
            mine, its = preemptor.allocated + self._request, sibling.running - total
            # Multiplied instead of divided, since a share may be 0 and quotients are not exact.
            is_richer = mine * sibling.fair_share >= its * preemptor.fair_share
            if mine > preemptor.fair_share and sibling.fair_share > 0 and is_richer:
                return False
        return True


@dataclass(slots=True)
class _Taken:
    """The victims that a set takes from one account: `sizes` in milli-GPUs. `kept`: the account must hold more than
    this before its last victim is stopped. `is_sibling`: the account is compared with the waiting job's."""

    account: Account
    kept: int
    is_sibling: bool
    sizes: list[int] = field(default_factory=list)


def _lost(sizes: Mapping[int, int], taken: Mapping[int, int], bound: int | None) -> int:
    """Return by how many milli-GPUs the best use of `bound` (see `accounts.most_inside`) drops when the taken jobs
    stop. `sizes`, `taken`: number of jobs, by milli-GPUs per job; `bound`: None for unlimited."""
    if bound is None:
        return sum(size * count for size, count in taken.items())
    left = {size: count - taken.get(size, 0) for size, count in sizes.items()}
    left |= {size: -count for size, count in taken.items() if size not in left}
    return most_inside(sizes, bound) - most_inside(left, bound)
