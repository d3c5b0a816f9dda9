"""Choose the cache location from which a node reads, and the one to which a job's data is copied. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Location:
    """A cache location of a cluster. It serves the nodes in these pools, and those with all of these labels. One
    with neither is the default: it serves the nodes that no other location serves. `is_of_one_node`: its volumes can be
    mounted on one node only."""

    name: str
    node_pools: Collection[str] = ()
    node_labels: Mapping[str, str] = field(default_factory=dict)
    is_of_one_node: bool = False

    def has(self, pool: str, labels: Mapping[str, str]) -> bool:
        """Return whether the location's node pools or labels include a node with this pool and these labels.
        False for the default location."""
        wanted = self.node_labels.items()
        return pool in self.node_pools or (bool(wanted) and wanted <= labels.items())

    @property
    def is_default(self) -> bool:
        """Return whether the location names neither pools nor labels, and so serves all nodes that no other
        location serves."""
        return not self.node_pools and not self.node_labels


def location_of(pool: str, labels: Mapping[str, str], locations: Iterable[Location]) -> str:
    """Return the name of the cache location that serves a node with this pool and these labels: the first by name
    that names the pool or the labels, else the one for all other nodes, "" if there is none."""
    ordered = sorted(locations, key=lambda location: (location.is_default, location.name))
    return next(
        (location.name for location in ordered if location.is_default or location.has(pool, labels)), ""
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cache location to which a job's data could be copied. `missing_bytes`: data that is neither there nor being
    copied. `free_milli_gpus`, `milli_gpus`: the free and all milli-GPUs of its nodes that the job may use.
    `room_bytes`: the limit of its caches, None if only the disk limits them. `has_failed`: a fill of this data
    failed there."""

    name: str
    missing_bytes: int
    free_milli_gpus: int
    milli_gpus: int
    nodes: int
    room_bytes: int | None = None
    has_failed: bool = False

    @property
    def is_too_small(self) -> bool:
        """Return whether the missing data cannot fit, even if all other caches are removed."""
        return self.room_bytes is not None and self.missing_bytes > self.room_bytes


def choose_other(candidates: Iterable[Candidate], wanted_milli_gpus: int) -> str:
    """Return the candidate for a job's data after a fill failed elsewhere: one where the data fits and whose
    nodes have `wanted_milli_gpus`, free or not; "" if there is none."""
    return choose(
        (
            one
            for one in candidates
            if not one.is_too_small
            and not one.has_failed
            and one.nodes > 0
            and one.milli_gpus >= wanted_milli_gpus
        ),
        wanted_milli_gpus,
    )


def choose(candidates: Iterable[Candidate], wanted_milli_gpus: int) -> str:
    """Return the cache location for a job's data, "" if there are no candidates. Preferred are, in this order,
    locations that have the data or are being filled with it, locations with `wanted_milli_gpus` free, where the job
    can start now, and locations with the fewest missing bytes. Those without nodes for the job come last; before
    them, those that are too small or where a fill failed."""

    def cost(one: Candidate) -> tuple[bool, bool, bool, bool, bool, int, int, int, str]:
        has_room = one.nodes > 0 and one.free_milli_gpus >= wanted_milli_gpus
        is_possible = one.nodes > 0 and one.milli_gpus >= wanted_milli_gpus
        size = (one.missing_bytes, -one.free_milli_gpus, -one.milli_gpus)
        is_hard = (not is_possible, one.is_too_small, one.has_failed)
        return (*is_hard, one.missing_bytes > 0, not has_room, *size, one.name)

    return min(candidates, key=cost).name if (candidates := tuple(candidates)) else ""


@dataclass(frozen=True, slots=True)
class Found:
    """The names of the cache locations that have all data of a job, and of those to which it could be copied."""

    ready: tuple[str, ...] = ()
    fillable: tuple[str, ...] = ()


def find(
    versions: Iterable[object], locations: Iterable[str], states: Mapping[tuple[str, object], str]
) -> Found:
    """Return the cache locations at which a job that mounts these versions may start. `states`: the state of each
    cache by (location name, version)."""
    wanted, ready, fillable = set(versions), [], []
    for location in sorted(locations):
        known = {states.get((location, version), "") for version in wanted}
        if known == {"ready"}:
            ready.append(location)
        elif "failed" not in known:
            fillable.append(location)
    return Found(tuple(ready), tuple(fillable))
