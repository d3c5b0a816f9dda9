"""One cycle of deciding: `decide(view) -> Plan`. The same view always gives the same plan.

Read from top to bottom: `decide_on` lists the phases of README.md (rule 5), and their methods follow in that order.
A first reading may end at `plan`: the rest says which classes of jobs a phase need not try. What is done for one job is
in `moves` (start, promise, stop others), what for all jobs of the plan in `rearrange`, for elastic ones in `widening`.

An `item` is one queued job as it is served, an elastic one at its minimum size. Equal queued jobs are one class, served
from its head, the oldest undecided job. README.md defines the other words.
"""

from __future__ import annotations

from collections.abc import Hashable

from controlplane.scheduling.ageing import can_age, is_aged
from controlplane.scheduling.cycle_state import CycleState
from controlplane.scheduling.elastic import as_promised
from controlplane.scheduling.explain import Holds
from controlplane.scheduling.feasibility import QueuedJobs
from controlplane.scheduling.fit import is_free
from controlplane.scheduling.growth import for_growing_job, growth_of, with_missing_workers
from controlplane.scheduling.limits import (
    exceeds_limits,
    must_wait_for_limits,
    not_ready,
    postponed,
)
from controlplane.scheduling.locality import WaitsForData
from controlplane.scheduling.moves import Moves
from controlplane.scheduling.oldest_gang import reserve_for_oldest
from controlplane.scheduling.order import JobClass, QueuedProject, Waiting
from controlplane.scheduling.plan import Plan, Share
from controlplane.scheduling.plan_queries import may_keep_promise, may_leave_room
from controlplane.scheduling.queue_iterator import Cause, QueueIterator
from controlplane.scheduling.rearrange import Rearrangement
from controlplane.scheduling.together import MAX_JOBS
from controlplane.scheduling.victims import Candidate, ReclaimPolicy
from controlplane.scheduling.view import ClusterView, PodPlacement
from controlplane.scheduling.widening import Widening


def decide(view: ClusterView) -> Plan:
    """Return what to start, stop and hold on this cluster now, each with its reason and the numbers that were
    compared."""
    view = with_missing_workers(view)
    state = CycleState(view)
    return decide_on(state, QueuedJobs(view, state.accounts))


def decide_on(state: CycleState, queued: QueuedJobs) -> Plan:
    """Run one cycle and return the plan. `state` must hold exactly the jobs of its view, and `queued` its queued jobs.
    Both are changed: `state.rewind` undoes that for the state, the next `queued.classes()` for the queue."""
    # How places are compared: tightest fit, or least fragmentation if the view asks for it.
    state.choose_scorer()
    cycle = _Cycle(state, queued)
    # Phase 0: what each project deserves.
    cycle.divide_shares()
    # Phase 1: promises of earlier cycles, then the reservation.
    cycle.redeem_promises()
    cycle.reserve_for_oldest()
    # Phase 2: jobs in share, which may stop others; then gangs that have waited for long.
    cycle.serve_in_share()
    # Before other jobs take what is free: these pods are in share too.
    cycle.widening.in_share()
    cycle.serve_aged()
    cycle.reprieve_before_idle()
    # Phase 3: jobs that borrow, on what is left.
    cycle.serve_idle()
    if cycle.start_promised_elsewhere():
        # Other jobs may use what was promised to those that started.
        cycle.serve_idle(may_stop=False)
    # Phase 4: victims that are not needed run on. Skipped without victims, though it also moves jobs of the plan to
    # serve another one: most promises are then older ones, and that was tried when they were made.
    if state.victims:
        cycle.settle_victims()
        # The victims are final, so jobs of their projects may use what they leave of the limits (rule 9).
        state.release_reclaimed()
        # The jobs of the plan may have been placed elsewhere, and their old places are idle.
        cycle.start_promised_elsewhere()
        cycle.serve_idle(may_stop=False)
    # Phase 5: elastic jobs that start widen.
    while cycle.widening.on_idle():
        # The additional pods may be on other nodes than the minimum was: there is room for other jobs now.
        cycle.serve_idle(may_stop=False)
    return cycle.plan()


