"""One cycle of deciding: `decide(view) -> Plan`. The same view always gives the same plan.

Every waiting job is looked at in turn: start on free room; else keep room that is being freed; else make room by
reclaim between projects; else by preemption inside its project; else hold, with the reason. Passes
repeat until one changes nothing, so that a second cycle on an unchanged cluster has nothing left to do. Elastic jobs
that start then take what is left idle.
"""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.scheduling.cycle_state import Board, Promise
from controlplane.scheduling.elastic import ShrinkPolicy, as_promised, can_go_on, most_pods, widest
from controlplane.scheduling.fit import Request, is_free, place
from controlplane.scheduling.limits import is_backing_off, not_ready, over_limit, over_quota, postponed
from controlplane.scheduling.explain import Explainer, out_of_line
from controlplane.scheduling.order import QueueIterator, Waiting
from controlplane.scheduling.plan import Plan, Share
from controlplane.scheduling.search import find_victims
from controlplane.scheduling.feasibility import Refusal, line_up
from controlplane.scheduling.victims import Candidate, VictimPolicy, PreemptPolicy, ReclaimPolicy, preemption_cost
from controlplane.scheduling.view import ClusterView, JobView, PodPlacement

MAX_PASSES = 6
_Alike = tuple[str, Request, int, bool]


def decide(view: ClusterView) -> Plan:
    """What to start, stop and hold on this cluster now, each with its reason and the numbers compared."""
    cycle = _Cycle(view)
    cycle.redeem_promises()
    for _ in range(MAX_PASSES):
        if not (cycle.run_pass() or cycle.spare_needless() or cycle.divide_again()):
            break
    cycle.fill_idle()
    return cycle.plan()


