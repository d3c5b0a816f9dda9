"""The board on which one cycle is played: ledger, accounts, candidates, and the moves made so far."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from controlplane.scheduling import reasons
from controlplane.scheduling.capacity import WHOLE_GPU, open_ledger
from controlplane.scheduling.order import Waiting, by_project
from controlplane.scheduling.plan import Preempt, Share, Start
from controlplane.scheduling.accounts import book_active, divide_cluster, open_accounts
from controlplane.scheduling.victims import (
    Candidate,
    VictimPolicy,
    VictimClass,
    Kind,
    PreemptPolicy,
    ReclaimPolicy,
    victim_class,
    work_lost,
)
from controlplane.scheduling.view import ClusterView, JobView, PodPlacement

Promise = tuple[Waiting, tuple[PodPlacement, ...]]


class Board:
    """What a cycle may change, with every move kept consistent: devices, accounts, candidates, decisions."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self.ledger = open_ledger(view)
        self.accounts = open_accounts(view)
        self.starts: dict[str, Start] = {}
        self.preempts: dict[str, Preempt] = {}
        self.victims: dict[str, Candidate] = {}
        self.promises: dict[str, Promise] = {}
        self.evictions = 0
        self.can_shrink = False  # whether any candidate could
        active = [job for job in view.jobs if job.state == "active"]
        book_active(self.accounts, active)
        self.total_milli_gpus = _total_milli_gpus(view, active)
        every_device = sum(len(node.devices) for node in view.nodes) * WHOLE_GPU
        self.withheld_milli_gpus = (
            every_device - self.total_milli_gpus
        )  # free, but on nodes that take no work
        self._stopping = {job.id: job for job in active if job.is_stopping}
        self._by_node: dict[str, list[Candidate]] = {}
        self._kins: dict[VictimClass, dict[str, Candidate]] = {}
        for job in sorted(active, key=lambda job: job.id):
            self._add_candidate(job, job.placements, weight=1)

    def divide(self, eligible: Sequence[Waiting]) -> tuple[Share, ...]:
        """Work out the fair shares, given who waits for what. The answer is the standing of every project."""
        waiting = by_project(eligible)
        divide_cluster(self.total_milli_gpus, self.accounts, waiting, self.view.usage_weight_milli)
        return tuple(
            Share(item.name, item.fair_share, item.allocated, item.requested)
            for item in self.accounts.values()
        )

    @property
    def candidates(self) -> Mapping[str, Sequence[Candidate]]:
        """Under the name of each node, the preemptible jobs that stand on it and were not told to stop."""
        return self._by_node

    def has_giver(self, gate: VictimPolicy) -> bool:
        """Whether anyone at all could be taken: one candidate of each kin is asked."""
        return any(gate.may_give(next(iter(kin.values()))) for kin in self._kins.values() if kin)

    @property
    def is_releasing(self) -> bool:
        """Whether any room is on its way."""
        return bool(self._stopping)

    def stopping_on(self, placements: Sequence[PodPlacement]) -> list[JobView]:
        """Return the stopping jobs on the devices where these pods are to go, in order of id."""
        wanted = {(pod.node, index) for pod in placements for index, _ in pod.devices}
        found = (
            job
            for job in self._stopping.values()
            if any((pod.node, index) in wanted for pod in job.placements for index, _ in pod.devices)
        )
        return sorted(found, key=lambda job: job.id)

    def start(self, item: Waiting, placements: tuple[PodPlacement, ...]) -> None:
        """The job starts here, now."""
        job, account = item.job, item.account
        self.ledger.start(job, placements)
        account.add(_milli_gpus(placements), job.is_preemptible)
        # what cannot be taken back is always inside the quota: it is the others that borrow
        is_in_quota = not job.is_preemptible or account.quota is None or account.allocated <= account.quota
        code = reasons.STARTED_IN_QUOTA if is_in_quota else reasons.STARTED_OVER_QUOTA
        details = {
            "project": account.name,
            "allocated_milli_gpus": account.allocated,
            "quota_milli_gpus": account.quota,
            "fair_share_milli_gpus": account.fair_share,
        }
        if item.is_elastic:
            details |= {"pods": len(placements), "most_pods": job.pods}
        self.starts[job.id] = Start(job.id, job.project, placements, code, details)
        self._add_candidate(job, placements, weight=0)

    def unstart(self, item: Waiting) -> None:
        """Undo `start`."""
        placements = self.starts.pop(item.job.id).placements
        if item.job.is_preemptible:
            kin = victim_class(item.job, item.account, placements, _milli_gpus(placements))
            self._forget_candidate(self._kins[kin][item.job.id])
        self.ledger.cancel(item.job, placements)
        item.account.add(-_milli_gpus(placements), item.job.is_preemptible)

    def promise(self, item: Waiting, placements: tuple[PodPlacement, ...]) -> None:
        """FreeCapacity that is partly still being freed is kept for the job."""
        self.ledger.promise(item.job, placements)
        item.account.add_promised(_milli_gpus(placements), item.job.is_preemptible)
        self.promises[item.job.id] = (item, placements)

    def release(self, item: Waiting) -> None:
        """Give up the promise to one job, because it can start elsewhere. What was free now stays kept."""
        _, placements = self.promises.pop(item.job.id)
        for placement in placements:
            self.ledger.soon.give(placement, item.job)
        item.account.add_promised(-_milli_gpus(placements), item.job.is_preemptible)

    def withdraw_promises(self) -> list[Promise]:
        """Undo every promise of this cycle; the answer is what they were, in order."""
        withdrawn = list(self.promises.values())
        self.promises.clear()
        self.ledger.forget_promises((item.job, placements) for item, placements in withdrawn)
        for item, placements in withdrawn:
            item.account.add_promised(-_milli_gpus(placements), item.job.is_preemptible)
        return withdrawn

    def evict(self, victims: Collection[Candidate], item: Waiting, kind: Kind) -> None:
        """Tell these jobs to go for the sake of `item`. One that this cycle started simply does not start."""
        self.evictions += len(victims)
        for victim in sorted(victims, key=lambda victim: victim.job.id):
            if victim.weight == 0:
                self.unstart(Waiting(victim.job, victim.account, item.request, victim.milli_gpus))
                continue
            self._forget_candidate(victim)
            self._stop(victim, item, kind)

    def spare(self, victim: str) -> tuple[Candidate, Preempt]:
        """Take back an eviction of this cycle; `evict_again` undoes it."""
        candidate, preempt = self.victims.pop(victim), self.preempts.pop(victim)
        self.ledger.stay(candidate.job)
        candidate.account.mark_stopping(-candidate.milli_gpus)
        del self._stopping[victim]
        self._note_candidate(candidate)
        return candidate, preempt

    def evict_again(self, candidate: Candidate, preempt: Preempt) -> None:
        """Undo `spare`: the job has to go after all."""
        self._forget_candidate(candidate)
        self._note_stopping(candidate, preempt)

    def _stop(self, victim: Candidate, item: Waiting, kind: Kind) -> None:
        giver, taker = victim.account, item.account
        details = {
            **_taker(item),
            "kind": kind,
            "milli_gpus": victim.milli_gpus,
            "allocated_milli_gpus": giver.allocated,
            "fair_share_milli_gpus": giver.fair_share,
            "quota_milli_gpus": giver.quota,
        }
        preempt = Preempt(
            victim.job.id, victim.job.project, item.job.id, taker.name, kind, reasons.PREEMPTED, details
        )
        self._note_stopping(victim, preempt)

    def attribute_preempts(self) -> bool:
        """After sparing, name as beneficiary who now gets the room. False when nobody who does may take it."""
        for preempt in list(self.preempts.values()):
            if preempt.beneficiary not in self.promises and not self._attribute(preempt):
                return False
        return True

    def _attribute(self, preempt: Preempt) -> bool:
        victim = self.victims[preempt.job]
        for item, placements in self.promises.values():
            stopping = {job.id for job in self.stopping_on(placements)}
            if preempt.job in stopping and self._may_take(item, victim):
                kind: Kind = "preempt" if item.account is victim.account else "reclaim"
                details = {**preempt.details, **_taker(item), "kind": kind}
                self.preempts[preempt.job] = Preempt(
                    preempt.job,
                    preempt.project,
                    item.job.id,
                    item.account.name,
                    kind,
                    preempt.reason,
                    details,
                )
                return True
        return False

    def _may_take(self, item: Waiting, victim: Candidate) -> bool:
        """Whether the promised job may take this victim with those it has, judged as before any of it."""
        if item.account is victim.account:
            return PreemptPolicy(item).may_give(victim)
        mine = [
            one.job
            for one in self.preempts.values()
            if one.beneficiary == item.job.id and one.kind == "reclaim"
        ]
        taken = [victim, *(self.victims[name] for name in mine)]
        held = _milli_gpus(self.promises[item.job.id][1])
        item.account.add_promised(-held, item.job.is_preemptible)
        for one in taken:
            one.account.mark_stopping(-one.milli_gpus)
        gate = ReclaimPolicy(item)
        is_allowed = gate.is_open() and gate.accepts(taken)
        for one in taken:
            one.account.mark_stopping(one.milli_gpus)
        item.account.add_promised(held, item.job.is_preemptible)
        return is_allowed

    def _note_stopping(self, victim: Candidate, preempt: Preempt) -> None:
        self.ledger.stop(victim.job)
        victim.account.mark_stopping(victim.milli_gpus)
        self._stopping[victim.job.id] = victim.job
        self.victims[victim.job.id] = victim
        self.preempts[victim.job.id] = preempt

    def _add_candidate(self, job: JobView, placements: tuple[PodPlacement, ...], weight: int) -> None:
        account = self.accounts.get(job.project)
        if account is None or job.is_stopping or not job.is_preemptible:
            return
        milli_gpus = _milli_gpus(placements)
        lost = work_lost(job, milli_gpus, self.view.now) if weight else 0
        self._note_candidate(Candidate(job, account, placements, milli_gpus, lost, weight))

    def _note_candidate(self, candidate: Candidate) -> None:
        self.can_shrink = self.can_shrink or candidate.can_shrink
        for name in candidate.nodes:
            self._by_node.setdefault(name, []).append(candidate)
        self._kins.setdefault(candidate.kin, {})[candidate.job.id] = candidate

    def _forget_candidate(self, candidate: Candidate) -> None:
        for name in candidate.nodes:
            self._by_node[name].remove(candidate)
        del self._kins[candidate.kin][candidate.job.id]


def _taker(item: Waiting) -> dict[str, str]:
    return {"by_job": item.job.id, "by_name": item.job.label, "by_project": item.account.name}


def _milli_gpus(placements: Sequence[PodPlacement]) -> int:
    return sum(pod.milli_gpus for pod in placements)


def _total_milli_gpus(view: ClusterView, active: Sequence[JobView]) -> int:
    """What there is to share: open nodes, and on closed ones what their jobs still hold."""
    is_open = {node.name: node.is_schedulable for node in view.nodes}
    on_closed = sum(
        pod.milli_gpus for job in active for pod in job.placements if not is_open.get(pod.node, False)
    )
    return on_closed + WHOLE_GPU * sum(len(node.devices) for node in view.nodes if node.is_schedulable)
