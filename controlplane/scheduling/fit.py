"""Place gangs on nodes: by node pools, whole devices, and shares of a device in milli-GPUs or memory.

A share goes to the fullest device that is already shared, whole devices to the node with the fewest free ones on
which they fit, so that whole devices and whole nodes stay free. Equal input gives equal placements.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

from controlplane.scheduling.capacity import WHOLE_GPU, FreeCapacity, NodeCapacity
from controlplane.scheduling.view import (
    ClusterView,
    Extras,
    JobView,
    Need,
    PodPlacement,
    ProjectView,
    SharingMode,
)

# Larger than any device, so that it never fits.
NEVER = WHOLE_GPU + 1

Preference = tuple[Collection[str], ...]
"""The nodes that are excluded in the first try, in the second, and so on."""


class Situated(Protocol):
    """An object with a pool and a location: a node."""

    @property
    def pool(self) -> str: ...

    @property
    def location(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Request:
    """What one job requests per pod, and for how many pods. Jobs with equal requests fit on the same nodes.

    `gpu_memory_mib`: if set, each pod takes a share of one device with this much memory, and `milli_gpus` is ignored.
    `pools`: tried in this order, each for the whole gang; () for all pools together. `locations`: those of nodes that
    have the job's data; () for all.
    """

    milli_gpus: int
    gpu_memory_mib: int | None
    pods: int
    milli_cpus: int
    memory_mib: int
    pools: tuple[str, ...]
    extras: Extras = ()
    locations: tuple[str, ...] = ()

    def admits(self, node: Situated) -> bool:
        """Return whether the node is in one of the pools and locations of the request."""
        return (not self.pools or node.pool in self.pools) and (
            not self.locations or node.location in self.locations
        )

    @property
    def whole_devices(self) -> int:
        """How many whole devices each pod needs; 0 for a share of a device and for no GPU."""
        return 0 if self.gpu_memory_mib is not None else self.milli_gpus // WHOLE_GPU

    @property
    def is_share(self) -> bool:
        """Whether each pod takes a share of one device."""
        return self.gpu_memory_mib is not None or 0 < self.milli_gpus < WHOLE_GPU

    def share_of(self, mode: SharingMode) -> int:
        """Return how many milli-GPUs the share takes on a device with this sharing mode; more than 1,000 if it does
        not fit."""
        asked = self.milli_gpus
        if self.gpu_memory_mib is not None:
            asked = -(-self.gpu_memory_mib * WHOLE_GPU // mode.memory_mib) if mode.memory_mib else NEVER
        if mode.parts == WHOLE_GPU:
            return asked
        # Rounded up to the parts in which the device plugin assigns the device.
        parts = -(-asked * mode.parts // WHOLE_GPU)
        if mode.parts == 1 or (mode.is_single and parts > 1):
            return NEVER
        return parts * WHOLE_GPU // mode.parts


def pools_for(job: JobView, project: ProjectView) -> tuple[str, ...]:
    """Return the pools in which the job may run, the preferred one first: the pool that it names, which is not checked,
    else those of its project for its kind of job; () for all."""
    allowed = dict(project.node_pools).get(job.kind, ())
    if job.node_pool is None:
        return allowed
    return (job.node_pool,)


def request_of(job: JobView, pools: tuple[str, ...]) -> Request:
    """Return the job's request, in these pools and at its minimum size. An elastic job can use more, see elastic.py."""
    return Request(
        job.milli_gpus,
        job.gpu_memory_mib,
        job.fewest_pods,
        job.milli_cpus,
        job.memory_mib,
        pools,
        job.extras,
        job.locations,
    )


def host_needs(request: Request) -> tuple[str, ...]:
    """Return the names of what a pod needs beside GPUs: `cpus`, `memory`, and its extra resources."""
    return ("cpus", "memory", *(name for name, _ in request.extras))


def amount_of(holder: Need, need: str) -> int:
    """Return how much `holder` has or needs of `need`: milli-CPUs, MiB, or units of an extra resource."""
    if need == "cpus":
        return holder.milli_cpus
    return holder.memory_mib if need == "memory" else dict(holder.extras).get(need, 0)


def has_amounts(holder: Need, need: Need) -> bool:
    """Return whether `holder` has at least the CPUs, memory and extra resources of `need`."""
    if holder.milli_cpus < need.milli_cpus or holder.memory_mib < need.memory_mib:
        return False
    return all(amount_of(holder, name) >= amount for name, amount in need.extras)


def with_only(request: Request, needs: Collection[str]) -> Request:
    """Return the request with only those of its CPUs, memory and extra resources that `needs` names."""
    return replace(
        request,
        milli_cpus=request.milli_cpus if "cpus" in needs else 0,
        memory_mib=request.memory_mib if "memory" in needs else 0,
        extras=tuple(one for one in request.extras if one[0] in needs),
    )


