"""The state of one cycle: capacity, accounts, candidates and decisions, modified only by changes that can be
undone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from controlplane.scheduling import reasons
from controlplane.scheduling.accounts import (
    Account,
    AlikeJobs,
    alike,
    book_active,
    divide_cluster,
    open_accounts,
)
from controlplane.scheduling.candidates import Candidates
from controlplane.scheduling.capacity import WHOLE_GPU
from controlplane.scheduling.expected_ends import End, ExpectedEnds
from controlplane.scheduling.fit import Request
from controlplane.scheduling.fragmentation import Gradient, kind_of, popular
from controlplane.scheduling.initial_capacity import open_capacity
from controlplane.scheduling.limits import must_wait_for_limits
from controlplane.scheduling.locality import placed_by_data
from controlplane.scheduling.order import JobClass, Waiting, by_project, requeued_later
from controlplane.scheduling.plan import Preempt, Share, Start
from controlplane.scheduling.reservation import Reservation
from controlplane.scheduling.victims import (
    Candidate,
    Kind,
    VictimPolicy,
    victim_class_of,
)
from controlplane.scheduling.view import ClusterView, JobView, PodPlacement

Promise = tuple[Waiting, tuple[PodPlacement, ...]]


class CycleState:
    """The capacity, accounts, candidates and decisions of one cycle. Every change can be undone: take a `mark`, make
    changes, `roll_back`."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self.capacity = open_capacity(view)
        self.accounts = open_accounts(view)
        self.starts: dict[str, Start] = {}
        self.preempts: dict[str, Preempt] = {}
        self.victims: dict[str, Candidate] = {}
        # By victim, the accounts that lose its capacity to other projects.
        self._reclaimed: dict[str, list[Account]] = {}
        self.promises: dict[str, Promise] = {}
        self.reservation: Reservation | None = None
        # Whether any running job could shrink instead of being stopped: only then is the search for that worth its
        # time.
        self.can_shrink = False
        active = [job for job in view.jobs if job.state == "active"]
        groups = self._alike(active)
        book_active(self.accounts, groups)
        self._is_open = {node.name: node.is_schedulable for node in view.nodes}
        # The milli-GPUs to divide: all on open nodes, and those that jobs still hold on closed ones.
        self.total_milli_gpus = _on_open_nodes(view) + self._on_closed_nodes(active)
        self._every_device = sum(len(node.devices) for node in view.nodes) * WHOLE_GPU
        self._stopping = {job.id: job for job in active if job.is_stopping}
        self.candidates = Candidates(view.now)
        self.jobs = {job.id: job for job in view.jobs}
        # By queued missing worker, the running job that lacks it.
        self._growing = {job.id: job.workers_for for job in view.jobs if job.workers_for}
        self._undo: list[Callable[[], object]] = []
        self.ends = ExpectedEnds()
        for job in active:
            # Asked here too, because often no run time is known of thousands of jobs.
            if job.expected_runtime_seconds is not None:
                self.ends.add(job)
        self._add_candidates(groups)

    def choose_scorer(self) -> None:
        """Select how places are compared: the tightest fit or, if the view asks for it, the least fragmentation for
        the kinds of pods in the view."""
        if self.view.placement == "fragmentation":
            pods = Counter[Request]()
            for job in self.jobs.values():
                pods[kind_of(job)] += job.pods
            mix = popular(pods)
            # If the mix has not changed, keep the old scorer, which has cached the scores of most nodes.
            for room in (self.capacity.now, self.capacity.soon):
                if not (isinstance(room.scorer, Gradient) and room.scorer.mix == mix):
                    room.scorer = Gradient(mix)

    @property
    def depends_on_time(self) -> bool:
        """Whether the same jobs could get another plan at a later time: expected ends are known, a job is within its
        minimum run time, or lost work was compared."""
        # If False, the plan of an unchanged cluster is reused in the next cycle.
        return bool(self.ends or self.candidates.depend_on_time or self.candidates.has_fresh())

    @property
    def withheld_milli_gpus(self) -> int:
        """The milli-GPUs that are free on nodes which accept no pods."""
        return self._every_device - self.total_milli_gpus

    def rewind(self, view: ClusterView) -> None:
        """Undo all changes of the last cycle and continue with `view`. Afterwards the caller passes each job that
        changed to `change`."""
        self.roll_back(0)
        self.reservation = None
        self.view = view
        self.capacity.forget_changes()
        self.candidates.rewind(view.now)
        matured = list(self.candidates.mature(view.now - view.min_runtime_seconds))
        self._add_candidates(self._alike(matured))

    def change(self, before: JobView | None, after: JobView | None) -> None:
        """Replace a job of the view between two cycles. `before`: None for a new job; `after`: None for a job that
        has left."""
        if before is not None:
            del self.jobs[before.id]
            self._growing.pop(before.id, None)
            if before.state == "active":
                self._remove_active(before)
        if after is not None:
            self.jobs[after.id] = after
            if after.workers_for:
                self._growing[after.id] = after.workers_for
            if after.state == "active":
                self._add_active(after)

    def checkpoint(self, job: JobView) -> None:
        """Replace, between two cycles, a running job whose only change is a new checkpoint."""
        self.jobs[job.id] = job
        if self._is_candidate(job):
            self.candidates.checkpoint(job)

    def _add_active(self, job: JobView) -> None:
        groups = self._alike((job,))
        book_active(self.accounts, groups)
        self.total_milli_gpus += self._on_closed_nodes((job,))
        self.ends.add(job)
        self.capacity.start(job, job.placements)
        if job.is_stopping:
            self._stopping[job.id] = job
            self.capacity.stop(job)
        self._add_candidates(groups)

    def _remove_active(self, job: JobView) -> None:
        book_active(self.accounts, self._alike((job,)), -1)
        self.total_milli_gpus -= self._on_closed_nodes((job,))
        self.ends.remove(job)
        if job.is_stopping:
            del self._stopping[job.id]
            self.capacity.stop(job, -1)
        self.capacity.start(job, job.placements, 1)
        if self._is_candidate(job):
            self.candidates.remove_job(job.id)

    def _on_closed_nodes(self, jobs: Iterable[JobView]) -> int:
        closed = [pod for job in jobs for pod in job.placements if not self._is_open.get(pod.node, False)]
        return sum(pod.milli_gpus for pod in closed)

    def divide(self, classes: Sequence[JobClass]) -> tuple[Share, ...]:
        """Set every project's fair share, given the waiting jobs in `classes`. Return one Share per project."""
        waiting = by_project(classes)
        divide_cluster(self.total_milli_gpus, self.accounts, waiting, self.view.usage_weight_milli)
        return tuple(
            Share(item.name, item.fair_share, item.allocated, item.requested)
            for item in self.accounts.values()
        )

    def has_victim(self, policy: VictimPolicy) -> bool:
        """Return whether the policy accepts any candidate as a victim. One candidate of each class is tested."""
        return bool(self.candidates.accepted(policy))

    @property
    def growing(self) -> frozenset[str]:
        """The ids of the running jobs that get missing workers in this plan."""
        return frozenset(
            job for name, job in self._growing.items() if name in self.starts or name in self.promises
        )

    @property
    def is_releasing(self) -> bool:
        """Whether a job is stopping, so that capacity becomes free `soon`."""
        return bool(self._stopping)

    def stopping_for(self, item: Waiting, placements: Sequence[PodPlacement]) -> list[JobView]:
        """Return the stopping jobs that a start with these placements waits for, by submission: those on its devices,
        those on nodes that lack CPUs or memory, and those that count against a limit that the job would exceed."""
        wanted = {(pod.node, index) for pod in placements for index, _ in pod.devices}
        # Host resources are not held by index as devices are, so every job that stops on a node short of them
        # helps.
        short = {pod.node for pod in placements if not self._has_host_capacity(item, pod.node, placements)}
        bound = {account.name for account in item.account.line()} if must_wait_for_limits(item) else set()
        found = (
            job
            for job in self._stopping.values()
            if bound & {account.name for account in self._line(job)}
            or any(
                pod.node in short or any((pod.node, index) in wanted for index, _ in pod.devices)
                for pod in job.placements
            )
        )
        return sorted(found, key=lambda job: (job.submit_rank, job.id))

    def _line(self, job: JobView) -> tuple[Account, ...]:
        account = self.accounts.get(job.project)
        return () if account is None else account.line()

    def _has_host_capacity(self, item: Waiting, name: str, placements: Sequence[PodPlacement]) -> bool:
        """Return whether the node has the CPUs, memory and extra resources for the item's pods on it now. Promised
        ones count as free."""
        return self.capacity.has_host_capacity_now(
            name, item.job, sum(pod.node == name for pod in placements)
        )

    def placements_of(self, item: Waiting) -> tuple[PodPlacement, ...]:
        """Return where a job starts or has a promise in this plan; () for a job that is held."""
        if item.job.id in self.promises:
            return self.promises[item.job.id][1]
        return self.starts[item.job.id].placements if item.job.id in self.starts else ()

    def binding(self, item: Waiting, *, is_idle: bool = False, is_placed: bool = False) -> Reservation | None:
        """Return the reservation if it binds the job, which must not delay it then; None if there is none, the job
        may, or the reserved gang has its place.

        `is_idle`: the capacity is for widening an elastic job beyond the share, which must not delay any
        reservation. `is_placed`: the job starts or has a promise in this plan already.
        """
        delayed = self.delayed_by(item)
        if delayed is None or not delayed.binds(item, is_idle=is_idle, is_placed=is_placed):
            return None
        return delayed

    def delayed_by(self, item: Waiting) -> Reservation | None:
        """Return the reservation if the job, started now, would run beyond the reserved time, even if it may. None if
        not, and once the reserved gang has its place."""
        reservation = self.reservation
        # Once the gang is placed, its own pods hold what was kept for it.
        if (
            reservation is None
            or reservation.item.job.id in self.starts
            or reservation.item.job.id in self.promises
        ):
            return None
        return reservation if reservation.is_delayed_by(item.job) else None

    def expected_ends(self) -> list[End]:
        """Return the expected ends of the jobs that go on running, and of those that this plan starts or promises
        capacity."""
        placed = {name: start.placements for name, start in self.starts.items()}
        placed |= {name: placements for name, (_, placements) in self.promises.items()}
        begun = [replace(self.jobs[name], placements=placements) for name, placements in placed.items()]
        return self.ends.at(self.view.now, self._stopping, begun)

    def uses_reserved_nodes(self, item: Waiting) -> bool:
        """Return whether a job of this plan has pods on a node of the reservation."""
        nodes = {pod.node for pod in self.reservation.placements} if self.reservation is not None else set()
        return any(pod.node in nodes for pod in self.placements_of(item))

    def start(self, item: Waiting, placements: tuple[PodPlacement, ...]) -> None:
        """Add to the plan that the job starts with these placements."""
        job, account = item.job, item.account
        milli_gpus = _milli_gpus(placements)
        self._count_later(job, placements)
        self.capacity.start(job, placements)
        account.start(milli_gpus, job.is_preemptible)
        # Non-preemptible jobs are always within the quota, so they never count as borrowing; without GPUs nothing is
        # borrowed.
        is_in_quota = not job.is_preemptible or not milli_gpus or account.is_in_quota_with(0)
        code = reasons.STARTED_IN_QUOTA if is_in_quota else reasons.STARTED_OVER_QUOTA
        details = {
            "project": account.name,
            "allocated_milli_gpus": account.allocated,
            "quota_milli_gpus": account.quota,
            "fair_share_milli_gpus": account.fair_share,
        }
        if not milli_gpus:
            details["request_milli_gpus"] = 0
        if item.is_elastic:
            details |= {"pods": len(placements), "most_pods": job.pods}
        if job.locations:
            details |= placed_by_data(job, placements, self.capacity.now)
        self.starts[job.id] = Start(job.id, job.project, placements, code, details)
        self._undo.append(lambda: self._unstart(item))

    def _unstart(self, item: Waiting) -> None:
        job, start = item.job, self.starts.pop(item.job.id)
        item.account.start(-_milli_gpus(start.placements), job.is_preemptible)
        self.capacity.start(job, start.placements, 1)
        self._count_later(job, start.placements, 1)

    def _count_later(self, job: JobView, placements: Sequence[PodPlacement], sign: int = -1) -> None:
        # The gang's own capacity was subtracted from the later capacity when the reservation was made, and must not be
        # twice.
        if self.reservation is not None and job.id != self.reservation.item.job.id:
            self.reservation.count(job, placements, sign)

    def promise(self, item: Waiting, placements: tuple[PodPlacement, ...]) -> None:
        """Promise devices to a job, of which stopping jobs may still hold some. No other job gets them in this plan."""
        self._promise(item, placements)
        self._undo.append(lambda: self._unpromise(item))

    def withdraw(self, item: Waiting) -> None:
        """Withdraw the start or the promise of a job of this plan."""
        placements = self.placements_of(item)
        if item.job.id in self.promises:
            self._unpromise(item)
            self._undo.append(lambda: self._promise(item, placements))
        else:
            self._unstart(item)
            self._undo.append(lambda: self.start(item, placements))

    def evict(self, victims: Collection[Candidate], item: Waiting, *, is_for_aged: bool = False) -> None:
        """Stop these jobs so that `item` can start. `is_for_aged`: `item` is an aged gang (ageing.py), which is
        recorded as the kind of the preemption."""
        # Sorted because sets have no order and equal views must give equal plans.
        for victim in sorted(victims, key=lambda one: (one.job.submit_rank, one.job.id)):
            preempt = _preempt(victim, item, self.view, is_for_aged=is_for_aged)
            self._stop(victim, preempt)
            self._undo.append(partial(self._keep, victim))

    def release_reclaimed(self) -> None:
        """Let the accounts that lost GPUs to others use again what that leaves of their limits. Called once the
        victims are final."""
        for victim, losing in self._reclaimed.items():
            for account in losing:
                account.reclaimed -= self.victims[victim].milli_gpus
            losing.clear()

    def reprieve(self, victim: Candidate) -> None:
        """Let a victim of this plan run on: remove its preemption."""
        preempt = self.preempts[victim.job.id]
        self._keep(victim)
        self._undo.append(lambda: self._stop(victim, preempt))

    def assume_started(self) -> None:
        """Count the starts of this cycle as running jobs, as the next cycle will, so that they can be chosen as
        victims."""
        for start in self.starts.values():
            self._assume_started(self.jobs[start.job], start.placements)

    def _assume_started(self, job: JobView, placements: tuple[PodPlacement, ...]) -> None:
        account, milli_gpus = self.accounts[job.project], _milli_gpus(placements)
        candidate = Candidate(job, account, placements, victim_class_of(job, placements, milli_gpus), 0)
        account.run(milli_gpus)
        if job.is_preemptible:
            self._index_candidate(candidate)

        def undo() -> None:
            account.run(milli_gpus, -1)
            if job.is_preemptible:
                self._remove_candidate(candidate)

        self._undo.append(undo)

    def mark(self) -> int:
        """Return the present position in the list of changes, for `roll_back`."""
        return len(self._undo)

    def roll_back(self, mark: int) -> None:
        """Undo every change that was made since `mark` was taken, the last one first."""
        moves = self._undo[mark:]
        del self._undo[mark:]
        for undo in reversed(moves):
            undo()
        # Undoing a change records an undo step of its own, which must not be kept.
        del self._undo[mark:]

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Context manager: every change made inside is undone on exit."""
        mark = self.mark()
        yield
        self.roll_back(mark)

    def record_preempts(self) -> tuple[Preempt, ...]:
        """Return the preemptions. `roll_back` restores them, in this order, whatever `attribute` changes."""
        before = dict(self.preempts)
        self._undo.append(lambda: self._restore_preempts(before))
        return tuple(before.values())

    def _restore_preempts(self, before: dict[str, Preempt]) -> None:
        self.preempts = before

    def attribute(self, victim: Candidate, item: Waiting) -> None:
        """Make the job the beneficiary of a victim. Call `record_preempts` before."""
        self.preempts[victim.job.id] = _preempt(victim, item, self.view)

    def _promise(self, item: Waiting, placements: tuple[PodPlacement, ...]) -> None:
        self.capacity.promise(item.job, placements)
        self._count_later(item.job, placements)
        item.account.promise(_milli_gpus(placements), item.job.is_preemptible)
        self.promises[item.job.id] = (item, placements)

    def _unpromise(self, item: Waiting) -> None:
        _, placements = self.promises.pop(item.job.id)
        item.account.promise(-_milli_gpus(placements), item.job.is_preemptible)
        self.capacity.promise(item.job, placements, 1)
        self._count_later(item.job, placements, 1)

    def _stop(self, victim: Candidate, preempt: Preempt) -> None:
        self._remove_candidate(victim)
        self.capacity.stop(victim.job)
        victim.account.stop(victim.milli_gpus)
        self._stopping[victim.job.id] = victim.job
        self.victims[victim.job.id] = victim
        self.preempts[victim.job.id] = preempt
        gaining = self.accounts[preempt.beneficiary_project].line()
        # Accounts above both projects, such as a common department, lose nothing.
        losing = self._reclaimed[victim.job.id] = [one for one in victim.account.line() if one not in gaining]
        for account in losing:
            account.reclaimed += victim.milli_gpus

    def _keep(self, victim: Candidate) -> None:
        del self.preempts[victim.job.id], self.victims[victim.job.id], self._stopping[victim.job.id]
        victim.account.keep(victim.milli_gpus)
        for account in self._reclaimed.pop(victim.job.id):
            account.reclaimed -= victim.milli_gpus
        self.capacity.stop(victim.job, -1)
        self._index_candidate(victim)

    def _alike(self, active: Iterable[JobView]) -> list[AlikeJobs]:
        return alike(active, self.view.now - self.view.min_runtime_seconds)

    def _add_candidates(self, groups: Iterable[AlikeJobs]) -> None:
        """Add those of these active jobs that could be stopped, before the first search of a cycle."""
        for group in groups:
            if self._is_candidate(group.jobs[0]):
                self.can_shrink = self.can_shrink or group.can_shrink
                self.candidates.add_jobs(self.accounts[group.project], group)

    def _is_candidate(self, job: JobView) -> bool:
        return job.is_preemptible and not job.is_stopping and job.project in self.accounts

    def _index_candidate(self, candidate: Candidate) -> None:
        self.can_shrink = self.can_shrink or candidate.can_shrink
        self.candidates.add(candidate)
        for name in candidate.nodes:
            self.capacity.soon.touch(name)

    def _remove_candidate(self, candidate: Candidate) -> None:
        self.candidates.remove(candidate)
        for name in candidate.nodes:
            self.capacity.soon.touch(name)


def _preempt(victim: Candidate, item: Waiting, view: ClusterView, *, is_for_aged: bool = False) -> Preempt:
    losing, gaining = victim.account, item.account
    kind: Kind = "ageing" if is_for_aged else "preempt" if losing is gaining else "reclaim"
    details = {
        "by_job": item.job.workers_for or item.job.id,
        "by_name": item.job.label,
        "by_project": gaining.name,
        "kind": kind,
        "milli_gpus": victim.milli_gpus,
        "allocated_milli_gpus": losing.allocated,
        "fair_share_milli_gpus": losing.fair_share,
        "quota_milli_gpus": losing.quota,
        **requeued_later(view),
    }
    return Preempt(
        victim.job.id, victim.job.project, item.job.id, gaining.name, kind, reasons.PREEMPTED, details
    )


def _milli_gpus(placements: Sequence[PodPlacement]) -> int:
    return sum([pod.milli_gpus for pod in placements])


def _on_open_nodes(view: ClusterView) -> int:
    return WHOLE_GPU * sum(len(node.devices) for node in view.nodes if node.is_schedulable)
