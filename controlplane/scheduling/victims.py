"""Who has to make room: candidates, what taking them costs, and the gates of reclaim and preemption.

Smallest preemption_cost means: fewest jobs; then fewest milli-GPUs taken; then least work lost since the last checkpoint; then
newest. `search` finds the set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Literal, Protocol

from controlplane.scheduling.order import Waiting
from controlplane.scheduling.accounts import Account
from controlplane.scheduling.view import JobView, PodPlacement

VictimClass = tuple[str, int, int, bool]
"""(project, milli-GPUs, priority, whether it can shrink): a gate judges single candidates of one kin alike."""
Kind = Literal["reclaim", "preempt"]
Cost = tuple[int, int, int, tuple[int, ...], tuple[str, ...]]


class Candidate:
    """A job that could be stopped. `weight` is 0 for one that this very cycle started: nothing runs yet.

    `work_lost` is milli-GPU-seconds since its last checkpoint, or since it started. `kin` is what gates judge by.
    """

    __slots__ = ("_devices", "account", "job", "kin", "milli_gpus", "placements", "weight", "work_lost")

    def __init__(
        self,
        job: JobView,
        account: Account,
        placements: tuple[PodPlacement, ...],
        milli_gpus: int,
        work_lost: int,
        weight: int = 1,
    ) -> None:
        self.job = job
        self.account = account
        self.placements = placements
        self.milli_gpus = milli_gpus
        self.work_lost = work_lost
        self.weight = weight
        self.kin = victim_class(job, account, placements, milli_gpus)
        self._devices: dict[str, tuple[tuple[int, int], ...]] = {}
        for placement in placements:
            known = self._devices.get(placement.node, ())
            self._devices[placement.node] = known + placement.devices

    def on_node(self, name: str) -> tuple[tuple[int, int], ...]:
        """((device index, milli-GPUs), ...) that it holds on one node, over all its pods there."""
        return self._devices.get(name, ())

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes that it stands on, sorted."""
        return sorted(self._devices)

    @property
    def can_shrink(self) -> bool:
        """Whether it is elastic and runs with more pods than it must have: after its end it can go on smaller."""
        return self.kin[3]


def victim_class(job: JobView, account: Account, placements: tuple[PodPlacement, ...], milli_gpus: int) -> VictimClass:
    """What gates judge a candidate by."""
    can_shrink = job.min_pods is not None and len(placements) > job.min_pods
    return (account.name, milli_gpus, job.priority, can_shrink)


def work_lost(job: JobView, milli_gpus: int, now: int) -> int:
    """Milli-GPU-seconds of work that are gone if the job is stopped at this moment."""
    if job.started_at is None:
        return 0
    return milli_gpus * max(0, now - max(job.started_at, job.last_checkpoint_at or 0))


def preemption_cost(victims: Iterable[Candidate]) -> Cost:
    """What a set costs; smaller is better. Newer jobs go first; ids decide between equals."""
    real = [victim for victim in victims if victim.weight]
    return (
        len(real),
        sum(victim.milli_gpus for victim in real),
        sum(victim.work_lost for victim in real),
        tuple(sorted(-victim.job.submit_rank for victim in real)),
        tuple(sorted(victim.job.id for victim in victims)),
    )


class VictimPolicy(Protocol):
    """Who may be taken for one job. `accepts` is monotone: what it refuses, it refuses with more added."""

    @property
    def kind(self) -> Kind:
        """What taking these jobs is called."""
        ...

    def may_give(self, candidate: Candidate) -> bool:
        """Whether this job could be a victim by itself."""
        ...

    def accepts(self, victims: Collection[Candidate]) -> bool:
        """Whether this set may be taken together."""
        ...


class PreemptPolicy:
    """Inside one project: preemptible jobs of strictly lower priority."""

    kind: Kind = "preempt"

    def __init__(self, item: Waiting) -> None:
        self._project = item.account
        self._priority = item.job.priority

    def may_give(self, candidate: Candidate) -> bool:
        """Same project, lower priority."""
        return candidate.account is self._project and candidate.job.priority < self._priority

    def accepts(self, victims: Collection[Candidate]) -> bool:
        """Any of them: no fairness is involved."""
        return True


class ReclaimPolicy:
    """Between projects: only from those above what they are owed, one job at a time.

    Two siblings are compared: the first accounts at which the taker's line and the giver's differ. Before each
    job is taken, the giver must still hold more than its entitlement, or more than its quota when the taker
    stays inside its own. So the last job may carry it below, and none is taken after that. Below the sibling,
    every account of the giver's line must hold more than its quota: a project in quota never loses a GPU.
    """

    kind: Kind = "reclaim"

    def __init__(self, item: Waiting) -> None:
        self._account = item.account
        self._request = item.milli_gpus

    def is_open(self) -> bool:
        """Whether the job may reclaim at all: with it, its project is within its fair share."""
        return self._request > 0 and self._account.allocated + self._request <= self._account.fair_share

    def may_give(self, candidate: Candidate) -> bool:
        """Another project, and every account on the way holds more than it must keep."""
        return candidate.account is not self._account and self.accepts((candidate,))

    def accepts(self, victims: Collection[Candidate]) -> bool:
        """Whether the jobs can be taken one after another, in the order that is kindest to the giver."""
        taken: dict[int, tuple[Account, int, int, int]] = {}
        for victim in victims:
            for account, kept in self._kept(victim.account):
                _, least, total, largest = taken.get(id(account), (account, kept, 0, 0))
                total, largest = total + victim.milli_gpus, max(largest, victim.milli_gpus)
                taken[id(account)] = (account, max(least, kept), total, largest)
        return all(
            account.occupied - (total - largest) > kept for account, kept, total, largest in taken.values()
        ) and self._is_balanced(victims)

    def _kept(self, giver: Account) -> Iterator[tuple[Account, int]]:
        """(account, what it must hold more than), from the giver's project up to the sibling."""
        taker, sibling = self._siblings(giver)
        if sibling is not giver:
            yield giver, giver.quota if giver.quota is not None else giver.occupied
        entitled = sibling.entitled if sibling.entitled is not None else sibling.occupied
        is_in_quota = taker.quota is None or taker.allocated + self._request <= taker.quota
        if is_in_quota and sibling.quota is not None:
            entitled = min(entitled, sibling.quota)
        yield sibling, entitled

    def _siblings(self, giver: Account) -> tuple[Account, Account]:
        """The first accounts, from the top, at which the two lines differ."""
        taker_top, giver_top = self._account.parent or self._account, giver.parent or giver
        if taker_top is not giver_top:
            return taker_top, giver_top
        return self._account, giver

    def _is_balanced(self, victims: Collection[Candidate]) -> bool:
        """A taker above its share must not end up relatively richer than a sibling that it took from."""
        taken: dict[int, tuple[Account, Account, int]] = {}
        for victim in victims:
            taker, sibling = self._siblings(victim.account)
            _, _, total = taken.get(id(sibling), (taker, sibling, 0))
            taken[id(sibling)] = (taker, sibling, total + victim.milli_gpus)
        for taker, sibling, total in taken.values():
            mine, its = taker.allocated + self._request, sibling.occupied - total
            is_richer = mine * sibling.fair_share >= its * taker.fair_share
            if mine > taker.fair_share and sibling.fair_share > 0 and is_richer:
                return False
        return True
