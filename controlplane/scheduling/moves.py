"""The steps that the phases of a cycle share: start a job, promise it capacity, or stop other jobs for it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from controlplane.scheduling.accounts import Account
from controlplane.scheduling.ageing import AgeingPolicy, just_checkpointed
from controlplane.scheduling.cycle_state import CycleState
from controlplane.scheduling.elastic import ShrinkPolicy, as_promised, can_go_on
from controlplane.scheduling.fit import Request, is_free, place
from controlplane.scheduling.limits import exceeds_limits, must_wait_for_limits, over_limit, over_quota
from controlplane.scheduling.order import Waiting
from controlplane.scheduling.plan_queries import victims_beside
from controlplane.scheduling.replacement import ReplaceOwnPolicy, ReplacePolicy
from controlplane.scheduling.reservation import Reservation
from controlplane.scheduling.search import find_victims
from controlplane.scheduling.victims import Candidate, PreemptPolicy, ReclaimPolicy, VictimPolicy
from controlplane.scheduling.view import PodPlacement


class Moves:
    """Starts, promises and preemptions in one cycle's state. Failed searches are cached; call `forget_searches` or
    `forget_rooms` when they may succeed again."""

    def __init__(self, state: CycleState) -> None:
        self._state = state
        # Failed searches for free capacity: the request, `is_soon`, and whether only beside the reservation.
        self._no_room: set[tuple[Request, bool, bool]] = set()
        # Failed searches for victims: the number of capacity changes before each, because a repeated one needs to look
        # only at nodes that changed since.
        self._no_victims: dict[Hashable, int] = {}
        # Successful ones: the same number, and the victims.
        self._victims: dict[Hashable, tuple[int, frozenset[Candidate]]] = {}
        # The lowest priority that runs in each project, read first because only jobs that ran before this
        # cycle can be stopped.
        self._lowest = state.candidates.lowest_priorities()

    def forget_rooms(self) -> None:
        """Clear the cache of failed searches for free capacity. For use after a start or promise was withdrawn."""
        self._no_room.clear()

    def must_not_start(self, item: Waiting) -> bool:
        """Return whether limits forbid the job. Missing workers must not start either where they take their project
        or department above its quota, or where this plan stops their job."""
        if exceeds_limits(item):
            return True
        if not item.job.workers_for:
            return False
        is_stopped = item.job.workers_for in self._state.victims
        return is_stopped or not all(one.is_in_quota_with(item.milli_gpus) for one in item.account.line())

    def serve(self, item: Waiting) -> bool:
        """Start the job on free capacity, or promise it capacity that becomes free soon. Return False if there is
        neither."""
        return self.start_now(item) or self._promise_soon(item)

    def start_now(self, item: Waiting) -> bool:
        """Start the job on free capacity. Return False if it does not fit, or limits make it wait for stopping jobs."""
        if must_wait_for_limits(item):
            return False
        placements = self.find(item, is_soon=False)
        if placements is None:
            return False
        self._state.start(item, placements)
        return True

    def _promise_soon(self, item: Waiting) -> bool:
        """Promise capacity that becomes free soon: the devices of an earlier promise, else any. If all of it is free
        already, the job starts. Return False if it does not fit."""
        # Without stopping jobs nothing becomes free, and what is free now has been tried.
        if not self._state.is_releasing:
            return False
        placements: tuple[PodPlacement, ...] | None = item.job.promised
        if not self._keeps_promise(item):
            found = self.find(item, is_soon=True)
            placements = None if found is None else self._state.capacity.on_idle_devices(item.job, found)
        if placements is None:
            return False
        # A reservation keeps a number of devices of a node and not certain ones, so on idle devices the job
        # may start at once.
        if is_free(placements, item.job, self._state.capacity.now) and not must_wait_for_limits(item):
            self._state.start(item, placements)
        else:
            self._state.promise(item, placements)
        return True

    def _keeps_promise(self, item: Waiting) -> bool:
        """Return whether the devices that an earlier cycle promised are still there for the job, at a size that it
        and its limits allow."""
        job = item.job
        if not job.promised or not is_free(job.promised, job, self._state.capacity.soon):
            return False
        sized = as_promised(item)
        return sized is item or (sized is not None and not exceeds_limits(sized))

    def find(self, item: Waiting, *, is_soon: bool) -> tuple[PodPlacement, ...] | None:
        """Return where the job fits, now or `is_soon`; None if nowhere.

        Capacity that is not reserved for a gang is tried first; jobs that the reservation does not bind may use the
        rest. Failures are cached, because free capacity only shrinks until a job is stopped.
        """
        # What does not fit even on the reserved capacity does not fit beside it.
        if (item.request, is_soon, False) in self._no_room:
            return None
        reservation = self._state.delayed_by(item)
        # Tried first even for a job that may delay the gang, because outside of the reservation it delays nobody.
        found = None if reservation is None else self._find_in(item, reservation, is_soon=is_soon)
        if found is not None or (reservation is not None and reservation.binds(item)):
            return found
        return self._find_in(item, None, is_soon=is_soon)

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

    def had_no_room(self, item: Waiting) -> bool:
        """Return whether an equal request has found no room since a job was last stopped or withdrawn."""
        is_full = (item.request, False, False) in self._no_room
        return is_full and (not self._state.is_releasing or (item.request, True, False) in self._no_room)

    def may_have_room(self, request: Request) -> bool:
        """Return whether the request fits, now or once stopping jobs have ended, on what is not promised."""
        capacity = self._state.capacity
        rooms = (
            {False: capacity.now, True: capacity.soon} if self._state.is_releasing else {False: capacity.now}
        )
        return any(
            (request, is_soon, False) not in self._no_room and place(request, room) is not None
            for is_soon, room in rooms.items()
        )

    def make_room(self, item: Waiting) -> frozenset[Candidate] | None:
        """Stop jobs of other projects, or else jobs of lower priority in the own project, and serve the job. Return
        the stopped jobs; None, with nothing changed, if neither is enough."""
        policy = ReclaimPolicy(item)
        if policy.is_open():
            victims = self.find_victims(item, policy)
            taken = None if victims is None else self._take(item, victims)
            taken = taken or self._take_beside(item, policy)
            if taken is not None:
                return taken
        return self.take_own(item)

    def _take_beside(self, item: Waiting, policy: VictimPolicy) -> frozenset[Candidate] | None:
        """Stop jobs of other projects, on capacity that is not reserved for a gang, for a job that the reservation
        binds, and serve it. Return the stopped jobs; None, with none stopped, if they are not enough, if no reservation
        binds the job, or if it would fit without the reservation: no job is stopped because of idle reserved capacity.
        """
        state, reservation = self._state, self._state.binding(item)
        soon = state.capacity.soon
        if reservation is None:
            return None
        key = ("beside", item.request, policy.signature)
        # It fits without victims once stopping jobs have ended, so it only waits.
        if self._no_victims.get(key) == len(soon.changes) or place(item.request, soon) is not None:
            return None
        victims = victims_beside(state, reservation, item, policy)
        taken = None if victims is None else self._take(item, victims)
        if taken is None:
            self._no_victims[key] = len(soon.changes)
        return taken

    def is_above_lowest(self, account: Account, priority: int) -> bool:
        """Return whether a job of lower priority than `priority` ran in the project before this cycle."""
        return self._lowest.get(account.name, priority) < priority

    def could_replace_own(self, item: Waiting) -> bool:
        """Return whether the job fits nowhere now but can take the place of lower-priority jobs of its project so that
        the project stays within its share: those jobs would otherwise keep the share that it needs."""
        if not self.is_above_lowest(item.account, item.job.priority):
            return False
        if not self._state.has_victim(ReplaceOwnPolicy(item)):
            return False
        return not self.fits(item) and self._find_replaced(item) is not None

    def _find_replaced(self, item: Waiting) -> frozenset[Candidate] | None:
        """Return the cheapest lower-priority jobs of the project that make room, if the project stays within its
        share with the job in their place; else None, and None for a job that was preempted itself."""
        if item.job.was_preempted_by is not None:
            return None  # so that preempted jobs cannot preempt each other forever
        policy = ReplaceOwnPolicy(item)
        victims = self.find_victims(item, policy)
        return victims if victims is not None and policy.stays_in_share(victims) else None

    def may_replace(self, item: Waiting) -> bool:
        """Return whether to try `take_own_and_others`. Tested by arithmetic only, so that True may be wrong.

        False if the job stands for missing workers; if no lower priority ran in its project; if it is not preemptible
        and would exceed a quota; or if the project, with the job in the place of its lower priorities, would exceed its
        limit. Also False if it requests no GPUs, or if the project would then exceed its quota or has reached it now;
        but not for a job that a limit forbids now and that may replace lower priorities alone.
        """
        account, job = item.account, item.job
        if job.workers_for or not self.is_above_lowest(account, job.priority) or over_quota(item) is not None:
            return False
        added = item.milli_gpus - self._state.candidates.lower_milli_gpus(account, job.priority)
        if account.limit is not None and account.allocated + added > account.limit:
            return False
        if over_limit(item) is not None and job.was_preempted_by is None:
            return True
        # A job that was preempted must gain GPUs inside the quota (`ReplacePolicy.completes`): at the quota, a search
        # for several pods would try thousands of sets in vain.
        return item.milli_gpus > 0 and account.is_in_quota_with(max(added, 1))

    def take_own_and_others(self, item: Waiting) -> frozenset[Candidate] | None:
        """Stop jobs of lower priority in the job's project, together with jobs of other projects if these are not
        enough (`ReplacePolicy`), and serve the job. Return the stopped jobs; None, with nothing changed, if they are
        not enough."""
        # Below the limit this has been tried (`could_replace_own`); at the limit it is the cheaper search of both.
        victims = self._find_replaced(item) if over_limit(item) is not None else None
        if victims is None:
            own = self._state.candidates.of(item.account)
            lower = [one for one in own if one.job.priority < item.job.priority]
            victims = self.find_victims(item, ReplacePolicy(item, lower)) if lower else None
        return None if victims is None else self._take(item, victims)

    def take_own(self, item: Waiting) -> frozenset[Candidate] | None:
        """Stop jobs of lower priority in the job's own project, and serve the job: the cheapest if the project stays
        in its share with the job in their place, else those that `PreemptPolicy` accepts. Return the stopped jobs;
        None, with nothing changed, if they are not enough or the job stands for missing workers."""
        if item.job.workers_for or not self.is_above_lowest(item.account, item.job.priority):
            return None
        victims = self._find_replaced(item) or self.find_victims(item, PreemptPolicy(item))
        return None if victims is None else self._take(item, victims)

    def take_lent(self, item: Waiting) -> bool:
        """Serve an aged gang on free capacity, or else by stopping jobs that have just written a checkpoint. Return
        whether it was served."""
        if self.serve(item):
            return True
        state = self._state
        cheap = just_checkpointed(state.candidates, state.view.now)
        victims = find_victims(item.request, state.capacity.soon, AgeingPolicy(item), cheap)
        return victims is not None and self._take(item, victims, is_for_aged=True) is not None

    def _take(
        self, item: Waiting, victims: frozenset[Candidate], *, is_for_aged: bool = False
    ) -> frozenset[Candidate] | None:
        """Stop these jobs and serve the job. Return them; None, with none stopped, if the job cannot be served then."""
        # One of the victims gets missing workers in this plan, for which other jobs may have been stopped: it
        # may be a victim only once they have started.
        if not self._state.growing.isdisjoint(victim.job.id for victim in victims):
            return None
        mark = self._state.mark()
        self._state.evict(victims, item, is_for_aged=is_for_aged)
        # The victims free capacity. Failed searches for victims stay valid: those look again at changed nodes only.
        self._no_room.clear()
        # A job that replaces others may have been above its limit with them.
        if not exceeds_limits(item) and self.serve(item):
            return victims
        self._state.roll_back(mark)
        self.forget_searches()
        return None

    def find_victims(self, item: Waiting, policy: VictimPolicy) -> frozenset[Candidate] | None:
        """Return the jobs to stop for a job, None if there is no such set. After a failed search only nodes that
        changed since are searched, until `forget_searches`: meanwhile other jobs only take capacity."""
        # Keyed by signature, so that equal jobs of other projects need no search of their own.
        key, changes = (item.request, policy.signature), self._state.capacity.soon.changes
        made_at, known = self._victims.get(key, (-1, None))
        if made_at == len(changes):
            # The queue asks for each class of a project whether it could replace lower priorities.
            return known
        changed = sorted(set(changes[self._no_victims[key] :])) if key in self._no_victims else None
        found = None if changed == [] else self._search(item, policy, changed)
        if found is None:
            self._no_victims[key] = len(changes)
        elif not self._state.can_shrink:
            # Where a job can shrink, the victims also depend on the sizes of the waiting job.
            self._victims[key] = len(changes), found
        return found

    def _search(
        self, item: Waiting, policy: VictimPolicy, among: Sequence[int] | None
    ) -> frozenset[Candidate] | None:
        """Return jobs to stop that can all shrink instead, if these are enough; else the cheapest ones; None if there
        is no set. `among`: see `search.find_victims`."""
        state = self._state
        soon, shrink = state.capacity.soon, ShrinkPolicy(policy)
        # The second search costs as much as the first, so it runs only if some job can shrink.
        if state.can_shrink:
            found = find_victims(item.request, soon, shrink, state.candidates, among)
            if found is not None and can_go_on(found, item, soon):
                return found
        return find_victims(item.request, soon, policy, state.candidates, among)

    def forget_searches(self) -> None:
        """Clear the caches of failed searches. For use once capacity or possible victims were added."""
        self._no_room.clear()
        self._no_victims.clear()
        self._victims.clear()

    def fits(self, item: Waiting) -> bool:
        return self.find(item, is_soon=False) is not None or self.find(item, is_soon=True) is not None
