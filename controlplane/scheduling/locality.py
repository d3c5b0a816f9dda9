"""Data locality: a job starts where its data is, or its data is copied to a place where the job has room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from controlplane.scheduling.capacity import FreeCapacity, NodeCapacity
from controlplane.scheduling.fit import Request, Situated, place
from controlplane.scheduling.order import JobClass, Waiting
from controlplane.scheduling.view import JobView, PodPlacement


def location_to_fill(item: Waiting, room: FreeCapacity) -> str | None:
    """Return a location to which the job's data should be copied: the job fits there now, but not where its data is.
    None if there is none. Locations where a copy has failed are not in `fillable` and so not chosen."""
    found = (room.node(placement.node).location for placement in places_elsewhere(item, room))
    return next((location for location in found if location in item.job.fillable), None)


def places_elsewhere(item: Waiting, room: FreeCapacity) -> tuple[PodPlacement, ...]:
    """Return where the job would fit now if its data were also at the `fillable` locations. () if it fits nowhere, or
    already where its data is."""
    job = item.job
    if not job.locations or not job.fillable or place(item.request, room, job.avoid) is not None:
        return ()
    anywhere = replace(item.request, locations=tuple(sorted({*job.locations, *job.fillable})))
    return place(anywhere, room, job.avoid) or ()


def is_out_of_reach(job: JobView, request: Request, nodes: Iterable[Situated]) -> bool:
    """Return whether the job's data is at no location of the nodes that it may use, nor can be copied to one: there a
    copy has failed. `request`: the job's; `nodes`: of the cluster."""
    if not job.locations:
        return False
    within = replace(request, locations=(*job.locations, *job.fillable))
    return not any(map(within.admits, nodes))


class WaitsForData:
    """The jobs that wait, for the rest of a phase, for a copy of their data at a location with room for all of them.

    They count in their projects' shares, so that no more jobs wait than have room; nothing is reserved for them. `now`:
    the capacity that is free at this moment.
    """

    def __init__(self, now: FreeCapacity) -> None:
        self._now = now
        # A copy of `now` without what those jobs could use, and the versions of the nodes that it was copied from.
        self._room: FreeCapacity | None = None
        self._versions: list[int] = []
        self._taken: dict[str, list[tuple[PodPlacement, JobView]]] = {}
        self._passed: list[tuple[JobClass, Waiting]] = []

    def pass_over(self, job_class: JobClass) -> bool:
        """Let the next job of a class wait for a copy of its data instead of stopping jobs, if it fits at one of its
        `fillable` locations beside the jobs that wait so already: count it in its project's share, and skip it until
        `end_phase`. Return False, with nothing changed, if it does not fit so or fits where its data is."""
        item = job_class.head
        if not self._take(item):
            return False
        self._passed.append((job_class, item))
        item.account.promise(item.milli_gpus, item.job.is_preemptible)
        job_class.pass_over()
        return True

    def end_phase(self) -> bool:
        """Make the jobs undecided again and count them no longer: a later phase may find room where their data is.
        Return whether there were any."""
        had_any = bool(self._passed)
        for job_class, item in self._passed:
            item.account.promise(-item.milli_gpus, item.job.is_preemptible)
            job_class.take_back()
        self._passed.clear()
        self._room = None
        self._taken.clear()
        return had_any

    def _take(self, item: Waiting) -> bool:
        """Count the job as using capacity if it fits at a location to which its data could be copied. Return whether
        it fits."""
        if not item.job.locations or not item.job.fillable:
            return False
        placements = places_elsewhere(item, self._updated())
        if placements and self._room is None:
            self._room = self._now.copy()
            self._versions = [node.version for node in self._now.nodes]
        for placement in placements:
            self._taken.setdefault(placement.node, []).append((placement, item.job))
            self._updated().take(placement, item.job)
        return bool(placements)

    def _updated(self) -> FreeCapacity:
        """Return the capacity that is left, after updating the nodes that have changed since the last call."""
        if self._room is None:
            return self._now
        # Only changed nodes are counted again: to take and give back all places for each job made a cycle of 1,000
        # such jobs take seconds.
        versions = [node.version for node in self._now.nodes]
        if versions != self._versions:
            for node, version in zip(self._now.nodes, self._versions, strict=True):
                if node.version != version:
                    self._reset(self._room, node)
            self._versions = versions
        return self._room

    def _reset(self, room: FreeCapacity, node: NodeCapacity) -> None:
        room.set_to_least(node.order, node, node)
        for placement, job in self._taken.get(node.name, ()):
            room.take(placement, job)


def placed_by_data(job: JobView, placements: Sequence[PodPlacement], room: FreeCapacity) -> dict[str, Any]:
    """Return the details of a start whose nodes were chosen because they have the job's data: `dataset` (if known)
    and `data_at`, the locations."""
    places = sorted({room.node(placement.node).location for placement in placements})
    named = {name: value for name, value in job.data_progress if name == "dataset"}
    return {**named, "data_at": places}
