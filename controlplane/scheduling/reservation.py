"""Reservation and backfill: a time and nodes for the oldest gang that cannot start.

The time is the first at which the whole gang fits, judged by expected ends. A job that the reservation binds starts
only if it ends by then, or on capacity that the gang does not need. Reclaimed capacity is kept for its job by a
promise instead (`JobView.promised`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from operator import itemgetter

from controlplane.scheduling.capacity import FreeCapacity, NodeCapacity
from controlplane.scheduling.expected_ends import End, ends_by, expected_end
from controlplane.scheduling.fit import Request, place
from controlplane.scheduling.order import Waiting, job_key
from controlplane.scheduling.view import JobView, PodPlacement

_TIME = itemgetter(0)


class Reservation:
    """The time `at` (Unix seconds) and the `placements` at which the gang `item` is expected to start.

    `room`: the capacity that is free at that time; the reservation keeps it, takes the gang's capacity from it, and
    changes it further, so the caller must not use it afterwards. `now`: in Unix seconds. `_later`: what is free on
    those nodes at that time, without the gang and without the jobs of this plan that run longer. Jobs that the
    reservation binds and that run beyond `at` may use no more than this.
    """

    __slots__ = ("_delays", "_is_above_entitlement", "_later", "_now", "at", "item", "placements")

    def __init__(
        self, item: Waiting, at: int, placements: tuple[PodPlacement, ...], room: FreeCapacity, now: int
    ) -> None:
        self.item = item
        self.at = at
        self.placements = placements
        self._now = now
        # Caches whether a run time reaches beyond `at`, which every phase asks for every job.
        self._delays: dict[int | None, bool] = {}
        entitled = item.account.entitled
        self._is_above_entitlement = entitled is not None and item.milli_gpus > entitled
        for placement in placements:
            room.take(placement, item.job)
        orders = {room.positions[placement.node] for placement in placements}
        self._later: dict[int, NodeCapacity] = {order: room.nodes[order] for order in sorted(orders)}

    def binds(self, item: Waiting, *, is_idle: bool = False, is_placed: bool = False) -> bool:
        """Return whether a job must not delay the gang: it runs beyond `at` and either comes later in the gang's own
        project, or takes another project above its quota. Exception: a gang larger than its project's entitlement
        borrows, so that jobs within that project's quota may delay it.

        `is_idle`: the capacity is for widening an elastic job beyond the share, which no quota covers. `is_placed`:
        the job is part of the plan, so that its account includes it already.
        """
        if not self.is_delayed_by(item.job):
            return False
        is_in_quota = item.account.is_in_quota_with(0 if is_placed else item.milli_gpus) and not is_idle
        if item.account is not self.item.account:
            return not is_in_quota
        is_later = job_key(item.job) > job_key(self.item.job)
        return is_later and not (is_in_quota and self._is_above_entitlement)

    def is_delayed_by(self, job: JobView) -> bool:
        """Return whether a job other than the gang would run beyond the reserved time if it started now; True if its
        run time is unknown."""
        if job.id == self.item.job.id:
            return False
        seconds = job.expected_runtime_seconds
        delays = self._delays.get(seconds)
        if delays is None:
            delays = self._delays[seconds] = not ends_by(job, self._now, self.at)
        return delays

    def count(self, job: JobView, placements: Iterable[PodPlacement], sign: int = -1) -> None:
        """Subtract what a job of the plan still holds at the reserved time from what is free then; with `sign` 1,
        undo that."""
        # Exact, as when the place was found, while verdicts on waiting jobs are by class.
        end = expected_end(job, self._now)
        if end is not None and end <= self.at:
            return
        for node in self._later.values():
            for placement in placements:
                if placement.node == node.name:
                    node.change_host(job, sign)
                    for index, milli_gpus in placement.devices:
                        at = node.indexes.index(index)
                        node.free[at] += sign * milli_gpus
                        if node.free[at] < 0:
                            self._move_gang(node, at)

    def _move_gang(self, node: NodeCapacity, taken: int) -> None:
        """Move the gang from a device that another job will use to one that will be free, if the node has one.
        `taken`: the position of the used device in `node.free`."""
        held = self._held(node, taken)
        free = next((at for at, milli_gpus in enumerate(node.free) if milli_gpus >= held), None)
        if held and free is not None:
            self._exchange(node, taken, free, held)

    def _move_to_busy(self, node: NodeCapacity, soon: NodeCapacity) -> None:
        """Move the gang to devices that are in use until its time, so that other jobs can use the idle ones. `soon`:
        what is free on the node before that time."""
        if not any(soon.free) or max(node.free, default=0) <= 0:
            return
        for taken in sorted(range(len(soon.free)), key=lambda at: -soon.free[at]):
            held = self._held(node, taken)
            busy = min(
                (at for at, milli_gpus in enumerate(node.free) if held and milli_gpus >= held),
                key=lambda at: soon.free[at],
                default=taken,
            )
            if soon.free[busy] < soon.free[taken]:
                self._exchange(node, taken, busy, held)

    def _held(self, node: NodeCapacity, at: int) -> int:
        """Return how many milli-GPUs the gang reserves on a device and could have on another one; 0 for shares by
        memory."""
        if self.item.job.gpu_memory_mib is not None:
            return 0
        index = node.indexes[at]
        return sum(dict(pod.devices).get(index, 0) for pod in self.placements if pod.node == node.name)

    def _exchange(self, node: NodeCapacity, before: int, after: int, held: int) -> None:
        node.free[after] -= held
        node.free[before] += held
        one, other = node.indexes[before], node.indexes[after]
        self.placements = tuple(
            _on_device(pod, one, other) if pod.node == node.name and one in dict(pod.devices) else pod
            for pod in self.placements
        )

    @contextmanager
    def kept(self, room: FreeCapacity) -> Iterator[FreeCapacity]:
        """Context manager that takes from `room` what the gang needs, and gives it back at its end."""
        before = {order: room.nodes[order].copy() for order in self._later}
        for order, node in self._later.items():
            self._move_to_busy(node, before[order])
            room.set_to_least(order, before[order], node)
        try:
            yield room
        finally:
            for order, node in before.items():
                room.set_to_least(order, node, node)

    def place(
        self, request: Request, room: FreeCapacity, avoid: Collection[str] = ()
    ) -> tuple[PodPlacement, ...] | None:
        """Return where a job that the reservation binds fits, outside of the reserved capacity; None if nowhere."""
        with self.kept(room):
            return place(request, room, avoid)


def keep_free(reservation: Reservation | None, room: FreeCapacity) -> AbstractContextManager[object]:
    """Return the context manager `reservation.kept(room)`; without a reservation, one that changes nothing."""
    return nullcontext() if reservation is None else reservation.kept(room)


def _on_device(pod: PodPlacement, before: int, after: int) -> PodPlacement:
    """Return the pod with the device `after` in the place of `before`, on the same node."""
    devices = ((after if index == before else index, share) for index, share in pod.devices)
    return replace(pod, devices=tuple(sorted(devices)))


def reserve(
    gangs: Iterator[Waiting], ends_at: Callable[[], Sequence[End]], soon: FreeCapacity, now: int
) -> Reservation | None:
    """Return the reservation of the first of these gangs for which a start time can be computed; None if there is
    none.

    `soon`: the capacity that is free once all stopping jobs have ended. `ends_at`: returns the expected ends of the
    jobs that hold the rest of the capacity; it is called only if there is a gang. `now`: in Unix seconds.
    """
    first = next(gangs, None)
    if first is None:
        return None
    ends = ends_at()
    timeless: set[Request] = set()
    for item in chain((first,), gangs) if ends else ():
        if item.request not in timeless:
            found = _earliest(item, ends, soon, now)
            if found is not None:
                return found
            timeless.add(item.request)
    return None


def _earliest(item: Waiting, ends: Sequence[End], soon: FreeCapacity, now: int) -> Reservation | None:
    """Return the reservation at the first expected end after which the gang fits; None if it never does. The search
    is a bisection, because further ends only add capacity."""
    earliest = _lower_bound(item.request, ends, soon)
    if earliest is None:
        return None
    # A gang in back-off cannot start before the back-off ends.
    not_before = max(now, item.job.not_before or 0)
    is_now_possible = earliest <= not_before
    first = max(bisect_right(ends, not_before, key=_TIME), bisect_left(ends, earliest, key=_TIME))
    # The steps are these ends, after the present if the gang may fit at once.
    low, high = 0, len(ends) - first + is_now_possible - 1
    # The lower bound is tried first: it is the exact time unless another resource than GPUs is short.
    step, found = low, None
    while low <= high:
        at = not_before if is_now_possible and not step else ends[first + step - is_now_possible][0]
        room = _room_at(at, item.request, ends, soon)
        placements = place(item.request, room)
        if placements is not None:
            found = Reservation(item, at, placements, room, now)
            high = step - 1
        else:
            low = step + 1
        step = (low + high) // 2
    return found


def _room_at(at: int, request: Request, ends: Sequence[End], soon: FreeCapacity) -> FreeCapacity:
    """Return the capacity that is free at the time `at`. Only nodes that can have enough devices for the request are
    brought to that time."""
    needed, room = request.whole_devices, soon.borrowed()
    ended = [job for *_, job in ends[: bisect_right(ends, at, key=_TIME)]]
    free = {node.name: node.whole for node in soon.nodes}
    for job in ended if needed else ():
        for placement in job.placements:
            free[placement.node] = free.get(placement.node, 0) + len(placement.devices)
    for job in ended:
        for placement in job.placements:
            if free.get(placement.node, 0) >= needed:
                room.give(placement, job)
    return room


def _lower_bound(request: Request, ends: Sequence[End], soon: FreeCapacity) -> int | None:
    """Return the earliest time (Unix seconds) at which enough nodes could have enough whole devices free, which
    shortens the search; 0 if they could have now, None if they never have."""
    needed = request.whole_devices
    if not needed:
        return 0
    free = {node.name: node.whole for node in soon.nodes if node.is_open and request.admits(node)}
    fitting = sum([whole // needed for whole in free.values()])
    if fitting >= request.pods:
        return 0
    for end, _, _, job in ends:
        for placement in job.placements:
            before = free.get(placement.node)
            if before is not None:
                after = free[placement.node] = before + len(placement.devices)
                fitting += after // needed - before // needed
        if fitting >= request.pods:
            return end
    return None