def without(request: Request, need: str) -> Request:
    """Return the request without `need`, one of `host_needs`."""
    return with_only(request, set(host_needs(request)) - {need})


def total_milli_gpus(request: Request, view: ClusterView) -> int:
    """Return how many milli-GPUs the whole gang counts against quotas. A share by memory counts as on the device
    where it takes the most, as a whole device if it fits on none."""
    if request.gpu_memory_mib is None:
        return request.pods * request.milli_gpus
    modes = {
        device.mode
        for node in view.nodes
        if not request.pools or node.pool in request.pools
        for device in node.devices
    }
    shares = [request.share_of(mode) for mode in modes]
    # The largest value that any device gives, so that no quota is exceeded wherever it is placed.
    return request.pods * max((share for share in shares if share <= WHOLE_GPU), default=WHOLE_GPU)


def place(
    request: Request, room: FreeCapacity, avoid: Collection[str] = ()
) -> tuple[PodPlacement, ...] | None:
    """Return where the whole gang fits; None if it does not. Leaves `room` unchanged.

    Nodes in `avoid` are used last: first the whole gang is tried on other nodes, in any pool, then with as many pods
    as possible on others.
    """
    choices = _choices(request, room)
    orders: list[Preference] = [(avoid,), (avoid, ())] if avoid else [((),)]
    if request.pods > 1:
        # Counted first, because counting changes nothing, while placing takes and gives back the capacity of
        # every pod.
        choices = [parts for parts in choices if _count(request, room, parts) >= request.pods]
    for without, parts in product(orders, choices):
        placements = _place_in(request, room, parts, without)
        if len(placements) == request.pods:
            return placements
    return None


def is_free(placements: Sequence[PodPlacement], job: JobView, room: FreeCapacity) -> bool:
    """Return whether exactly these placements are free for the job, on nodes that accept pods. Leaves `room`
    unchanged."""
    taken: list[PodPlacement] = []
    for placement in placements:
        if not _is_pod_free(placement, job, room):
            break
        room.take(placement, job)
        taken.append(placement)
    for placement in taken:
        room.give(placement, job)
    return len(taken) == len(placements)


def _is_pod_free(placement: PodPlacement, job: JobView, room: FreeCapacity) -> bool:
    if placement.node not in room.positions:
        return False
    node = room.node(placement.node)
    return (
        node.is_open
        and node.has_host_capacity(job)
        and all(
            index in node.indexes and node.free[node.indexes.index(index)] >= milli_gpus
            for index, milli_gpus in placement.devices
        )
    )


def pods_that_fit(request: Request, room: FreeCapacity, at_most: int) -> int:
    """Return how many pods of the request fit at once, up to `at_most`. If it names several pools, the pool where the
    most fit counts."""
    counted = replace(request, pods=at_most)
    choices = _choices(request, room)
    return max((_count(counted, room, parts) for parts in choices), default=0)


def _count(request: Request, room: FreeCapacity, parts: Sequence[str]) -> int:
    """Return how many pods fit on these parts, up to the gang's size. Pods are equal, so that each node is counted by
    itself."""
    needed, count = request.whole_devices, 0
    for part in parts:
        index = room.parts[part]
        # Without GPUs every node may fit, so the first bucket (no free device) counts too.
        buckets: list[Iterable[int]] = [*index.by_whole[max(needed, request.is_share) :]]
        if request.is_share:
            partly = {order for devices in index.shared.values() for _, order, _ in devices}
            buckets.append([order for order in partly if not room.nodes[order].whole])
        for bucket in buckets:
            for order in bucket:
                node = room.nodes[order]
                if not (needed and node.is_divided):
                    count += pods_on(request, node)
                    if count >= request.pods:
                        return request.pods
    return count


def _choices(request: Request, room: FreeCapacity) -> list[tuple[str, ...]]:
    """Return the sets of parts to try for the whole gang, in order."""
    if request.pools:
        choices = [room.parts_of((pool,), request.locations) for pool in request.pools]
        return [parts for parts in choices if parts]
    return [room.parts_of((), request.locations)]


def _place_in(
    request: Request, room: FreeCapacity, parts: Sequence[str], without: Preference = ((),)
) -> tuple[PodPlacement, ...]:
    """Return placements for as many pods of the gang as fit on these parts. Leaves `room` unchanged. `without`: the
    sets of nodes to exclude for a pod, tried in this order. Pods are equal, so filling node after node places most."""
    placements: list[PodPlacement] = []
    for rank in range(request.pods):
        tries = (_place_pod(request, room, parts, rank, avoid) for avoid in without)
        placement = next(filter(None, tries), None)
        if placement is None:
            break
        placements.append(placement)
        if request.pods > 1:
            room.take(placement, request)
    if request.pods > 1:
        for placement in reversed(placements):
            room.give(placement, request)
    return tuple(placements)


