"""Explain why a job stays queued: the first reason that applies, the numbers that were compared, and who holds the
capacity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, overload

from controlplane.scheduling import reasons
from controlplane.scheduling.capacity import FreeCapacity
from controlplane.scheduling.cycle_state import CycleState
from controlplane.scheduling.feasibility import Refusal
from controlplane.scheduling.fit import (
    Request,
    has_amounts,
    host_needs,
    place,
    pods_that_fit,
    with_only,
    without,
)
from controlplane.scheduling.limits import not_ready, over_limit, over_quota, postponed
from controlplane.scheduling.locality import is_out_of_reach, location_to_fill
from controlplane.scheduling.mentions import mention
from controlplane.scheduling.order import JobClass, Waiting, in_turn, requeued_later
from controlplane.scheduling.plan import Details, Hold
from controlplane.scheduling.view import JobView, placements_to_lists

SHOWN = 3
"""The most jobs ahead, and the most holders, that a Hold lists."""
SHOWN_SECONDS = 600

# A reason of higher precedence hides that the job was preempted: the job could not start even on free GPUs.
_BEFORE_PREEMPTED = frozenset(
    list(reasons.QUEUED_REASONS)[: list(reasons.QUEUED_REASONS).index(reasons.PREEMPTED)]
)


class Holds(Sequence[Hold]):
    """The Holds of a plan, promised jobs first. They are explained when they are read, once per class of equal jobs.

    A slice explains only its own Holds, an iteration those that it reads, any other access all. Holds that were not
    read before `expire` raise RuntimeError.
    """

    def __init__(
        self,
        state: CycleState,
        classes: Sequence[JobClass],
        impossible: Sequence[tuple[JobView, Refusal]],
    ) -> None:
        self._state = state
        # Missing workers of running jobs are not jobs of the queue.
        self._promised = [item for item, _ in state.promises.values() if not item.job.workers_for]
        self._classes = [one for one in classes if not one.jobs[0].workers_for]
        self._impossible = [(job, refusal) for job, refusal in impossible if not job.workers_for]
        self._holds: tuple[Hold, ...] | None = None
        self._is_expired = False

    def expire(self) -> None:
        """Let Holds that were not read yet raise RuntimeError, because the state is about to change."""
        self._is_expired = True

    def __len__(self) -> int:
        if self._holds is not None:
            return len(self._holds)
        self._check()
        undecided = sum(len(one.jobs) - one.at for one in self._classes)
        return len(self._promised) + undecided + len(self._impossible)

    def __iter__(self) -> Iterator[Hold]:
        if self._holds is not None:
            yield from self._holds
            return
        holds = []
        self._check()
        for hold in self._explained(0):
            holds.append(hold)
            yield hold
            self._check()
        self._holds = tuple(holds)

    @overload
    def __getitem__(self, index: int) -> Hold: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Hold]: ...
    def __getitem__(self, index: int | slice) -> Hold | Sequence[Hold]:
        if self._holds is None and isinstance(index, slice):
            first, last, step = index.indices(len(self))
            if step == 1:
                return tuple(islice(self._explained(first), max(0, last - first)))
        return tuple(self)[index] if self._holds is None else self._holds[index]

    def _check(self) -> None:
        if self._is_expired:
            raise RuntimeError("the holds of this plan were not read before the next cycle began")

    def _explained(self, first: int) -> Iterator[Hold]:
        """Yield the Holds from the index `first` on."""
        ahead = [job.id for _, job in islice(self._turns(0), min(first, SHOWN))]
        explainer, state = Explainer(self._state, ahead=ahead), self._state
        own = None if state.reservation is None else state.reservation.item.job.id
        # Details name at most SHOWN jobs ahead, which are the same for every later job, so the later jobs of a
        # class share their details.
        shared: dict[int, tuple[str, Details]] = {}
        position = first
        for one, job in self._turns(first):
            position += 1
            # A promise, and a reservation's time and place, belong to one job of the class.
            if isinstance(one, Waiting):
                yield explainer.hold(one, position)
                continue
            if position <= SHOWN or job.id == own:
                yield explainer.hold(one.waiting(job), position)
                continue
            if id(one) not in shared:
                hold = explainer.hold(one.waiting(job), position)
                shared[id(one)] = (hold.reason, hold.details)
            code, details = shared[id(one)]
            yield Hold(job.id, job.project, code, details, position)
        passed = max(0, first - (len(self) - len(self._impossible)))
        yield from out_of_line(self._impossible[passed:])

    def _turns(self, skip: int) -> Iterator[tuple[Waiting | JobClass, JobView]]:
        """Yield (class, job) for the jobs in the queue from the index `skip` on. For a promised job the first is its
        Waiting."""
        yield from ((item, item.job) for item in self._promised[skip:])
        yield from in_turn(self._classes, max(0, skip - len(self._promised)))


class Explainer:
    """Explains the held jobs of one cycle, once it is finished. Free capacity is searched once for each kind of
    request."""

    def __init__(
        self, state: CycleState, refusals: Mapping[str, Refusal] | None = None, ahead: Iterable[str] = ()
    ) -> None:
        """`refusals`: known reasons, by job id. `ahead`: ids of the jobs at the head of the queue that are not
        explained here."""
        self._state = state
        self._refusals = refusals or {}
        self._ahead = list(ahead)
        self._causes: dict[Request, tuple[str, dict[str, Any]]] = {}
        self._holders = _holders(state)
        self._without_promises: FreeCapacity | None = None

    def hold(self, item: Waiting, position: int) -> Hold:
        """Return the Hold of the next job in the queue. Call it in the order of `position`: details name the jobs
        ahead."""
        job = item.job
        code, numbers = self._reason(item)
        is_promised = job.id in self._state.promises
        details = {**self._standing(item), **numbers, "ahead": list(self._ahead), "holders": self._holders}
        if job.was_preempted_by is not None and code not in _BEFORE_PREEMPTED:
            details |= {**_taken_by(job), **requeued_later(self._state.view), "blocked_by": code}
            code = reasons.PREEMPTED
        if len(self._ahead) < SHOWN:
            self._ahead.append(job.id)
        return Hold(job.id, job.project, code, details, position, is_promised)

    def _standing(self, item: Waiting) -> dict[str, Any]:
        account = item.account
        size = {"pods": item.request.pods, "most_pods": item.job.pods} if item.is_elastic else {}
        used = {"used_percent": round(100 * account.usage)} if account.usage else {}
        return {
            **size,
            **used,
            **self._own_reservation(item),
            "project": account.name,
            "request_milli_gpus": item.milli_gpus,
            "allocated_milli_gpus": account.allocated,
            "fair_share_milli_gpus": account.fair_share,
            "quota_milli_gpus": account.quota,
            "limit_milli_gpus": account.limit,
            "total_milli_gpus": self._state.total_milli_gpus,
            "withheld_milli_gpus": self._state.withheld_milli_gpus,
        }

    def _own_reservation(self, item: Waiting) -> dict[str, Any]:
        """Return the time and the nodes of the reservation if the job has it and is not placed yet; else {}."""
        own, starts = self._state.reservation, self._state.starts
        if own is None or own.item.job.id != item.job.id or item.job.id in {*starts, *self._state.promises}:
            return {}
        return {"reserved_at": _shown_time(own.at), "reserved": placements_to_lists(own.placements)}

    def _reason(self, item: Waiting) -> tuple[str, dict[str, Any]]:
        if item.job.id in self._state.promises:
            _, placements = self._state.promises[item.job.id]
            promised = placements_to_lists(placements)
            stopping = [
                mention(one.project, one.id, one.label) for one in self._state.stopping_for(item, placements)
            ]
            kept = (
                {"request_milli_gpus": sum(pod.milli_gpus for pod in placements)} if item.is_elastic else {}
            )
            return reasons.WAITING_FOR_RECLAIM, {**kept, "stopping": stopping, "promised": promised}
        refusal = self._refusals.get(item.job.id) or self._refuse(item)
        if refusal is not None:
            return refusal.code, refusal.details
        reservation = self._state.binding(item)
        if reservation is not None and place(item.request, self._state.capacity.now) is not None:
            held_for = {**_reserved_for(reservation.item.job), "reserved_at": _shown_time(reservation.at)}
            return reasons.RESERVED_FOR_OLDER_GANG, {**self._numbers(item.request), **held_for}
        if (missing := location_to_fill(item, self._state.capacity.now)) is not None:
            return reasons.WAITING_FOR_DATA, {**dict(item.job.data_progress), "fill_at": missing}
        if is_out_of_reach(item.job, item.request, self._state.capacity.now.nodes):
            return reasons.WAITING_FOR_DATA, dict(item.job.data_progress)
        if item.request not in self._causes:
            self._causes[item.request] = self._cause(item.request)
        code, numbers = self._causes[item.request]
        if code == reasons.CLUSTER_FULL and "resource" not in numbers:
            code = reasons.CLUSTER_FULL if item.is_in_share else reasons.OVER_FAIR_SHARE
        return code, numbers

    def _refuse(self, item: Waiting) -> Refusal | None:
        """Return a refusal that holds whatever capacity is free, such as a limit or a back-off; None if there is
        none."""
        refused = over_limit(item) or over_quota(item) or not_ready(item.job)
        if refused is not None:
            return refused
        later = postponed(item.job, self._state.view)
        # Without the back-off the job would not start either; then the other reason says more.
        if later is not None and (item.is_in_share or place(item.request, self._state.capacity.now)):
            return later
        if place(item.request, self._state.capacity.now, item.job.avoid) is not None:
            # Stopping jobs count until they are proven gone.
            return over_limit(item, is_held=True) or over_quota(item, is_held=True)
        return None

    def _numbers(self, request: Request) -> dict[str, Any]:
        room = self._state.capacity.now
        return {
            "free_milli_gpus": room.free_milli_gpus(request.pools, (), request.locations),
            "largest_free_milli_gpus": _largest_free(room, request),
            "pods": request.pods,
            "pods_that_fit": pods_that_fit(request, room, request.pods) if request.pods > 1 else 0,
        }

    def _cause(self, request: Request) -> tuple[str, dict[str, Any]]:
        """Return (reason code, details) for a request that does not fit now. The result is cached by request and so
        ignores the project; `_reason` checks the fair share afterwards."""
        room, numbers = self._state.capacity.now, self._numbers(request)
        if self._state.promises and place(request, self._room_without_promises()) is not None:
            return reasons.RESERVED_FOR_OLDER_GANG, {**numbers, **self._first_promised()}
        if numbers["pods_that_fit"] > 0:
            return reasons.GANG_DOES_NOT_FIT, numbers
        # Nodes on which the request can never fit are excluded: they would report a shortage that waiting
        # cannot end.
        too_small = self._too_small_for(request)
        is_shut_out = not any(
            node.is_open and node.name not in too_small and request.admits(node) for node in room.nodes
        )
        short = _short_of(replace(request, pods=1), room, frozenset() if is_shut_out else too_small)
        if short is not None:
            shut_out = {"is_shut_out": True} if is_shut_out else {}
            return reasons.CLUSTER_FULL, {**numbers, **shut_out, **short}
        free = room.free_milli_gpus(request.pools, too_small, request.locations)
        if request.pods == 1 and free >= request.milli_gpus > 0:
            return reasons.FRAGMENTED, numbers
        return reasons.CLUSTER_FULL, numbers

    def _too_small_for(self, request: Request) -> frozenset[str]:
        """Return the names of the nodes that have too few CPUs, memory or extra resources for a pod of the request
        even when empty."""
        return frozenset([node.name for node in self._state.view.nodes if not has_amounts(node, request)])

    def _room_without_promises(self) -> FreeCapacity:
        if self._without_promises is None:
            self._without_promises = self._state.capacity.without_promises()
        return self._without_promises

    def _first_promised(self) -> dict[str, str]:
        return _reserved_for(next(item.job for item, _ in self._state.promises.values()))


def _reserved_for(job: JobView) -> dict[str, str]:
    return {"reserved_for": job.id, "reserved_for_name": job.label, "reserved_for_project": job.project}


def _shown_time(at: int) -> int:
    """Return a Unix time rounded up to a multiple of SHOWN_SECONDS: details that change in every cycle would be written
    in every cycle."""
    return -(-at // SHOWN_SECONDS) * SHOWN_SECONDS


def out_of_line(impossible: Iterable[tuple[JobView, Refusal]]) -> list[Hold]:
    """Return the Holds of jobs that can never start on this cluster; they have no queue position."""
    return [Hold(job.id, job.project, refusal.code, refusal.details, None) for job, refusal in impossible]


def _taken_by(job: JobView) -> dict[str, Any]:
    """Return the details that name the job for which a job was preempted. The recorded reason may have more, such as
    that job's name."""
    known = "preempt" if job.was_preempted_by_project == job.project else "reclaim"
    taken: dict[str, Any] = {"by_job": job.was_preempted_by, "kind": job.was_preempted_kind or known}
    if job.was_preempted_by_project is not None:
        taken["by_project"] = job.was_preempted_by_project
    return taken


