"""Choose which workers of running elastic jobs leave, so that waiting jobs of their project fit on nodes.

A pod needs its GPUs, CPUs and memory on one node, so that workers leave only where that makes room for a whole pod:
free GPUs of different nodes are not added up. Of several nodes, the one where jobs lose least is freed (see
`division.gain`). Workers that leave only because the rest must be an allowed size do not count as room; so a worker
of another job may leave in vain where one of their GPUs would do.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.scheduling.capacity import FreeCapacity
from controlplane.scheduling.division import Claim, gain, weights_of
from controlplane.scheduling.fit import Request, fits_on, place
from controlplane.scheduling.sizes import largest_size
from controlplane.scheduling.view import JobView, PodPlacement


@dataclass(frozen=True, slots=True)
class ShrinkableJob:
    """A running elastic job that may lose workers. `pods`: those of its workers, in the order in which they leave if
    their costs are equal; `claim.fewest` of them stay."""

    claim: Claim
    job: JobView
    pods: tuple[PodPlacement, ...]


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A waiting job, and its request at minimum size."""

    job: JobView
    request: Request


def workers_to_remove(
    claims: Collection[Claim],
    shrinkable: Iterable[ShrinkableJob],
    queues: Iterable[Iterable[PendingJob]],
    room: FreeCapacity,
) -> Mapping[str, tuple[int, ...]]:
    """Return the ranks of the workers that leave so that waiting jobs fit, by job id.

    `claims`: of all running elastic jobs of the project. `room`: what is free once stopping jobs have ended; it is
    modified. `queues`: waiting jobs in the order in which they start; jobs of different queues cannot use the same
    nodes. After the first job of a queue that cannot be served the rest of the queue gets nothing, because that job
    could take what is freed. No worker leaves for a job that is not served.
    """
    scale_down = _ScaleDown(claims, shrinkable, room)
    for queue in queues:
        for pending in queue:
            if not scale_down.admit(pending):
                break
    return scale_down.ranks()


@dataclass(frozen=True, slots=True, eq=False)
class _Worker:
    owner: ShrinkableJob
    pod: PodPlacement
    order: int

    @property
    def name(self) -> str:
        return self.owner.job.id