def _place_pod(
    request: Request, room: FreeCapacity, parts: Sequence[str], rank: int, avoid: Collection[str]
) -> PodPlacement | None:
    if room.scorer is not None:
        chosen = room.scorer.place_pod(request, room, parts, avoid)
        return None if chosen is None else PodPlacement(rank, *chosen)
    if request.is_share:
        return _place_on_shared(request, room, parts, rank, avoid) or _place_share_on_whole(
            request, room, parts, rank, avoid
        )
    needed = request.whole_devices
    for node in _nodes_by_tightness(room, parts, needed, avoid):
        if node.has_host_capacity(request) and not (needed and node.is_divided):
            positions = [position for position, free in enumerate(node.free) if free == WHOLE_GPU][:needed]
            devices = tuple((node.indexes[position], WHOLE_GPU) for position in positions)
            return PodPlacement(rank, node.name, devices)
    return None


def _nodes_by_tightness(
    room: FreeCapacity, parts: Sequence[str], whole: int, avoid: Collection[str]
) -> Iterator[NodeCapacity]:
    """Yield the open nodes with at least `whole` whole devices free: the fewest first, then by pool, location and
    name."""
    indexes = [room.parts[part] for part in parts]
    for free in range(whole, max((len(index.by_whole) for index in indexes), default=0)):
        for index in indexes:
            if free < len(index.by_whole):
                for order in index.by_whole[free]:
                    if room.nodes[order].name not in avoid:
                        yield room.nodes[order]


def _place_on_shared(
    request: Request, room: FreeCapacity, parts: Sequence[str], rank: int, avoid: Collection[str]
) -> PodPlacement | None:
    """Place a share on the partly used device that has the least left afterwards; None if it fits on none."""
    best: tuple[int, int, int] | None = None
    chosen: PodPlacement | None = None
    for part in parts:
        for mode, devices in room.parts[part].shared.items():
            share = request.share_of(mode)
            # Sorted by free capacity, so the first device that fits has the least left.
            for at in range(bisect_left(devices, (share,)), len(devices)):
                free, order, position = devices[at]
                node = room.nodes[order]
                if node.name not in avoid and node.has_host_capacity(request):
                    if best is None or (free - share, order, position) < best:
                        best = (free - share, order, position)
                        chosen = PodPlacement(rank, node.name, ((node.indexes[position], share),))
                    break
    return chosen


def _place_share_on_whole(
    request: Request, room: FreeCapacity, parts: Sequence[str], rank: int, avoid: Collection[str]
) -> PodPlacement | None:
    """Place a share on a free device of the node with the fewest free ones; None if there is none."""
    for node in _nodes_by_tightness(room, parts, 1, avoid):
        if node.has_host_capacity(request):
            for position, free in enumerate(node.free):
                share = request.share_of(node.modes[position])
                if free == WHOLE_GPU and share <= WHOLE_GPU:
                    return PodPlacement(rank, node.name, ((node.indexes[position], share),))
    return None


def fits_on(request: Request, node: NodeCapacity) -> bool:
    """Return whether a pod of the request fits on this node now. The caller has checked that the node is open and in
    the request's pools."""
    is_whole = request.whole_devices > 0
    return not (is_whole and node.is_divided) and bool(pods_on(request, node))


def pods_on(request: Request, node: NodeCapacity) -> int:
    """Return how many pods of the request fit on the node now, up to the gang's size."""
    if request.is_share or request.extras:
        return pods_in(request, node, node.free, node.milli_cpus, node.memory_mib, node.extras)
    # The common case is counted without a look at each device, which takes less time.
    pods, needed = request.pods, request.whole_devices
    if needed and node.whole // needed < pods:
        pods = node.whole // needed
    if request.milli_cpus and node.milli_cpus // request.milli_cpus < pods:
        pods = node.milli_cpus // request.milli_cpus
    if request.memory_mib and node.memory_mib // request.memory_mib < pods:
        pods = node.memory_mib // request.memory_mib
    return max(0, pods)


def pods_in(
    request: Request,
    node: NodeCapacity,
    free: Sequence[int],
    milli_cpus: int,
    memory_mib: int,
    extras: Mapping[str, int],
) -> int:
    """Return how many pods of the request, up to the gang's size, fit on the node if exactly these amounts are free
    there. `free`: milli-GPUs per device."""
    pods = request.pods
    if request.milli_cpus:
        pods = min(pods, milli_cpus // request.milli_cpus)
    if request.memory_mib:
        pods = min(pods, memory_mib // request.memory_mib)
    for name, amount in request.extras:
        pods = min(pods, extras.get(name, 0) // amount)
    if request.is_share:
        shares = [(room, request.share_of(mode)) for room, mode in zip(free, node.modes, strict=True)]
        pods = min(pods, sum(room // share for room, share in shares if share <= WHOLE_GPU))
    elif request.whole_devices:
        pods = min(pods, free.count(WHOLE_GPU) // request.whole_devices)
    return max(0, pods)