class _Cycle:
    """One scheduling cycle. Its public methods are the phases, in the order of `decide_on`."""

    def __init__(self, state: CycleState, queued: QueuedJobs) -> None:
        self._view = state.view
        self._state = state
        self._classes, self._impossible = queued.classes(), queued.impossible()
        # The classes that may be served in this cycle; the others are only explained.
        unready = {one for one in self._classes if not self._may_be_served(one)}
        self._ready = [one for one in self._classes if one not in unready] if unready else self._classes
        # The same classes by project: a phase skips a project of which it can serve none.
        self._projects = queued.projects(unready)
        # Jobs whose promise lapsed because of their project's share: see `reserve_for_oldest`.
        self._lapsed: list[Waiting] = []
        self._moves = Moves(state)
        self._waits_for_data = WaitsForData(state.capacity.now)
        self._shares: tuple[Share, ...] = ()
        self.widening = Widening(state, self._moves, self._ready)
        self._rearrangement = Rearrangement(state, self._moves, self.widening, self._ready)

    def _may_be_served(self, job_class: JobClass) -> bool:
        if not job_class.may_be_unready:
            return self._view.is_engine_reachable
        job = job_class.jobs[0]
        return not_ready(job) is None and postponed(job, self._view) is None

    # Phase 0: what each project deserves.

    def divide_shares(self) -> None:
        """Set the fair share of each project."""
        # A job that backs off asks too, or shares would change while a plan is carried out; one without its data or
        # volume does not.
        asking = [one for one in self._classes if not one.may_be_unready or not_ready(one.jobs[0]) is None]
        self._shares = self._state.divide(asking)

    # Phase 1: promises and the reservation.

    def redeem_promises(self) -> None:
        """Start jobs on the devices that an earlier cycle promised to them. While stopping jobs hold some of these
        devices, renew the promise. Any other promise lapses (rule 7)."""
        promised = [one for one in self._ready if one.jobs[0].promised]
        # Missing workers first: they must stay inside the quota, which the pods of a queued job may exceed.
        promised.sort(key=lambda one: not one.jobs[0].workers_for)
        beneficiaries = {job.was_preempted_by for job in self._view.jobs} if promised else set()
        for job_class in promised:
            item = job_class.head
            # None if the job no longer allows the promised size. `must_not_start` would ask too much: missing workers
            # above their quota keep what others were stopped for.
            sized = as_promised(item)
            if sized is None or exceeds_limits(sized):
                continue
            # If a job did not start for which others were stopped, their work would be lost in vain.
            is_beneficiary = (item.job.workers_for or item.job.id) in beneficiaries
            if not is_beneficiary and not may_keep_promise(self._state, sized):
                self._lapsed.append(item)
            elif self._redeem(item, sized):
                job_class.advance()

    def _redeem(self, item: Waiting, sized: Waiting) -> bool:
        """Start the job, or renew its promise. Return False if the promised devices are no longer there. `sized`: the
        job with the number of pods for which the promise was made."""
        job, capacity = item.job, self._state.capacity
        if is_free(job.promised, job, capacity.now) and not must_wait_for_limits(sized):
            self._state.start(item, job.promised)
            return True
        if is_free(job.promised, job, capacity.soon):
            self._state.promise(item, job.promised)
            return True
        return False

    def reserve_for_oldest(self) -> None:
        """Make the reservation for the oldest gang without room whose start time can be computed. From here on
        `Moves.find` gives a job that it binds (`CycleState.binding`) only places beside the gang's."""
        # Which gang has no room is judged as if the lapsed promises were still kept.
        reserve_for_oldest(self._state, self._moves, self._classes, self._lapsed)
        # When phase 4 calls this again, these jobs have had their turns.
        self._lapsed.clear()

    # Phase 2: jobs within their project's share, in turn. Tried for a job, in this order:
    #   in share:                                           free capacity; reclaim; own lower priorities (`take_own`)
    #   in share only in place of its own lower priorities: `take_own`
    #   any job, last:                                      `take_own_and_others`, if `may_replace`
    # A job without room has a turn in phase 3. Only jobs that were running before this cycle are stopped.

    def serve_in_share(self) -> bool:
        """Serve, in turn, the jobs with which their project stays within its fair share, and those that may replace
        lower priorities of their own project: on free capacity, else by stopping jobs. A job without room keeps
        waiting. Return whether jobs were stopped."""
        before = len(self._state.victims)
        queue = QueueIterator(self._projects, self._why_no_turn, self._has_no_turn)
        while (job_class := queue.take()) is not None:
            item = job_class.head
            can_stay = self._can_stay_in_share(job_class)
            # `_why_no_turn` asked when the queue sorted this project; its department may have been served since.
            if not can_stay and not self._moves.may_replace(item):
                queue.close(self._cause_of_no_turn(job_class))
            # Free capacity first: no job is stopped while another place is free. A job that is in share only in
            # the place of others gets free capacity in phase 3 at the earliest.
            elif can_stay and item.is_in_share and self._moves.serve(item):
                job_class.advance()
                queue.put_back()
            elif can_stay and self._waits_for_data.pass_over(job_class):
                # Skips the head until `end_phase`.
                queue.put_back()
            elif (victims := self._serve_by_stopping(item, can_stay_in_share=can_stay)) is not None:
                job_class.advance()
                queue.put_back()
                self._reopen(queue, item, victims)
            else:
                queue.close(self._cause_of_no_room(job_class, ReclaimPolicy(item).signature))
        # The jobs that were passed over are tried again in phase 3.
        self._waits_for_data.end_phase()
        return len(self._state.victims) > before

    def _can_stay_in_share(self, job_class: JobClass) -> bool:
        """Return whether no limit forbids the next job of a class, and its project stays within its share with it,
        perhaps in the place of other jobs of the project."""
        item = job_class.head
        return not self._moves.must_not_start(item) and (
            item.is_in_share or self._moves.could_replace_own(item)
        )

    def _serve_by_stopping(self, item: Waiting, *, can_stay_in_share: bool) -> frozenset[Candidate] | None:
        """Stop running jobs so that this one fits, and serve it. Return the stopped jobs; None, with none stopped, if
        they would not be enough."""
        victims = self._moves.make_room(item) if can_stay_in_share else None
        if victims is None and self._moves.may_replace(item):
            victims = self._moves.take_own_and_others(item)
        return victims

    def serve_aged(self) -> None:
        """Serve gangs that have waited for long, the oldest first: on free capacity, or on GPUs that projects hold
        above their quotas."""
        view = self._view
        if not view.gang_ageing_seconds:
            return
        gangs = [one for one in self._ready if not one.is_decided and can_age(one.head)]
        if gangs:
            # Gangs age and jobs write checkpoints without any other change of the cluster, which would not be decided
            # again otherwise.
            self._state.candidates.depend_on_time = True
        aged = [one for one in gangs if is_aged(one.head, view.now, view.gang_ageing_seconds)]
        for job_class in sorted(aged, key=lambda one: (one.head.job.submit_rank, one.head.job.id)):
            item = job_class.head
            if not self._moves.must_not_start(item) and self._moves.take_lent(item):
                job_class.advance()

    def reprieve_before_idle(self) -> None:
        """Let victims run on that the jobs served so far, taken together, do not need, and serve jobs in share again.
        Before phase 3, because jobs that borrow would take what such a victim frees, and then it is needed."""
        # Only small plans: with many jobs this is a search for each victim, which phase 4 does anyway.
        while self._is_small() and self._rearrangement.reprieve_needless():
            is_anyone_stopped = self.serve_in_share()
            self.widening.in_share()
            if not is_anyone_stopped:
                break

    def _is_small(self) -> bool:
        """Return whether the jobs of this plan are few enough to try all ways to place them together."""
        return self._count_placed() <= MAX_JOBS

    def _count_placed(self) -> int:
        """Return how many jobs of this plan start or have a promise."""
        return len(self._state.starts) + len(self._state.promises)

    # Phase 3: the capacity that is still idle goes to all other jobs, in turn.

    def serve_idle(self, *, may_stop: bool = True) -> None:
        """Serve all undecided jobs, also those that take their project above its share. With `may_stop` they may stop
        jobs of lower priority in their own project, and no others."""
        if not self._may_have_room(may_stop=may_stop):
            return
        queue = QueueIterator(self._projects, self._why_no_room)
        while (job_class := queue.take()) is not None:
            item = job_class.head
            if self._moves.must_not_start(item):
                queue.close(self._cause_of_no_turn(job_class))
            elif self._moves.serve(item):
                job_class.advance()
                queue.put_back()
            elif may_stop and self._waits_for_data.pass_over(job_class):
                queue.put_back()
            elif may_stop and (victims := self._moves.take_own(item)) is not None:
                job_class.advance()
                queue.put_back()
                self._reopen(queue, item, victims)
            else:
                queue.close(self._cause_of_no_room(job_class, None))
        # Jobs that wait for their data keep nothing, so others may use what they counted on in limits and quotas.
        if self._waits_for_data.end_phase():
            self.serve_idle(may_stop=False)

    def start_promised_elsewhere(self) -> bool:
        """Start jobs that have a promise on other capacity that is free now. Called once all jobs were served. Return
        whether any started."""
        before = list(self._state.promises.values())
        for item, placements in before:
            self._start_elsewhere(item, placements)
        return len(self._state.promises) < len(before)

    def _start_elsewhere(self, item: Waiting, placements: tuple[PodPlacement, ...]) -> None:
        mark = self._state.mark()
        self._state.withdraw(item)
        self._moves.forget_rooms()
        if not self._moves.start_now(item.of(len(placements))):
            self._state.roll_back(mark)
        self._moves.forget_rooms()

    # Phase 4: each set of victims is minimal for one job, but the sets together may free more than all jobs need.

    def settle_victims(self) -> None:
        """Repeat until nothing changes: reprieve needless victims and serve jobs in share; make the reservation again,
        and do both again; serve jobs in share by moving others of the plan. It ends, because a job of the plan may move
        but never leaves it: each round adds jobs or reprieves a victim."""
        reprieve_needless = self._rearrangement.reprieve_needless
        while True:
            # Another job in share may be owed a reprieved job's place, and stop that job again.
            while reprieve_needless() and self.serve_in_share():
                pass
            # The reservation's time may have depended on the end of a reprieved victim. What it no longer keeps may
            # make other victims needless, and jobs in share that waited because of it may start or stop others.
            if self._reserve_again():
                placed, is_reprieved = self._count_placed(), reprieve_needless()
                # The gang may have a better place once these jobs have theirs. If this cycle did not find that, the
                # next one would, and start jobs on what this one keeps.
                if self.serve_in_share() or is_reprieved or self._count_placed() > placed:
                    continue
            if not self._serve_by_moving():
                break
        # The jobs that this phase served have only their minimum size.
        self.widening.in_share()

    def _reserve_again(self) -> bool:
        """Make the reservation again. Return False, with nothing done, if there was none."""
        if self._state.reservation is None:
            return False
        self._state.reservation = None
        self._moves.forget_rooms()
        self.reserve_for_oldest()
        return True

    def _serve_by_moving(self) -> bool:
        """Serve jobs within their project's share that fit once other jobs of the plan are placed elsewhere. Return
        whether any was served; False, with nothing tried, in a plan without promises or with too many jobs."""
        state, is_any = self._state, False
        if not state.promises or self._count_placed() >= MAX_JOBS:
            return False
        queue = QueueIterator(self._projects, self._why_not_in_share, self._is_above_share)
        while (job_class := queue.take()) is not None:
            item = job_class.head
            if item.is_in_share and self._rearrangement.serve_as_well(item):
                job_class.advance()
                queue.put_back()
                is_any = True
            else:
                # The cause does not matter: nothing is reopened here.
                queue.close(self._cause_of_no_turn(job_class))
        return is_any

    # Phase 5 is `widening.on_idle`. The answer:

    def plan(self) -> Plan:
        """Return the decisions in the order in which they apply: stop, start, hold."""
        state = self._state
        holds = Holds(state, self._classes, self._impossible)
        # Missing workers are jobs only inside this package: what they get is returned as growth of the running job.
        jobs = [name for name in state.promises if not state.jobs[name].workers_for]
        promised = {name: state.promises[name][1] for name in jobs}
        starts = [start for start in state.starts.values() if not state.jobs[start.job].workers_for]
        preempts = [for_growing_job(one, state.jobs[one.beneficiary]) for one in state.preempts.values()]
        return Plan(tuple(preempts), tuple(starts), holds, self._shares, promised, growth_of(state))

    # Which classes a phase need not try. This saves searches that would fail, and lets the next class of the project
    # have its turn.

    def _has_no_turn(self, project: QueuedProject) -> bool:
        """Return whether phase 2 can serve no job of a project. In a full cluster most projects are neither in share
        with their smallest job nor have jobs to replace."""
        return not (
            project.account.is_in_share_with(project.least_milli_gpus) or self._has_any_lower_running(project)
        )

    def _why_no_turn(self, job_class: JobClass) -> Cause | None:
        """Return why phase 2 cannot serve the next job of a class; None if it may."""
        item, has_lower_running = job_class.head, self._has_lower_running(job_class)
        if (item.is_in_share or has_lower_running) and (
            self._can_stay_in_share(job_class) or self._moves.may_replace(item)
        ):
            return None
        return Cause(has_lower_running=has_lower_running)

    def _may_have_room(self, *, may_stop: bool) -> bool:
        """Return whether phase 3 could serve any job. In a full cluster it could not, and thousands of classes with
        few different requests need not be asked."""
        # Never skipped with a reservation: each search beside it may move the gang's devices (`Reservation.kept`).
        if self._state.reservation is not None:
            return True
        if any(one.has_own_room or (may_stop and self._has_any_lower_running(one)) for one in self._projects):
            return True
        requests = {request for one in self._projects for request in one.requests}
        return any(self._moves.may_have_room(request) for request in requests)

    def _why_no_room(self, job_class: JobClass) -> Cause | None:
        """Return why phase 3 cannot serve the next job of a class: an equal request had no room, and the job has no
        promise, no jobs to replace and no copy of its data to wait for. None if it may have room."""
        job = job_class.head.job
        if (
            job.promised
            or job.fillable
            or self._has_lower_running(job_class)
            or not self._moves.had_no_room(job_class.head)
        ):
            return None
        return self._cause_of_no_room(job_class, None)

    def _why_not_in_share(self, job_class: JobClass) -> Cause | None:
        """Return why `_serve_by_moving` cannot serve the next job of a class: a limit, or its project's share without
        replacing others. None if it may."""
        item = job_class.head
        is_in_share = item.is_in_share and not self._moves.must_not_start(item)
        return None if is_in_share else self._cause_of_no_turn(job_class)

    @staticmethod
    def _is_above_share(project: QueuedProject) -> bool:
        """Return whether the project would be above its share with any of its jobs."""
        return not project.account.is_in_share_with(project.least_milli_gpus)

    # Which classes are closed, and tried again once jobs are stopped. Only saves searches that would fail.

    def _cause_of_no_turn(self, job_class: JobClass) -> Cause:
        """Return the cause of a class that has no turn in this phase, because of a limit or its project's share."""
        return Cause(has_lower_running=self._has_lower_running(job_class))

    def _cause_of_no_room(self, job_class: JobClass, policy: Hashable | None) -> Cause:
        """Return the cause of a class that found no room. `policy`: see `Cause`."""
        item = job_class.head
        is_bound = self._state.binding(item) is not None
        return Cause(item.request, policy, is_bound, self._has_lower_running(job_class))

    def _has_lower_running(self, job_class: JobClass) -> bool:
        """Return whether the class has running jobs of lower priority in its project, so that it may stop these."""
        return self._moves.is_above_lowest(job_class.account, job_class.jobs[0].priority)

    def _has_any_lower_running(self, project: QueuedProject) -> bool:
        """Return whether any class of the project has running jobs of lower priority."""
        return self._moves.is_above_lowest(project.account, project.highest_priority)

    def _reopen(self, queue: QueueIterator, preemptor: Waiting, victims: frozenset[Candidate]) -> None:
        """Put classes that were closed back into the queue after `victims` were stopped for `preemptor`: those of
        projects and departments that lost jobs, and those that may fit now, because the victims free more than the
        preemptor takes."""
        leaves_room = may_leave_room(preemptor, victims)

        # One class per cause is tested, because the others would fail or fit like it.
        def may_fit(cause: Cause, job_class: JobClass) -> bool:
            # The cause does not cover victims in its own project, so such a class is tried again in its turn.
            return leaves_room and (cause.has_lower_running or self._fits_or_reclaims(job_class.head, cause))

        queue.reopen({victim.account for victim in victims}, may_fit)

    def _fits_or_reclaims(self, item: Waiting, cause: Cause) -> bool:
        """Return whether a job that found no room before fits once stopping jobs have ended, or could reclaim what it
        lacks."""
        if cause.request is None:
            return False
        if self._moves.find(item, is_soon=True) is not None:
            return True
        return cause.policy is not None and self._moves.find_victims(item, ReclaimPolicy(item)) is not None
