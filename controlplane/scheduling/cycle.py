"""One cycle of deciding: `decide(view) -> Plan`. The same view always gives the same plan.

Read `decide` from top to bottom. The rules behind each phase: README.md.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import nullcontext

from controlplane.scheduling.cycle_state import CycleState
from controlplane.scheduling.elastic import ShrinkPolicy, as_promised, can_go_on, most_pods, widest
from controlplane.scheduling.explain import Holds
from controlplane.scheduling.feasibility import QueuedJobs
from controlplane.scheduling.fit import Request, is_free, place
from controlplane.scheduling.givers import (
    could_reclaim,
    leave_nothing,
    on_open,
    pools_of,
    spare_milli_gpus,
    victims_beside,
)
from controlplane.scheduling.limits import (
    is_backing_off,
    is_bound,
    not_ready,
    over_limit,
    over_quota,
    postponed,
)
from controlplane.scheduling.order import Cause, JobClass, QueueIterator, Waiting
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.reservation import Reservation, reserve
from controlplane.scheduling.search import find_victims
from controlplane.scheduling.together import MAX_JOBS, serve_together
from controlplane.scheduling.victims import (
    Candidate,
    Kind,
    PreemptPolicy,
    ReclaimPolicy,
    VictimPolicy,
    cost_of_one,
)
from controlplane.scheduling.view import ClusterView, JobView, PodPlacement


def decide(view: ClusterView) -> Plan:
    """Decide what to start, stop and hold on this cluster now, each with its reason and the numbers
    compared."""
    state = CycleState(view)
    return decide_on(state, QueuedJobs(view, state.accounts))


def decide_on(state: CycleState, queued: QueuedJobs) -> Plan:
    """Run one cycle over this state; `state.rewind` undoes it."""
    state.choose_scorer()
    cycle = _Cycle(state, queued)
    cycle.redeem_promises()
    cycle.reserve_for_oldest()
    cycle.serve_in_share()
    cycle.widen_in_share()
    cycle.serve_idle()
    if cycle.start_promised_elsewhere():
        cycle.serve_idle(may_stop=False)
    if cycle.reprieve_needless() or state.preempts:
        # Jobs of the plan may have moved to other places, and what they left is idle; the victims are final.
        state.forget_reclaimed()
        cycle.serve_idle(may_stop=False)
    cycle.widen_on_idle()
    return cycle.plan()


class _Cycle:
    """The phases of a cycle over one state."""

    def __init__(self, state: CycleState, queued: QueuedJobs) -> None:
        self._view = state.view
        self._state = state
        self._classes, self._impossible = queued.classes(), queued.impossible()
        # those that may be tried now; the others are only explained
        self._ready = [one for one in self._classes if self._is_ready(one)]
        self._no_room: set[tuple[Request, bool, bool]] = set()
        # failed searches for victims, with the number of changes of capacity before them
        self._no_victims: dict[Hashable, int] = {}
        # the lowest priority that runs in each project
        self._lowest = self._state.candidates.lowest_priorities()
        self._elastic = [one.waiting(job) for one in self._ready if one.head.is_elastic for job in one.jobs]
        asking = [one for one in self._classes if not_ready(one.jobs[0]) is None]
        self._shares = self._state.divide(asking)

    # Phase 1: capacity that an earlier cycle freed for a job belongs to that job.

    def redeem_promises(self) -> None:
        """Start jobs on capacity that an earlier cycle reserved for them, or renew the reservation.

        Capacity that was only about to become free is not guaranteed: a job entitled to more may have arrived
        since.
        """
        state = self._state
        promised = [one for one in self._ready if one.jobs[0].promised]
        beneficiaries = {job.was_preempted_by for job in self._view.jobs} if promised else set()
        for one in promised:
            item = one.head
            owed = as_promised(item)
            if owed is None or self._is_refused(owed):
                continue
            if item.job.id not in beneficiaries and not owed.is_in_share:
                continue
            if is_free(item.job.promised, item.job, state.capacity.now) and not is_bound(owed):
                state.start(item, item.job.promised)
                one.at += 1
            elif is_free(item.job.promised, item.job, state.capacity.soon):
                state.promise(item, item.job.promised)
                one.at += 1

    def start_promised_elsewhere(self) -> bool:
        """Start jobs with a reservation at once where other capacity is free after all turns. Return whether
        there was one."""
        before = list(self._state.promises.values())
        for item, placements in before:
            self._start_elsewhere(item, placements)
        return len(self._state.promises) < len(before)

    def _start_elsewhere(self, item: Waiting, placements: tuple[PodPlacement, ...]) -> None:
        mark = self._state.mark()
        self._state.release(item)
        self._no_room.clear()
        if not self._start_now(item.of(len(placements))):
            self._state.roll_back(mark)
        self._no_room.clear()

    # The oldest gang that cannot start gets a time and a place; jobs that would delay it are bound by that.

    def reserve_for_oldest(self) -> None:
        """Reserve for the oldest gang that has no room, if the ends of running jobs are expected."""
        state = self._state
        if not state.expected:
            return
        heads = [one.head for one in self._classes if one.at < len(one.jobs) and one.head.is_gang]
        heads = [item for item in heads if self._may_reserve(item.job)]
        heads.sort(key=lambda item: (item.job.submit_rank, item.job.id))
        waiting = (
            item
            for item in heads
            if not self._is_refused(item)
            and (is_backing_off(item.job, self._view.now) or not self._fits(item))
        )
        state.reservation = reserve(waiting, state.running(), state.capacity.soon, self._view.now)

    def _may_reserve(self, job: JobView) -> bool:
        """Return whether a gang is ready, or only backs off: a start that failed does not cost it its place."""
        is_prevented = postponed(job, self._view) is not None and not is_backing_off(job, self._view.now)
        return not_ready(job) is None and not is_prevented

    def _fits(self, item: Waiting) -> bool:
        return self._find(item, is_soon=False) is not None or self._find(item, is_soon=True) is not None

    def _is_kept_back(self, item: Waiting) -> bool:
        return self._state.binding(item) is not None

    # Phase 2: jobs inside their project's share, in turn: on free capacity, else on capacity that is being freed,
    # else on capacity taken from jobs that ran before this cycle.

    def serve_in_share(self) -> None:
        """Serve every job with which its project stays inside its fair share. Jobs started here are not
        stopped in this cycle."""
        queue = QueueIterator(self._ready, self._is_owed)
        while (one := queue.take()) is not None:
            item = one.head
            if not self._is_owed(one):
                queue.close()
            elif item.is_in_share and self._serve(item):
                one.at += 1
                queue.put_back()
            elif (victims := self._make_room(item)) is not None:
                one.at += 1
                queue.put_back()
                self._reopen(queue, item, victims)
            else:
                queue.close((item.request, ReclaimPolicy(item).signature, self._is_kept_back(item)))

    def _is_owed(self, one: JobClass) -> bool:
        """Return whether the next job of a class is inside its project's share, or can be by replacing other
        jobs."""
        item = one.head
        return not self._is_refused(item) and (item.is_in_share or self._could_swap(item))

    # Phase 3: what is left idle goes to every other job, in turn.

    def serve_idle(self, *, may_stop: bool = True) -> None:
        """Serve jobs that borrow. They stop only jobs of lower priority in their own project, with `may_stop`."""
        queue = QueueIterator(self._ready)
        while (one := queue.take()) is not None:
            item = one.head
            if self._is_refused(item):
                queue.close()
            elif self._serve(item):
                one.at += 1
                queue.put_back()
            elif may_stop and (victims := self._preempt(item)) is not None:
                one.at += 1
                queue.put_back()
                self._reopen(queue, item, victims)
            else:
                queue.close((item.request, None, self._is_kept_back(item)))

    def _reopen(self, queue: QueueIterator, taker: Waiting, victims: frozenset[Candidate]) -> None:
        """Take in again the classes that a reclaim gave a chance: those of the givers, which hold less now, and,
        where the victims leave capacity, those that had no room. One of each kind of request is tried."""
        is_more = not leave_nothing(taker, victims)
        has_room: dict[Hashable, bool] = {}

        def is_over(one: JobClass, cause: Cause) -> bool:
            if not is_more:
                return False
            if self._is_above_lowest(one.head):
                return True
            if cause is not None and cause not in has_room:
                has_room[cause] = self._has_room(one.head, may_reclaim=cause[1] is not None)
            return cause is not None and has_room[cause]

        queue.reopen({victim.account for victim in victims}, is_over)

    def _has_room(self, item: Waiting, *, may_reclaim: bool) -> bool:
        """Return whether the request fits soon, or could take what it lacks."""
        if self._find(item, is_soon=True) is not None:
            return True
        return may_reclaim and self._find_victims(item, ReclaimPolicy(item)) is not None

    # Phase 4: each set of victims is the least for one job; together they may be too many.

    def reprieve_needless(self) -> bool:
        """Keep running every victim whose capacity the jobs of this plan, taken together, do not need. Return whether
        there was one."""
        before, is_changed = len(self._state.victims), True
        while is_changed:
            pools = pools_of([*self._started(), *(item for item, _ in self._state.promises.values())])
            spare = spare_milli_gpus(self._state, self._elastic, pools)
            victims = sorted(self._state.victims.values(), key=cost_of_one, reverse=True)
            is_changed = any(
                on_open(self._state, victim, pools) <= spare and self._reprieve(victim) for victim in victims
            )
        return len(self._state.victims) < before

    def _started(self) -> list[Waiting]:
        state = self._state
        return [item for one in self._ready for item in one.decided() if item.job.id in state.starts]

    def _reprieve(self, victim: Candidate) -> bool:
        """Keep the victim if all jobs of this plan fit without its capacity, elsewhere if necessary."""
        state, mark = self._state, self._state.mark()
        promised = [item for item, _ in state.promises.values()]
        started = self._started()
        beside = {
            item.job.id
            for item in (*started, *promised)
            if state.binding(item, is_placed=True) and not state.is_in_gap(item)
        }
        are_few = len(promised) + len(started) <= MAX_JOBS
        for item in promised:
            state.release(item)
        for item in started if are_few else ():
            state.unstart(item)
        state.reprieve(victim)
        self._forget()
        if are_few:
            is_served = serve_together(state, started, promised, beside)
        else:
            is_served = all(self._serve(item) for item in promised)
        self._forget()
        if is_served and state.attribute_preempts():
            self.widen_in_share()
            return True
        state.roll_back(mark)
        return False

    # Elastic jobs are served as gangs of their fewest pods, so that no job is stopped for more. Then they grow.

    def widen_in_share(self) -> None:
        """Give the elastic jobs of this plan as many pods as fit and no other project can reclaim."""
        for item in self._elastic:
            if self._state.placements_of(item):
                self._widen(item, is_sure=True)

    def widen_on_idle(self) -> None:
        """Give the starting elastic jobs what is left, unless a waiting job could reclaim it.

        A job that starts on capacity freed for it does not grow beyond its share while others are stopping:
        their jobs may still be given that capacity.
        """
        state = self._state
        starting = [item for item in self._elastic if item.job.id in state.starts]
        starting = [item for item in starting if not (item.job.promised and state.is_releasing)]
        mark = state.mark()
        for item in starting:
            self._widen(item, is_sure=False)
        if starting and self._could_be_taken_back():
            state.roll_back(mark)

    def _could_be_taken_back(self) -> bool:
        """Return whether a waiting job could take capacity from others once the plan is executed."""
        waiting = [one.head for one in self._ready if one.at < len(one.jobs)]
        mark = self._state.mark()
        self._state.assume_started()
        is_possible = any(not self._is_refused(item) and could_reclaim(self._state, item) for item in waiting)
        self._state.roll_back(mark)
        return is_possible

    # The moves of the phases.

    def _is_refused(self, item: Waiting) -> bool:
        return over_limit(item) is not None or over_quota(item) is not None

    def _serve(self, item: Waiting) -> bool:
        """Start the job on free capacity, or reserve capacity that is about to become free."""
        return self._start_now(item) or self._keep_room(item)

    def _start_now(self, item: Waiting) -> bool:
        if is_bound(item):
            return False
        placements = self._find(item, is_soon=False)
        if placements is None:
            return False
        self._state.start(item, placements)
        return True

    def _keep_room(self, item: Waiting) -> bool:
        """Reserve capacity that is about to become free: at the place of an earlier reservation, else
        anywhere."""
        if not self._state.is_releasing:
            return False
        promised = item.job.promised
        placements = promised if self._keeps_promise(item) else self._find(item, is_soon=True)
        if placements is None:
            return False
        self._state.promise(item, placements)
        return True

    def _keeps_promise(self, item: Waiting) -> bool:
        """Return whether the capacity reserved for the job is still there."""
        job = item.job
        if not job.promised or not is_free(job.promised, job, self._state.capacity.soon):
            return False
        owed = as_promised(item)
        return owed is item or (owed is not None and not self._is_refused(owed))

    def _find(self, item: Waiting, *, is_soon: bool) -> tuple[PodPlacement, ...] | None:
        """Return where the job fits: beside what is kept for a gang, else there if the job is not bound. Requests that
        do not fit are remembered: capacity only shrinks until a job is stopped."""
        state = self._state
        is_bound_by_gang = state.binding(item) is not None
        reservation = state.delayed_by(item)
        found = None if reservation is None else self._find_in(item, reservation, is_soon=is_soon)
        return found if found is not None or is_bound_by_gang else self._find_in(item, None, is_soon=is_soon)

    def _find_in(
        self, item: Waiting, reservation: Reservation | None, *, is_soon: bool
    ) -> tuple[PodPlacement, ...] | None:
        key = (item.request, is_soon, reservation is not None)
        if key in self._no_room:
            return None
        capacity = self._state.capacity.soon if is_soon else self._state.capacity.now
        find = place if reservation is None else reservation.place
        placements = find(item.request, capacity, item.job.avoid)
        if placements is None:
            self._no_room.add(key)
        return placements

    def _make_room(self, item: Waiting) -> frozenset[Candidate] | None:
        """Take capacity from other projects, else from lower priorities; None when neither may give enough."""
        policy = ReclaimPolicy(item)
        if policy.is_open():
            victims = self._find_victims(item, policy)
            taken = None if victims is None else self._take(item, victims, "reclaim")
            taken = taken or self._take_beside(item, policy)
            if taken is not None:
                return taken
        return self._preempt(item)

    def _take_beside(self, item: Waiting, policy: VictimPolicy) -> frozenset[Candidate] | None:
        """Take capacity outside of what is kept for a gang, where that has no room either: what is kept idle is no
        reason to stop a job."""
        state, reservation = self._state, self._state.binding(item)
        soon = state.capacity.soon
        if reservation is None or place(item.request, soon) is not None:
            return None
        key = ("beside", item.request, policy.signature)
        if self._no_victims.get(key) == len(soon.changes):
            return None
        victims = victims_beside(state, reservation, item, policy)
        taken = None if victims is None else self._take(item, victims, "reclaim")
        if taken is None:
            self._no_victims[key] = len(soon.changes)
        return taken

    def _is_above_lowest(self, item: Waiting) -> bool:
        """Return whether jobs of lower priority ran in the project before the cycle."""
        return self._lowest.get(item.account.name, item.job.priority) < item.job.priority

    def _could_swap(self, item: Waiting) -> bool:
        """Return whether the job, which carries its project above its share, could replace lower-priority
        jobs of the project and needs to: so a lower priority never runs in its place."""
        if not self._is_above_lowest(item):
            return False
        if not self._state.has_giver(PreemptPolicy(item, is_swap=True)):
            return False
        return not self._fits(item) and self._find_swap(item) is not None

    def _find_swap(self, item: Waiting) -> frozenset[Candidate] | None:
        """Return lower-priority jobs of the project that the job could replace inside its project's share."""
        if item.job.was_preempted_by is not None:
            return (
                None  # jobs that were stopped themselves stop others only where nothing is lost: so it ends
            )
        policy = PreemptPolicy(item, is_swap=True)
        victims = self._find_victims(item, policy)
        return victims if victims is not None and policy.is_swapped(victims) else None

    def _preempt(self, item: Waiting) -> frozenset[Candidate] | None:
        """Take capacity from lower priorities of the same project; None when they may not give enough."""
        if not self._is_above_lowest(item):
            return None
        victims = self._find_swap(item) or self._find_victims(item, PreemptPolicy(item))
        return None if victims is None else self._take(item, victims, "preempt")

    def _take(self, item: Waiting, victims: frozenset[Candidate], kind: Kind) -> frozenset[Candidate] | None:
        mark = self._state.mark()
        self._state.evict(victims, item, kind)
        self._no_room.clear()
        if self._serve(item):
            return victims
        self._state.roll_back(mark)
        self._forget()
        return None

    def _find_victims(self, item: Waiting, policy: VictimPolicy) -> frozenset[Candidate] | None:
        """Return the victims for a job. Failed searches are remembered: givers only lose until `_forget`, so
        nodes that have not changed need not be searched again."""
        key, changes = (item.request, policy.signature), self._state.capacity.soon.changes
        changed = sorted(set(changes[self._no_victims[key] :])) if key in self._no_victims else None
        found = None if changed == [] else self._search(item, policy, changed)
        if found is None:
            self._no_victims[key] = len(changes)
        return found

    def _search(
        self, item: Waiting, policy: VictimPolicy, among: Sequence[int] | None
    ) -> frozenset[Candidate] | None:
        """Return victims that can shrink instead of stopping, if those suffice and all of them fit
        afterwards; else the least costly victims."""
        state = self._state
        soon, shrink = state.capacity.soon, ShrinkPolicy(policy)
        if state.can_shrink:
            found = find_victims(item.request, soon, shrink, state.candidates, among)
            if found is not None and can_go_on(found, item, soon):
                return found
        return find_victims(item.request, soon, policy, state.candidates, among)

    def _forget(self) -> None:
        """Forget what found no room and no victims: capacity or givers came back."""
        self._no_room.clear()
        self._no_victims.clear()

    def _widen(self, item: Waiting, *, is_sure: bool) -> None:
        """Give an elastic job that starts, or that has a reservation, as many pods as fit."""
        if not item.is_elastic:
            return
        state, is_soon = self._state, item.job.id in self._state.promises
        before = state.promises[item.job.id][1] if is_soon else state.starts[item.job.id].placements
        mark = state.mark()
        state.release(item) if is_soon else state.unstart(item)
        most = most_pods(item, is_held=not is_soon, is_sure=is_sure)
        capacity = state.capacity.soon if is_soon else state.capacity.now
        reservation = state.binding(item, is_idle=not is_sure)
        with nullcontext() if reservation is None else reservation.kept(capacity):
            placements = widest(item, capacity, most) if most > len(before) else None
        # More pods may stand elsewhere than the fewest did.
        self._no_room.clear()
        if placements is None or len(placements) <= len(before):
            state.roll_back(mark)
        elif is_soon:
            state.promise(item, placements)
        else:
            state.start(item, placements)

    # Shares and the answer.

    def _is_ready(self, one: JobClass) -> bool:
        job = one.jobs[0]
        return not_ready(job) is None and postponed(job, self._view) is None

    def plan(self) -> Plan:
        """Return the decisions in the order in which they apply: stop, start, hold."""
        state = self._state
        holds = Holds(state, self._classes, self._impossible)
        return Plan(tuple(state.preempts.values()), tuple(state.starts.values()), holds, self._shares)
