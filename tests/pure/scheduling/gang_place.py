"""The place that a plan reserves for a gang, for exactness.py: which newcomers must leave it free, and whether
they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from controlplane.scheduling.cycle import decide_on
from controlplane.scheduling.cycle_state import CycleState
from controlplane.scheduling.expected_ends import expected_end, rounded_up
from controlplane.scheduling.feasibility import QueuedJobs
from controlplane.scheduling.growth import with_missing_workers
from controlplane.scheduling.order import job_key
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.view import ClusterView, JobView, PodPlacement, placements_from_lists
from tests.pure.scheduling.brute import WHOLE, Rooms
from tests.pure.scheduling.plan_sums import project_of, promised_to, staying, sums_with_promises


class GangPlace:
    """The place of the plan's reservation at its time. `bound` newcomers must not use the capacity that the gang
    needs on these nodes then, on any device; others may (README, rule 8)."""

    def __init__(
        self, view: ClusterView, plan: Plan, reserved: Sequence[PodPlacement], gang: JobView
    ) -> None:
        self._view, self._plan, self._gang = view, plan, gang
        self._at = _reserved_at(view)
        self._pods = Counter(pod.node for pod in reserved)
        growing = {one.job for one in plan.growth}
        placed = {one.job: one.placements for one in plan.starts}
        placed |= {one.job: promised_to(one) for one in plan.holds if one.is_promised}
        placed |= {one.job: one.placements for one in plan.growth}
        jobs = [job for job in view.jobs if job.id in placed]
        # A worker that a running job lacks comes after the queued jobs, and its end is not known.
        self._long = {job.id for job in jobs if job.id in growing or self._runs_on(job)}
        beside = (job for job in jobs if not any(pod.node in self._pods for pod in placed[job.id]))
        self.bound = {job.id for job in beside if self._is_bound(job, is_growing=job.id in growing)}

    def _runs_on(self, job: JobView) -> bool:
        expected = job.expected_runtime_seconds
        return expected is None or self._view.now + expected > self._at

    def _is_bound(self, job: JobView, *, is_growing: bool) -> bool:
        expected = None if is_growing else rounded_up(job.expected_runtime_seconds)
        if expected is not None and self._view.now + expected <= self._at:
            return False
        quota = project_of(self._view, job.project).quota_milli_gpus
        holds = sum(sums_with_promises(self._view, self._plan, {job.project}))
        is_in_quota = quota is None or holds <= quota
        if job.project != self._gang.project:
            return not is_in_quota
        is_later = (is_growing and job.priority <= self._gang.priority) or job_key(job) > job_key(self._gang)
        return is_later and not (is_in_quota and self._is_larger_than_share())

    def _is_larger_than_share(self) -> bool:
        hold = next(one for one in self._plan.holds if one.job == self._gang.id)
        numbers, quota = hold.details, hold.details["quota_milli_gpus"]
        share = numbers["fair_share_milli_gpus"]
        return quota is not None and numbers["request_milli_gpus"] > max(quota, share)

    def without(self, gone: set[str]) -> Trial:
        """Return a trial with the jobs that still run at the reserved time if `gone` (ids) are stopped."""
        running = [
            job
            for job in staying(self._view, gone)
            if (end := expected_end(job, self._view.now)) is None or end > self._at
        ]
        return Trial(self, Rooms(self._view, running), Rooms(self._view, running))

    def kept(self, rooms: Rooms) -> list[tuple[int, ...]]:
        """Return, for each node of the place, how much of the capacity that the gang needs there is free."""
        return [self._kept_on(rooms, name, pods) for name, pods in sorted(self._pods.items())]

    def _kept_on(self, rooms: Rooms, name: str, pods: int) -> tuple[int, ...]:
        gang, node = self._gang, rooms.nodes[name]
        whole = 0 if gang.gpu_memory_mib is not None else gang.milli_gpus // WHOLE
        devices = min(pods * whole, sum(free == WHOLE for free in node.free.values()))
        if gang.milli_gpus and not whole:
            devices = min(
                pods, sum(max(0, free) // rooms.share_on(gang, name, at) for at, free in node.free.items())
            )
        needs = [(gang.milli_cpus, node.rest[0]), (gang.memory_mib, node.rest[1])]
        needs += [(amount, node.extras.get(need, 0)) for need, amount in gang.extras]
        return devices, *(min(pods * need, free) for need, free in needs)


class Trial:
    """One attempt to place newcomers: the capacity that they hold at the reserved time, of all and of those that
    are not bound."""

    def __init__(self, place: GangPlace, everyone: Rooms, unbound: Rooms) -> None:
        self._place, self._everyone, self._unbound = place, everyone, unbound

    def change(self, name: str, job: JobView, pod: PodPlacement, sign: int) -> None:
        """Take (-1) or give back (1) the capacity that a pod of a newcomer holds at the reserved time."""
        is_bound = name in self._place.bound
        if is_bound or name in self._place._long:
            self._everyone.change(job, pod, sign)
            if not is_bound:
                self._unbound.change(job, pod, sign)

    def is_kept(self) -> bool:
        """Return whether the bound newcomers take nothing from the gang's place that the others leave."""
        return self._place.kept(self._everyone) == self._place.kept(self._unbound)


def gang_place(view: ClusterView, plan: Plan) -> GangPlace | None:
    """Return the place that this plan reserves for a gang; None if it reserves none."""
    for hold in plan.holds:
        if "reserved" in hold.details:
            gang = next(job for job in view.jobs if job.id == hold.job)
            return GangPlace(view, plan, placements_from_lists(hold.details["reserved"]), gang)
    return None


def _reserved_at(view: ClusterView) -> int:
    """Return the exact time of the reservation (Unix time); a hold shows it rounded."""
    view = with_missing_workers(view)
    state = CycleState(view)
    decide_on(state, QueuedJobs(view, state.accounts))
    assert state.reservation is not None
    return state.reservation.at
