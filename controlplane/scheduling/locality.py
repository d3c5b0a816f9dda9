"""Data locality: a job starts where its data is, or its data is copied to a location with room for the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from controlplane.scheduling.capacity import FreeCapacity
from controlplane.scheduling.fit import place
from controlplane.scheduling.order import Waiting
from controlplane.scheduling.view import JobView, PodPlacement


def location_to_fill(item: Waiting, room: FreeCapacity) -> str | None:
    """Return a location without the job's data on which the job fits now. None if it fits nowhere, or where its
    data is. Locations to which a copy has failed are not in `fillable`, so they are not chosen."""
    found = (room.node(placement.node).location for placement in places_elsewhere(item, room))
    return next((location for location in found if location in item.job.fillable), None)


def places_elsewhere(item: Waiting, room: FreeCapacity) -> tuple[PodPlacement, ...]:
    """Return where the job fits now if its data were copied; () if it fits nowhere, or where its data is."""
    job = item.job
    if not job.locations or not job.fillable or place(item.request, room, job.avoid) is not None:
        return ()
    anywhere = replace(item.request, locations=tuple(sorted({*job.locations, *job.fillable})))
    return place(anywhere, room, job.avoid) or ()


def placed_by_data(job: JobView, placements: Sequence[PodPlacement], room: FreeCapacity) -> dict[str, Any]:
    """Return the details for a start on nodes that already have the job's data, while others do not."""
    places = sorted({room.node(placement.node).location for placement in placements})
    named = {name: value for name, value in job.data_progress if name == "dataset"}
    return {**named, "data_at": places}
