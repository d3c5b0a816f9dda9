"""One cycle of deciding: `decide(view) -> Plan`. The same view always gives the same plan.

Read `decide` from top to bottom. The rules behind each phase: README.md.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import nullcontext

from controlplane.scheduling.ageing import can_age, is_aged
from controlplane.scheduling.cycle_state import CycleState
from controlplane.scheduling.elastic import as_promised, most_pods, widest
from controlplane.scheduling.explain import Holds
from controlplane.scheduling.feasibility import QueuedJobs
from controlplane.scheduling.fit import is_free, place
from controlplane.scheduling.growth import for_growing_job, growth_of, with_missing_workers
from controlplane.scheduling.limits import (
    is_backing_off,
    is_bound,
    not_ready,
    postponed,
)
from controlplane.scheduling.moves import Moves, exceeds_limits, is_refused
from controlplane.scheduling.order import Cause, JobClass, QueueIterator, Waiting
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.plan_queries import (
    could_reclaim,
    is_promise_owed,
    leave_nothing,
    on_open,
    pools_of,
    spare_milli_gpus,
)
from controlplane.scheduling.reservation import reserve
from controlplane.scheduling.together import MAX_JOBS, serve_together
from controlplane.scheduling.victims import (
    Candidate,
    ReclaimPolicy,
    cost_of_one,
)
from controlplane.scheduling.view import ClusterView, JobView, PodPlacement


def decide(view: ClusterView) -> Plan:
    """Decide what to start, stop and hold on this cluster now, each with its reason and the numbers
    compared."""
    view = with_missing_workers(view)
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
    cycle.serve_aged()
    cycle.serve_idle()
    if cycle.start_promised_elsewhere():
        cycle.serve_idle(may_stop=False)
    if state.preempts:
        cycle.settle_victims()
        # The jobs of the plan may have been placed elsewhere and their old places are idle now; the victims do
        # not change any more.
        state.forget_reclaimed()
        cycle.start_promised_elsewhere()
        cycle.serve_idle(may_stop=False)
    while cycle.widen_on_idle():
        # The additional pods may be on other nodes than the fewest were: there is room for other jobs now.
        cycle.serve_idle(may_stop=False)
    return cycle.plan()


class _Cycle:
    """The phases of a cycle over one state."""

    def __init__(self, state: CycleState, queued: QueuedJobs) -> None:
        self._view = state.view
        self._state = state
        self._classes, self._impossible = queued.classes(), queued.impossible()
        # The classes that may be tried in this cycle; the others are only explained.
        self._ready = [one for one in self._classes if self._is_ready(one)]
        self._moves = Moves(state)
        # Jobs with a promise of an earlier cycle that have to wait for their turn.
        self._unredeemed: list[Waiting] = []
        self._elastic = [one.waiting(job) for one in self._ready if one.head.is_elastic for job in one.jobs]
        asking = [one for one in self._classes if not_ready(one.jobs[0]) is None]
        self._shares = self._state.divide(asking)

    # Phase 1: capacity that an earlier cycle freed for a job is offered to that job first.

    def redeem_promises(self) -> None:
        """Start jobs on capacity that an earlier cycle reserved for them, or renew the reservation.

        A reservation on capacity that was not free yet can be refused: a job entitled to more may have arrived
        since.
        """
        state = self._state
        promised = [one for one in self._ready if one.jobs[0].promised]
        # Missing workers first: the additional pods of a queued job may take the project above its quota, they may not.
        promised.sort(key=lambda one: not one.jobs[0].grows)
        # Jobs were stopped for these: if these did not start, that work would have been lost in vain.
        beneficiaries = {job.was_preempted_by for job in self._view.jobs} if promised else set()
        for one in promised:
            item = one.head
            owed = as_promised(item)
            if owed is None or exceeds_limits(owed):
                continue
            if (item.job.grows or item.job.id) not in beneficiaries and not is_promise_owed(state, owed):
                self._unredeemed.append(item)
                continue
            if is_free(item.job.promised, item.job, state.capacity.now) and not is_bound(owed):
                state.start(item, item.job.promised)
                one.at += 1
            elif is_free(item.job.promised, item.job, state.capacity.soon):
                state.promise(item, item.job.promised)
                one.at += 1

    def start_promised_elsewhere(self) -> bool:
        """Start jobs with a reservation at once on other capacity that is still free when all other jobs have
        been served. Return whether any started."""
        before = list(self._state.promises.values())
        for item, placements in before:
            self._start_elsewhere(item, placements)
        return len(self._state.promises) < len(before)

    def _start_elsewhere(self, item: Waiting, placements: tuple[PodPlacement, ...]) -> None:
        mark = self._state.mark()
        self._state.release(item)
        self._moves.forget_rooms()
        if not self._moves.start_now(item.of(len(placements))):
            self._state.roll_back(mark)
        self._moves.forget_rooms()

    # The oldest gang that cannot start gets a reservation (time and nodes), which jobs that would delay it must
    # respect.

    def reserve_for_oldest(self) -> None:
        """Reserve for the oldest gang that does not fit now, if the ends of running jobs are known.

        This also covers a gang that waits only for stopping jobs, because otherwise jobs that an earlier cycle held
        back would take its capacity.
        """
        state = self._state
        if not state.ends:
            return
        heads = [one.head for one in self._classes if one.at < len(one.jobs) and one.head.is_gang]
        mark = state.mark()
        # What was promised to jobs that have to wait for their turn counts as theirs, as when it was promised.
        for item in self._unredeemed:
            if is_free(item.job.promised, item.job, state.capacity.soon):
                state.promise(item, item.job.promised)
        heads = [item for item in heads if not item.job.grows]
        heads = [item for item in heads if self._may_reserve(item.job)]
        # Oldest first instead of in turn: see docs/decisions/0042.
        heads.sort(key=lambda item: (item.job.submit_rank, item.job.id))
        waiting = filter(self._needs_reservation, heads)
        state.reservation = reserve(waiting, state.expected_ends, state.capacity.soon, self._view.now)
        if self._unredeemed:
            state.roll_back(mark)
            self._moves.forget_rooms()
            self._unredeemed.clear()

    def _needs_reservation(self, item: Waiting) -> bool:
        if item.job.id in self._state.promises:
            self._state.release(item)
        return not is_refused(item) and (
            is_backing_off(item.job, self._view.now) or self._moves.find(item, is_soon=False) is None
        )

    def reserve_again(self) -> bool:
        """Compute the reservation again, because its time may have depended on the end of a victim. Return whether
        there was one."""
        if self._state.reservation is None:
            return False
        self._state.reservation = None
        self._moves.forget_rooms()
        self.reserve_for_oldest()
        return True

    def _may_reserve(self, job: JobView) -> bool:
        """Return whether a gang is ready, or is only in back-off: a failed start does not cost it the
        reservation."""
        is_prevented = postponed(job, self._view) is not None and not is_backing_off(job, self._view.now)
        return not_ready(job) is None and not is_prevented

    def _is_kept_back(self, item: Waiting) -> bool:
        return self._state.binding(item) is not None

    # Phase 2: jobs within their project's share, in turn. Each gets free capacity, else capacity that is being
    # freed, else capacity taken from jobs that were running before this cycle.

    def serve_in_share(self) -> bool:
        """Serve every job that keeps its project within its fair share. Jobs started here are not stopped in
        this cycle. Return whether others were stopped for them."""
        before = len(self._state.victims)
        queue = QueueIterator(self._ready, self._is_owed)
        while (one := queue.take()) is not None:
            item = one.head
            if not self._is_owed(one):
                queue.close()
            # Free capacity first: no job is stopped while another place is free.
            elif item.is_in_share and self._moves.serve(item):
                one.at += 1
                queue.put_back()
            elif self._moves.wait_for_data(item):
                one.pass_over()
                queue.put_back()
            elif (victims := self._moves.make_room(item)) is not None:
                one.at += 1
                queue.put_back()
                self._reopen(queue, item, victims)
            else:
                queue.close((item.request, ReclaimPolicy(item).signature, self._is_kept_back(item)))
        self._take_back_passed()
        return len(self._state.victims) > before

    def _is_owed(self, one: JobClass) -> bool:
        """Return whether the next job of a class keeps its project within its share, or could do so by
        replacing other jobs of the project."""
        item = one.head
        return not self._is_refused(item) and (item.is_in_share or self._moves.could_swap(item))

    def _is_refused(self, item: Waiting) -> bool:
        """Return whether the job must not start, or adds workers to a job that this plan stops."""
        return is_refused(item) or item.job.grows in self._state.preempts

    def serve_aged(self) -> None:
        """Serve gangs that have waited for long, the oldest first, on free capacity or on GPUs that projects borrow."""
        view = self._view
        if not view.gang_ageing_seconds:
            return
        gangs = [one for one in self._ready if one.at < len(one.jobs) and can_age(one.head)]
        if gangs:
            # A gang ages, and jobs write checkpoints, without any other change of the cluster.
            self._state.candidates.were_searched = True
        aged = [one for one in gangs if is_aged(one.head, view.now, view.gang_ageing_seconds)]
        for one in sorted(aged, key=lambda one: (one.head.job.submit_rank, one.head.job.id)):
            if not self._is_refused(one.head) and self._moves.take_lent(one.head):
                one.at += 1

    # Phase 3: the capacity that is still idle goes to all other jobs, in turn.

    def serve_idle(self, *, may_stop: bool = True) -> None:
        """Serve jobs that take their project above its share. With `may_stop` they may stop jobs of lower
        priority in their own project, and no others."""
        queue = QueueIterator(self._ready)
        while (one := queue.take()) is not None:
            item = one.head
            if self._is_refused(item):
                queue.close()
            elif self._moves.serve(item):
                one.at += 1
                queue.put_back()
            elif may_stop and self._moves.wait_for_data(item):
                one.pass_over()
                queue.put_back()
            elif may_stop and (victims := self._moves.preempt(item)) is not None:
                one.at += 1
                queue.put_back()
                self._reopen(queue, item, victims)
            else:
                queue.close((item.request, None, self._is_kept_back(item)))
        # Nothing is reserved for jobs that wait for their data, also not what limits and quotas leave: others start.
        if self._take_back_passed():
            self.serve_idle(may_stop=False)

    def _take_back_passed(self) -> bool:
        """Make the jobs that wait for their data undecided again: a later phase may have room where their data is.
        Return whether there were any."""
        if not self._moves.forget_data():
            return False
        for one in self._ready:
            one.take_back()
        return True

    def _reopen(self, queue: QueueIterator, preemptor: Waiting, victims: frozenset[Candidate]) -> None:
        """Put classes back into the queue that may be served after a reclaim: those of the projects that lost jobs,
        and, where the victims free more than was needed, those that did not fit. One class per kind of request is
        tested."""
        is_more = not leave_nothing(preemptor, victims)
        has_room: dict[Hashable, bool] = {}

        def is_over(one: JobClass, cause: Cause) -> bool:
            if not is_more:
                return False
            if self._moves.is_above_lowest(one.account, one.jobs[0].priority):
                return True
            if cause is not None and cause not in has_room:
                has_room[cause] = self._has_room(one.head, may_reclaim=cause[1] is not None)
            return cause is not None and has_room[cause]

        queue.reopen({victim.account for victim in victims}, is_over)

    def _has_room(self, item: Waiting, *, may_reclaim: bool) -> bool:
        """Return whether the job fits once stopping jobs have ended, or could reclaim what it lacks."""
        if self._moves.find(item, is_soon=True) is not None:
            return True
        return may_reclaim and self._moves.find_victims(item, ReclaimPolicy(item)) is not None

    # Phase 4: each set of victims is minimal for one job, but the sets together may free more than all jobs
    # need.

    def reprieve_needless(self) -> bool:
        """Keep every victim whose capacity the jobs of this plan, taken together, do not need. Return whether
        any was kept."""
        before, is_changed = len(self._state.victims), bool(self._state.victims)
        while is_changed:
            pools = pools_of([*self._started(), *(item for item, _ in self._state.promises.values())])
            spare = spare_milli_gpus(self._state, self._elastic, pools)
            victims = sorted(self._state.victims.values(), key=cost_of_one, reverse=True)
            # The most expensive victim first. Keeping one may make another needless, so all are tested again.
            is_changed = any(
                on_open(self._state, victim, pools) <= spare and self._reprieve(victim) for victim in victims
            )
        return len(self._state.victims) < before

    def settle_victims(self) -> None:
        """Spare victims and make the reservation again until neither changes who is stopped.

        A spared job may be taken for another one that is owed its place. The reservation's time may have depended on
        the end of a victim, what it kept may be enough for jobs that stopped others, and jobs that fitted only into
        what it kept may take others' capacity now. This ends, because no job of the plan is withdrawn.
        """
        is_changed = True
        while is_changed:
            while self.reprieve_needless() and self.serve_in_share():
                pass
            is_changed = self.reserve_again() and (self.reprieve_needless() or self.serve_in_share())
            is_changed = is_changed or self.serve_by_moving()
        self.widen_in_share()

    def _started(self) -> list[Waiting]:
        state = self._state
        return [item for one in self._ready for item in one.decided() if item.job.id in state.starts]

    def _placed(self) -> tuple[list[Waiting], list[Waiting], set[str]]:
        """Return the jobs that start, those with a promise, and the ids of those that must stay beside the place of the
        gang that has the reservation."""
        state = self._state
        started, promised = self._started(), [item for item, _ in state.promises.values()]
        beside = {
            item.job.id
            for item in (*started, *promised)
            if state.binding(item, is_placed=True) and not state.is_in_gap(item)
        }
        return started, promised, beside

    def serve_by_moving(self) -> bool:
        """Serve jobs in share that have room where others of the plan are promised theirs, if these have it elsewhere.
        Return whether there were any."""
        state, is_any = self._state, False
        if not state.promises or len(state.starts) + len(state.promises) >= MAX_JOBS:
            return False
        queue = QueueIterator(self._ready, self._is_owed)
        while (one := queue.take()) is not None:
            if one.head.is_in_share and self._has_room_by_moving(one.head):
                one.at += 1
                queue.put_back()
                is_any = True
            else:
                queue.close()
        return is_any

    def _has_room_by_moving(self, item: Waiting) -> bool:
        state, mark, reservation = self._state, self._state.mark(), self._state.binding(item)
        # In a full cluster nothing is left for one more job, wherever the others are.
        with nullcontext() if reservation is None else reservation.kept(state.capacity.soon):
            spare = spare_milli_gpus(state, self._elastic, item.request.pools)
        if spare < item.milli_gpus:
            return False
        started, promised, beside = self._placed()
        if reservation is not None:
            beside.add(item.job.id)
        for one in promised:
            state.release(one)
        has_room = place(item.request, state.capacity.soon) is not None
        for one in started if has_room else ():
            state.unstart(one)
        self._moves.forget()
        if (
            has_room
            and serve_together(state, started, [*promised, item], beside)
            and state.attribute_preempts()
        ):
            self.widen_in_share()
            return True
        state.roll_back(mark)
        return False

    def _reprieve(self, victim: Candidate) -> bool:
        """Keep the victim if all jobs of this plan fit without its capacity, elsewhere if necessary."""
        state, mark = self._state, self._state.mark()
        started, promised, beside = self._placed()
        # All ways to place the jobs together are tried, and their number grows with every job.
        are_few = len(promised) + len(started) <= MAX_JOBS
        for item in promised:
            state.release(item)
        for item in started if are_few else ():
            state.unstart(item)
        state.reprieve(victim)
        self._moves.forget()
        if are_few:
            is_served = serve_together(state, started, promised, beside)
        else:
            is_served = all(self._moves.serve(item) for item in promised)
        self._moves.forget()
        is_served = is_served and all(one.is_within_limit for one in victim.account.line())
        if is_served and state.attribute_preempts():
            # The jobs may have moved to nodes where more or fewer of their pods fit.
            self.widen_in_share()
            return True
        state.roll_back(mark)
        return False

    # Elastic jobs are served at their minimum size, so that no job is stopped for their additional pods. Then
    # they grow.

    def widen_in_share(self) -> None:
        """Give the elastic jobs of this plan as many pods as fit, within what no other project can reclaim."""
        for item in self._elastic:
            if self._state.placements_of(item):
                self._widen(item, is_sure=True)

    def widen_on_idle(self) -> bool:
        """Give the remaining capacity to the elastic jobs that start, unless a waiting job could reclaim it. Return
        whether any got more.

        A job that starts on a reservation does not grow beyond its share while other jobs are stopping: the
        capacity that they release may be assigned to a job with a reservation.
        """
        state = self._state
        starting = [item for item in self._elastic if item.job.id in state.starts]
        starting = [item for item in starting if not (item.job.promised and state.is_releasing)]
        mark = state.mark()
        for item in starting:
            self._widen(item, is_sure=False)
        # A reclaim in the next cycle would stop the whole job.
        if starting and self._could_be_taken_back():
            state.roll_back(mark)
        return state.mark() > mark

    def _could_be_taken_back(self) -> bool:
        """Return whether a waiting job could reclaim capacity once the plan is executed."""
        waiting = [one.head for one in self._ready if one.at < len(one.jobs)]
        mark = self._state.mark()
        self._state.assume_started()
        is_possible = any(not self._is_refused(item) and could_reclaim(self._state, item) for item in waiting)
        self._state.roll_back(mark)
        return is_possible

    def _widen(self, item: Waiting, *, is_sure: bool) -> None:
        """Give as many pods as fit to an elastic job that starts or has a reservation."""
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
        # The additional pods may be on other nodes than the minimum was.
        self._moves.forget_rooms()
        # The same number of pods elsewhere would be a move without a gain.
        if placements is None or len(placements) <= len(before):
            state.roll_back(mark)
        elif is_soon:
            state.promise(item, state.capacity.on_idle_devices(item.job, placements))
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
        jobs = [name for name in state.promises if not state.jobs[name].grows]
        promised = {name: state.promises[name][1] for name in jobs}
        starts = [start for start in state.starts.values() if not state.jobs[start.job].grows]
        preempts = [for_growing_job(one, state.jobs[one.beneficiary]) for one in state.preempts.values()]
        return Plan(tuple(preempts), tuple(starts), holds, self._shares, promised, growth_of(state))
