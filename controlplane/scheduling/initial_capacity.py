"""The free capacity at the beginning of a cycle, and that of a cluster on which nothing runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from controlplane.scheduling.capacity import WHOLE_GPU, Capacity, FreeCapacity, NodeCapacity
from controlplane.scheduling.view import ClusterView, DeviceView, JobView, NodeView, SharingMode


def open_capacity(view: ClusterView) -> Capacity:
    """Return the capacity at the beginning of a cycle. What active jobs hold is in use; what stopping jobs hold is
    free `soon`."""
    nodes = _node_capacities(view)
    positions = {node.name: node.order for node in nodes}
    active = [job for job in view.jobs if job.state == "active"]
    _occupy(nodes, positions, active)
    for node in nodes:
        node.whole = node.free.count(WHOLE_GPU)
    # Never changed, so the others share its nodes: a cycle changes few.
    initial = FreeCapacity(nodes, positions)
    capacity = Capacity(initial.borrowed(), initial.borrowed(), initial.without_index())
    for job in active:
        if job.is_stopping:
            capacity.stop(job)
    return capacity


def open_empty(view: ClusterView) -> FreeCapacity:
    """Return the capacity of the cluster as if it were empty: every node open, every device free."""
    nodes = _node_capacities(view)
    for node in nodes:
        node.is_open, node.free = True, [WHOLE_GPU] * len(node.free)
        node.whole = len(node.free)
    return FreeCapacity(nodes, {node.name: node.order for node in nodes})


class _Devices(NamedTuple):
    """What a NodeCapacity holds of its devices."""

    indexes: tuple[int, ...]
    modes: tuple[SharingMode, ...]
    free: list[int]
    is_divided: bool


def _node_capacities(view: ClusterView) -> list[NodeCapacity]:
    """Return the nodes of a view sorted by name, as if no job ran on them."""
    # A cluster has few kinds of nodes: to compare the devices of a node takes less time than to read them.
    kinds: dict[tuple[tuple[Any, ...], ...], _Devices] = {}
    found = []
    for order, node in enumerate(sorted(view.nodes, key=_name)):
        kind = tuple(map(_of_device, node.devices))
        if kind not in kinds:
            kinds[kind] = _devices(node.devices)
        found.append(_node_capacity(order, node, kinds[kind]))
    return found


_name = attrgetter("name")
_of_device = attrgetter("index", "memory_mib", "held_milli_gpus", "parts", "is_single")


def _devices(of_node: Sequence[DeviceView]) -> _Devices:
    devices = sorted(of_node, key=attrgetter("index"))
    return _Devices(
        indexes=tuple([device.index for device in devices]),
        modes=tuple([device.mode for device in devices]),
        free=[WHOLE_GPU - device.held_milli_gpus for device in devices],
        is_divided=any(device.is_single and device.parts > 1 for device in devices),
    )


def _node_capacity(order: int, node: NodeView, devices: _Devices) -> NodeCapacity:
    return NodeCapacity(
        order=order,
        name=node.name,
        pool=node.pool,
        is_open=node.is_schedulable,
        indexes=devices.indexes,
        modes=devices.modes,
        free=devices.free.copy(),
        milli_cpus=node.milli_cpus,
        memory_mib=node.memory_mib,
        is_divided=devices.is_divided,
        extras=dict(node.extras),
        location=node.location,
        # NUL separates the two names because no name contains it.
        part=f"{node.pool}\0{node.location}" if node.location else node.pool,
    )


def _occupy(nodes: list[NodeCapacity], positions: dict[str, int], active: Iterable[JobView]) -> None:
    """Take from the nodes what these jobs hold."""
    pods = ((job, placement) for job in active for placement in job.placements)
    for job, placement in pods:
        order = positions.get(placement.node)
        if order is None:
            # The pod's node has left the cluster, so the pod holds no capacity that could be assigned.
            continue
        node = nodes[order]
        node.milli_cpus -= job.milli_cpus
        node.memory_mib -= job.memory_mib
        for name, amount in job.extras:
            node.extras[name] = node.extras.get(name, 0) - amount
        for index, milli_gpus in placement.devices:
            if index in node.indexes:
                node.free[node.indexes.index(index)] -= milli_gpus