class _Cycle:
    """The passes over one board, and what was learned about jobs that stay."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._board = Board(view)
        self._refusals: dict[str, Refusal] = {}
        self._waiting, self._impossible = line_up(view, self._board.accounts)
        self._elastic = [item for item in self._waiting if item.is_elastic]
        self._order: list[Waiting] = []
        self._no_room: set[tuple[Request, bool]] = set()
        self._no_victims: set[_Alike] = set()
        self._shares = self._divide()
        self._is_divided_again = False

    def redeem_promises(self) -> None:
        """FreeCapacity that earlier cycles made for a job is its own before anybody's turn comes.

        FreeCapacity that merely happened to be on its way is not: a job that is owed more may have come since.
        """
        board = self._board
        beneficiaries = {job.was_preempted_by for job in self._view.jobs}
        for item in self._waiting:
            job = item.job
            owed = as_promised(item) if job.promised else None
            if owed is None or self._refuse(owed) or postponed(job, self._view):
                continue
            if job.id not in beneficiaries and not owed.is_in_fair_share:
                continue
            if is_free(job.promised, job, board.ledger.now) and not _is_bound(owed):
                board.start(item, job.promised)
            elif is_free(job.promised, job, board.ledger.soon):
                board.promise(item, job.promised)

    def run_pass(self) -> bool:
        """Look at every job that still waits, once, in turn. Whether anything was decided."""
        board = self._board
        has_changed = self._start_promised_elsewhere()
        line = QueueIterator(item for item in self._waiting if not self._is_decided(item.job))
        self._order = []
        self._no_victims.clear()
        while (item := line.take()) is not None:
            evictions = board.evictions
            is_decided = self._consider(item)
            has_changed = has_changed or is_decided
            self._order.append(item)
            line.served()
            if board.evictions != evictions:
                line.resort()  # those who lost a job stand elsewhere in the line now
        return has_changed

    def _start_promised_elsewhere(self) -> bool:
        """Other room than the promised may have become free, and nobody was promised that."""
        has_changed = False
        for item, placements in list(self._board.promises.values()):
            if (item.request, False) not in self._no_room:
                self._board.release(item)
                if self._start(item.of(len(placements))):
                    has_changed = True
                else:
                    self._board.promise(item, placements)
        return has_changed

    def spare_needless(self) -> bool:
        """Let victims go free that the beneficiaries of this cycle, taken together, do not need.

        Each set is the smallest for one job; room made for one may also serve another. Most harmed first.
        """
        if len(self._board.promises) < 2:
            return False
        victims = sorted(self._board.victims.values(), key=lambda victim: preemption_cost((victim,)), reverse=True)
        return any(self._spare(victim.job.id) for victim in victims)

    def _spare(self, victim: str) -> bool:
        """Whether every beneficiary can be served without this victim; if so, it is spared."""
        board = self._board
        started, preempts = set(board.starts), dict(board.preempts)
        promised = board.withdraw_promises()
        spared = board.spare(victim)
        self._no_room.clear()
        if self._serve_all(promised, {preempt.beneficiary for preempt in preempts.values()}):
            return True
        for item, _ in promised:
            if item.job.id in board.starts.keys() - started:
                board.unstart(item)
        board.withdraw_promises()
        board.evict_again(*spared)
        board.preempts = preempts
        self._no_room.clear()
        for item, placements in promised:
            board.promise(item, placements)
        return False

    def _serve_all(self, promised: Sequence[Promise], beneficiaries: set[str]) -> bool:
        """Serve the beneficiaries, all of them or it is no use; then the others as far as that goes."""
        owed = (item for item, _ in promised if item.job.id in beneficiaries)
        if not all(self._serve(item, is_wide=False) for item in owed):
            return False
        for item, _ in promised:
            if item.job.id not in beneficiaries:
                self._serve(item, is_wide=False)
        for item, _ in promised:
            if item.is_elastic and self._is_decided(item.job):
                self._widen(item, is_sure=True)
        return self._board.attribute_preempts()

    def _serve(self, item: Waiting, *, is_wide: bool = True) -> bool:
        return self._start(item, is_wide=is_wide) or self._keep_room(item, is_wide=is_wide)

    def divide_again(self) -> bool:
        """Elastic jobs that start with fewer pods than they asked for ask for no more now: once in a cycle, what that
        leaves is divided among the others. Whether there was anything."""
        board = self._board
        is_short = any(len(placements) < item.job.pods for item, placements in self._elastic_starts())
        if not is_short or self._is_divided_again:
            return False
        self._is_divided_again = True
        promised = board.withdraw_promises()
        self._divide()
        for item, placements in promised:
            board.promise(item, placements)
        self._no_room.clear()
        return True

    def fill_idle(self) -> None:
        """Let the elastic jobs that start have what is left, unless somebody who waits could take it back.

        One that starts on room that was made for it leaves alone what is not its share while others are on their way
        out: those may come back for it.
        """
        board = self._board
        before = [
            (item, placements)
            for item, placements in self._elastic_starts()
            if not (item.job.promised and board.is_releasing)
        ]
        for item, _ in before:
            self._widen(item, is_sure=False)
        if before and self._could_be_taken_back():
            for item, _ in before:
                board.unstart(item)
            for item, placements in before:
                board.start(item, placements)

    def _elastic_starts(self) -> list[Promise]:
        """The elastic jobs that start, and where."""
        starts = self._board.starts
        return [(item, starts[item.job.id].placements) for item in self._elastic if item.job.id in starts]

    def _could_be_taken_back(self) -> bool:
        """Whether somebody who still waits could take room from others after all. Asked once for all who are alike."""
        alike = {
            _alike(item): item
            for item in self._waiting
            if not self._is_decided(item.job) and item.job.id not in self._refusals
        }
        return any(self._could_reclaim(item) for item in alike.values())

    def _could_reclaim(self, item: Waiting) -> bool:
        gate, board = ReclaimPolicy(item), self._board
        return (
            gate.is_open()
            and board.has_giver(gate)
            and find_victims(item.request, board.ledger.soon, gate, board.candidates) is not None
        )

    def plan(self) -> Plan:
        """The decisions in the order in which they apply: stop, start, hold."""
        board = self._board
        held = [item for item, _ in board.promises.values()]
        # whoever gave way in the last pass was not looked at in it, and comes last
        rest = {item.job.id: item for item in (*self._order, *self._waiting)}
        held += [item for item in rest.values() if not self._is_decided(item.job)]
        explainer = Explainer(board, self._refusals)
        holds = [explainer.hold(item, position) for position, item in enumerate(held, start=1)]
        holds += out_of_line(self._impossible)
        return Plan((*board.preempts.values(), *board.starts.values(), *holds), self._shares)

    def _divide(self) -> tuple[Share, ...]:
        started = self._board.starts
        ready = [item for item in self._waiting if item.job.id not in started and self._is_ready(item.job)]
        return self._board.divide(ready)

    def _is_ready(self, job: JobView) -> bool:
        """Whether it could start if there were room: only such jobs count as requests."""
        return not_ready(job) is None and not is_backing_off(job, self._view.now)

    def _is_decided(self, job: JobView) -> bool:
        return job.id in self._board.starts or job.id in self._board.promises

    def _consider(self, item: Waiting) -> bool:
        """Decide about one job if anything can be decided; a refusal is kept for its Hold."""
        self._refusals.pop(item.job.id, None)
        refusal = self._refuse(item)
        later = postponed(item.job, self._view)
        if refusal is None and later is not None and self._find(item, is_soon=False) is not None:
            refusal = later
        if refusal is not None:
            self._refusals[item.job.id] = refusal
        if refusal is not None or later is not None:
            return False
        return self._serve(item) or self._make_room(item)

    @staticmethod
    def _refuse(item: Waiting) -> Refusal | None:
        return over_limit(item) or over_quota(item) or not_ready(item.job)

    def _start(self, item: Waiting, *, is_wide: bool = True) -> bool:
        if _is_bound(item):
            return False
        placements = self._find(item, is_soon=False, is_wide=is_wide)
        if placements is None:
            return False
        self._board.start(item, placements)
        return True

    def _find(self, item: Waiting, *, is_soon: bool, is_wide: bool = True) -> tuple[PodPlacement, ...] | None:
        """Where the job fits, remembering requests that do not: room only shrinks until someone is stopped. An elastic
        job takes as much as fits of what it is sure of, unless not `is_wide`."""
        key = (item.request, is_soon)
        if key in self._no_room:
            return None
        room = self._board.ledger.soon if is_soon else self._board.ledger.now
        placements = place(item.request, room, item.job.avoid)
        if placements is None:
            self._no_room.add(key)
        elif item.is_elastic and is_wide:
            return widest(item, room, most_pods(item, is_held=not is_soon, is_sure=True))
        return placements

    def _widen(self, item: Waiting, *, is_sure: bool) -> None:
        """Have an elastic job that starts, or that is promised room, take as much as fits."""
        board, is_soon = self._board, item.job.id in self._board.promises
        if is_soon:
            before = board.promises[item.job.id][1]
            board.release(item)
        else:
            before = board.starts[item.job.id].placements
            board.unstart(item)
        most = most_pods(item, is_held=not is_soon, is_sure=is_sure)
        room = board.ledger.soon if is_soon else board.ledger.now
        placements = (widest(item, room, most) if most > len(before) else None) or before
        if is_soon:
            board.promise(item, placements)
        else:
            board.start(item, placements)

    def _keep_room(self, item: Waiting, *, is_wide: bool = True) -> bool:
        """Keep room that is on its way: where it was promised before, else anywhere."""
        if not self._board.is_releasing:
            return False
        promised = item.job.promised
        placements = (
            promised if self._keeps_promise(item) else self._find(item, is_soon=True, is_wide=is_wide)
        )
        if placements is None:
            return False
        self._board.promise(item, placements)
        return True

    def _keeps_promise(self, item: Waiting) -> bool:
        """Whether the room that it was promised is still there for it."""
        job = item.job
        if not job.promised or not is_free(job.promised, job, self._board.ledger.soon):
            return False
        owed = as_promised(item)
        return owed is item or (owed is not None and self._refuse(owed) is None)

    def _make_room(self, item: Waiting) -> bool:
        key = _alike(item)
        if key in self._no_victims:
            return False
        reclaim = ReclaimPolicy(item)
        gates: list[VictimPolicy] = [reclaim] if reclaim.is_open() else []
        for gate in [*gates, PreemptPolicy(item)]:
            victims = self._find_victims(item, gate)
            if victims is not None:
                self._take(item, victims, gate)
                return True
        self._no_victims.add(key)
        return False

    def _find_victims(self, item: Waiting, gate: VictimPolicy) -> frozenset[Candidate] | None:
        """Those who can go on smaller, if they are enough and all of them can; else whoever harms least."""
        board = self._board
        shrink = ShrinkPolicy(gate)
        if board.can_shrink and board.has_giver(shrink):
            found = find_victims(item.request, board.ledger.soon, shrink, board.candidates)
            if found is not None and can_go_on(found, item, board.ledger.soon):
                return found
        if not board.has_giver(gate):
            return None
        return find_victims(item.request, board.ledger.soon, gate, board.candidates)

    def _take(self, item: Waiting, victims: frozenset[Candidate], gate: VictimPolicy) -> None:
        self._board.evict(victims, item, gate.kind)
        self._no_room.clear()
        self._no_victims.clear()
        self._serve(item)


def _alike(item: Waiting) -> _Alike:
    """Jobs for which the same victims can be found, or none."""
    return (item.account.name, item.request, item.job.priority, item.job.is_preemptible)


def _is_bound(item: Waiting) -> bool:
    """Whether a stopping job of its own project must be gone first, for the limit or the quota."""
    return over_limit(item, is_held=True) is not None or over_quota(item, is_held=True) is not None