def _short_of(one: Request, room: FreeCapacity, too_small: frozenset[str]) -> dict[str, Any] | None:
    """Return as details which of CPUs, memory and extra resources keeps a pod from fitting on nodes that are large
    enough; None if GPUs are missing. `together`: some nodes have enough of this resource, but none of those has the
    rest of the request."""

    def fits(less: Request) -> bool:
        found = place(less, room, too_small)
        return found is not None and not any(placement.node in too_small for placement in found)

    needs = host_needs(one)
    # The GPUs alone do not fit, so no host resource is the cause.
    if not fits(with_only(one, ())):
        return None
    for need in needs:
        if not fits(with_only(replace(one, milli_gpus=0, gpu_memory_mib=None), (need,))):
            return {"resource": need}
    helpful = (need for need in needs if fits(without(one, need)))
    return {"resource": next(helpful, needs[0]), "together": True}


def _largest_free(room: FreeCapacity, request: Request) -> int:
    """Return the most milli-GPUs that one pod could get now on a node with enough CPUs, memory and extra resources
    for it; 0 if there is none."""
    indexes = [room.parts[part] for part in room.parts_of(request.pools, request.locations)]

    def has_room(order: int) -> bool:
        return room.nodes[order].has_host_capacity(request)

    most = max((len(index.by_whole) for index in indexes), default=0)
    for free in reversed(range(1, most)):
        buckets = (index.by_whole[free] for index in indexes if free < len(index.by_whole))
        if any(has_room(order) for bucket in buckets for order in bucket):
            return free * 1000
    shares = (
        free
        for index in indexes
        for devices in index.shared.values()
        for free, order, _ in devices
        if has_room(order)
    )
    return max(shares, default=0)


def _holders(state: CycleState) -> list[dict[str, Any]]:
    """Return the projects that hold the capacity, as details, at most SHOWN: those furthest above their quota first,
    then the largest."""
    accounts = sorted(
        (account for account in state.accounts.values() if account.allocated > 0),
        key=lambda account: (
            -max(0, account.allocated - (account.quota or 0)),
            -account.allocated,
            account.name,
        ),
    )
    return [
        {
            "project": account.name,
            "allocated_milli_gpus": account.allocated,
            "over_quota_milli_gpus": max(0, account.allocated - (account.quota or 0)),
        }
        for account in accounts[:SHOWN]
    ]