class _ScaleDown:
    """The working state of one choice. `_room`: the free capacity; `_gone`: the workers that leave, by job."""

    def __init__(
        self, claims: Collection[Claim], shrinkable: Iterable[ShrinkableJob], room: FreeCapacity
    ) -> None:
        self._weights = weights_of(claims)
        self._shrinkable = sorted(shrinkable, key=lambda running: running.job.id)
        self._gone: dict[str, list[_Worker]] = {running.job.id: [] for running in self._shrinkable}
        self._room = room

    def ranks(self) -> dict[str, tuple[int, ...]]:
        """Return the ranks of the workers that leave, by job; also of those that leave only because the rest must be
        an allowed size."""
        found = {}
        for running in self._shrinkable:
            gone = [worker.pod.rank for worker in self._gone[running.job.id]]
            if gone:
                count = running.claim.workers - self._size(running, len(gone))
                others = [pod.rank for pod in running.pods if pod.rank not in gone]
                found[running.job.id] = tuple(sorted([*gone, *others[: count - len(gone)]]))
        return found

    def admit(self, pending: PendingJob) -> bool:
        """Choose workers to leave until the job fits, and take its capacity. Return False, with nothing changed, if
        it cannot fit."""
        placements = place(pending.request, self._room, pending.job.avoid)
        if placements is not None:
            self._take(placements, pending.job)
            return True
        before, gone = self._room, {name: list(workers) for name, workers in self._gone.items()}
        # A gang is in one pool where pools are named.
        for asked in _by_pool(pending):
            self._room = before.borrowed()
            if self._can_be_enough(asked) and self._make_room(asked):
                return True
            self._room, self._gone = before, {name: list(workers) for name, workers in gone.items()}
        return False

    def _can_be_enough(self, pending: PendingJob) -> bool:
        """Return False if the job cannot fit even with the free and the lent GPUs of all nodes added up. The test is
        quick: True proves nothing."""
        request = pending.request
        lent = sum(
            (self._size(running, len(self._gone[running.job.id])) - running.claim.fewest)
            * running.claim.shape[0]
            for running in self._allowed(pending)
        )
        free = self._room.free_milli_gpus(request.pools, (), request.locations)
        return request.pods * request.milli_gpus <= free + lent * 1000

    def _make_room(self, pending: PendingJob) -> bool:
        """Place the gang's pods one by one, and free the cheapest node whenever none has room. Return whether all
        pods fit."""
        one, placements, left = replace(pending.request, pods=1), list[PodPlacement](), list[_Worker]()
        for _ in range(pending.request.pods):
            found = place(one, self._room, pending.job.avoid)
            if found is None:
                node = self._cheapest(pending, one)
                for worker in node:
                    self._leave(worker)
                left += node
                found = place(one, self._room, pending.job.avoid) if node else None
            if found is None:
                return False
            self._take(found, pending.job)
            placements += found
        for placement in placements:
            self._room.give(placement, pending.job)
        self._let_stay(left, pending)
        placed = place(pending.request, self._room, pending.job.avoid)
        assert placed is not None
        self._take(placed, pending.job)
        return True

    def _let_stay(self, left: Sequence[_Worker], pending: PendingJob) -> None:
        """Keep those workers of `left` that the gang can do without: placing pods one by one can remove too many."""
        for worker in left:
            self._stay(worker)
            if place(pending.request, self._room, pending.job.avoid) is None:
                self._leave(worker)

    def _cheapest(self, pending: PendingJob, one: Request) -> list[_Worker]:
        """Return the workers that leave to free one node for one pod at the lowest cost; [] if no node can be freed."""
        best: tuple[float, list[int], str] | None = None
        chosen: list[_Worker] = []
        for name, workers in sorted(self._by_node(pending, one).items()):
            found = self._on_node(name, workers, one)
            if found is not None:
                cost = (found[0], [worker.order for worker in found[1]], name)
                if best is None or cost < best:
                    best, chosen = cost, found[1]
        return chosen

    def _by_node(self, pending: PendingJob, one: Request) -> dict[str, list[_Worker]]:
        """Return the workers that may leave, by node; only for nodes that the pod may use."""
        found: dict[str, list[_Worker]] = {}
        for running in self._allowed(pending):
            gone = {worker.pod.rank for worker in self._gone[running.job.id]}
            for at, pod in enumerate(running.pods):
                is_open = self._room.is_open(pod.node) and one.admits(self._room.node(pod.node))
                if pod.rank not in gone and is_open:
                    found.setdefault(pod.node, []).append(_Worker(running, pod, at))
        return found

    def _allowed(self, pending: PendingJob) -> Iterator[ShrinkableJob]:
        for running in self._shrinkable:
            claim = running.claim
            is_alike = claim.project == pending.job.project and claim.priority <= pending.job.priority
            if claim.may_shrink and is_alike and claim.shape[0] > 0:
                yield running

    def _on_node(
        self, name: str, workers: Iterable[_Worker], one: Request
    ) -> tuple[float, list[_Worker]] | None:
        """Return the cost, and the workers that leave this node, so that one pod fits on it; None if it cannot fit."""
        left, lost = list(workers), dict[_Worker, float]()
        while not fits_on(one, self._room.node(name)):
            lacks = one.whole_devices * 1000 - self._room.node(name).whole * 1000
            costs = [(self._loss(worker), worker) for worker in left]
            able = [(cost, worker) for cost, worker in costs if cost < math.inf]
            if not able:
                break
            # By the loss per milli-GPU that is of use, so that one large worker can go instead of several
            # small ones.
            cost, worker = min(able, key=lambda one: (one[0] / _useful(one[1].pod, lacks), one[1].order))
            lost[worker] = cost
            left.remove(worker)
            self._leave(worker)
        is_enough = fits_on(one, self._room.node(name))
        # The most costly first; the last one to leave is needed.
        for worker in sorted(lost, key=lambda worker: -lost[worker]) if is_enough else ():
            self._stay(worker)
            if fits_on(one, self._room.node(name)):
                del lost[worker]
            else:
                self._leave(worker)
        for worker in lost:
            self._stay(worker)
        return (sum(lost.values()), list(lost)) if is_enough else None

    def _loss(self, worker: _Worker) -> float:
        """Return what the worker's job loses if this worker leaves too, as `division.gain` times GPUs; 0 if another
        worker leaves anyway, infinity if the worker must stay."""
        running, gone = worker.owner, len(self._gone[worker.name])
        has, size = self._size(running, gone), self._size(running, gone + 1)
        if size < running.claim.fewest:
            return math.inf
        if size == has:
            return 0.0
        # Per worker: the others that leave for an allowed size are free for the next waiting job, or for growth.
        return gain(running.claim, size, has, self._weights[running.claim.job]) * running.claim.shape[0]

    def _size(self, running: ShrinkableJob, gone: int) -> int:
        return largest_size(running.claim.sizes, running.claim.workers - gone)

    def _leave(self, worker: _Worker) -> None:
        self._gone[worker.name].append(worker)
        self._room.give(worker.pod, worker.owner.job)

    def _stay(self, worker: _Worker) -> None:
        self._gone[worker.name].remove(worker)
        self._room.take(worker.pod, worker.owner.job)

    def _take(self, placements: Iterable[PodPlacement], job: JobView) -> None:
        for placement in placements:
            self._room.take(placement, job)


def _by_pool(pending: PendingJob) -> list[PendingJob]:
    pools = pending.request.pools
    return [replace(pending, request=replace(pending.request, pools=(pool,))) for pool in pools] or [pending]


def _useful(pod: PodPlacement, lacks: int) -> int:
    """Return how many of the milli-GPUs that a node lacks are freed by this pod's end; at least 1."""
    return max(1, min(pod.milli_gpus, lacks))
