"""Read the nodes and devices of a cluster into views, which are built again only when a row has changed."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Case, F, Field, QuerySet, TextField, Value, When
from django.db.models.functions import Cast

from controlplane.models import Cluster, Device, Node
from controlplane.models.prepared import Rows, prepared
from controlplane.scheduling.view import DeviceView, NodeView
from datasets.locality import Location, location_of

_NODE_COLUMNS = (
    "pk", "name", "pool__name", "milli_cpus", "memory_mib", "extras_text", "is_ready", "is_cordoned", "is_closed",
)  # fmt: skip


class NodeCache:
    """The nodes of one cluster as last read. Used by one thread."""

    def __init__(self) -> None:
        self._known: tuple[object, ...] = ()
        self._views: tuple[NodeView, ...] = ()

    def read(
        self,
        cluster: Cluster,
        held: Mapping[tuple[str, int], int],
        nodes_with_orphans: frozenset[str],
        locations: Sequence[Location],
    ) -> tuple[NodeView, ...]:
        """Return the cluster's nodes; the same objects as before if nothing changed. `held`: milli-GPUs of jobs that
        are not in the view, by (node, device index). `nodes_with_orphans`: not schedulable. `locations`: the
        cluster's cache locations; if empty, the location of every node is ""."""
        devices = _devices(cluster.pk)
        nodes = _labelled_nodes(cluster.pk) if locations else _nodes(cluster.pk)
        known = devices, nodes, held, nodes_with_orphans, locations
        if known != self._known:
            self._views = _views(devices, nodes, held, nodes_with_orphans, locations)
            self._known = known
        return self._views


def _views(
    devices: Sequence[tuple[Any, ...]],
    nodes: Sequence[tuple[Any, ...]],
    held: Mapping[tuple[str, int], int],
    nodes_with_orphans: frozenset[str],
    locations: Sequence[Location],
) -> tuple[NodeView, ...]:
    by_node: dict[int, list[DeviceView]] = defaultdict(list)
    for node_id, node, index, memory_mib, foreign, *parts in devices:
        by_node[node_id].append(DeviceView(index, memory_mib, held.get((node, index), 0) + foreign, *parts))
    return tuple(
        NodeView(
            name=name,
            pool=pool or "",
            devices=tuple(by_node[key]),
            milli_cpus=milli_cpus,
            memory_mib=memory_mib,
            extras=tuple(sorted(json.loads(extras).items())),
            is_schedulable=is_ready and not (is_cordoned or is_closed) and name not in nodes_with_orphans,
            location=location_of(pool or "", json.loads(labels[0]), locations) if labels else "",
        )
        for key, name, pool, milli_cpus, memory_mib, extras, is_ready, is_cordoned, is_closed, *labels in nodes
    )


@prepared
def _devices(cluster: int) -> Rows[Device]:
    # A device that other software uses counts as full where no pod of ours holds it, so that nothing more is placed
    # on it.
    # A plain Field: for an integer field Django calls int() for each of ten thousand devices in every cycle.
    foreign = Case(
        When(is_foreign=True, then=Value(1000) - F("allocated_milli")), default=Value(0), output_field=Field()
    )
    devices = Device.objects.filter(node__cluster=cluster).order_by("node_id", "index")
    columns = ("node_id", "node__name", "index", "memory_mib", "foreign_milli")
    parts = ("node__device_parts", "node__is_one_part_per_pod")
    return devices.annotate(foreign_milli=foreign).values_list(*columns, *parts)


@prepared
def _nodes(cluster: int) -> Rows[Node]:
    return _texts("extras").filter(cluster=cluster).values_list(*_NODE_COLUMNS)


@prepared
def _labelled_nodes(cluster: int) -> Rows[Node]:
    return _texts("extras", "labels").filter(cluster=cluster).values_list(*_NODE_COLUMNS, "labels_text")


def _texts(*columns: str) -> QuerySet[Node]:
    """Return the nodes by name, with these JSON columns also as text: of a thousand nodes decoding takes longer than
    all else, and hardly any has changed."""
    return Node.objects.order_by("name").annotate(
        **{f"{name}_text": Cast(name, TextField()) for name in columns}
    )
