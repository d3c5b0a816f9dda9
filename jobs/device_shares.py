"""Read nodes with their devices and the jobs that hold shares of them.

`sees`: the projects whose jobs the reader may see, None for all. For jobs of other projects only the
project's name is returned.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from django.db.models import Avg, Count, Q, QuerySet, Sum

from controlplane.models import Device, Node
from controlplane.notation import decimal
from controlplane.scheduling.mentions import Sees
from jobs.models import Allocation

Row = dict[str, Any]

_NODE_COLUMNS = ("id", "name", "is_ready", "is_cordoned", "is_closed", "cluster__is_reachable")
_DEVICE_COLUMNS = (
    "id",
    "node_id",
    "index",
    "utilization",
    "memory_used_mib",
    "memory_mib",
    "model",
    "is_foreign",
    "allocated_milli",
)
_SHARE_COLUMNS = (
    "device_id",
    "milli_gpus",
    "pod__job_id",
    "pod__job__name",
    "pod__job__gpu_utilization",
    "pod__job__project__name",
)


def nodes_with_devices(nodes: QuerySet[Node], sees: Sees) -> list[Row]:
    """Return nodes in the queryset's order, each with the key `devices`; three queries for any number of nodes.
    `sees`: the projects whose jobs may be named, None for all."""
    rows = list(nodes.values(*_NODE_COLUMNS))
    devices = _devices_of({row["id"] for row in rows}, sees)
    return [_node(row, devices[row["id"]]) for row in rows]


def device_shares() -> list[Row]:
    """Return every node that has devices, ordered by name. A device is (utilisation, is foreign, shares); foreign: a
    pod outside Trainyard holds it. A share is (project, milli-GPUs, utilisation of its job). Utilisations are 0 to
    1, None while unknown. Three queries, with only the columns that the device map needs."""
    shares: dict[int, list[tuple[str, int, float | None]]] = defaultdict(list)
    columns = ("device_id", "pod__job__project__name", "milli_gpus", "pod__job__gpu_utilization")
    live = Allocation.objects.filter(released_at=None).order_by("pk")
    for device_id, *share in live.values_list(*columns):
        shares[device_id].append(tuple(share))
    devices: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    present = Device.objects.order_by("node_id", "index").values_list(
        "node_id", "id", "utilization", "is_foreign"
    )
    for node_id, device_id, use, is_foreign in present:
        devices[node_id].append((use, is_foreign, shares.get(device_id, ())))
    nodes = Node.objects.order_by("name").values(*_NODE_COLUMNS)
    return [_shape_node(row) | {"devices": devices[row["id"]]} for row in nodes if row["id"] in devices]


def node_shares() -> list[Row]:
    """Return every node that has devices, without the devices themselves: `gpus` (their number), `allocated` (GPUs),
    `utilization` (mean, 0 to 1, None if unknown), and `projects` (milli-GPUs by project name). Two queries."""
    held: dict[int, dict[str, int]] = defaultdict(dict)
    live = Allocation.objects.filter(released_at=None).values_list(
        "device__node_id", "pod__job__project__name"
    )
    for node_id, project, milli in live.annotate(held=Sum("milli_gpus")).order_by():
        held[node_id][project] = milli
    present = Q(devices__is_present=True)
    counted = Node.objects.annotate(
        gpus=Count("devices", filter=present),
        allocated_milli=Sum("devices__allocated_milli", filter=present),
        utilization=Avg("devices__utilization", filter=present),
    )
    rows = counted.filter(gpus__gt=0).order_by("name")
    columns = (*_NODE_COLUMNS, "gpus", "allocated_milli", "utilization")
    return [_shape_node(row) | _sums_of(row, held[row["id"]]) for row in rows.values(*columns)]


def _sums_of(row: Mapping[str, Any], projects: dict[str, int]) -> Row:
    return {
        "gpus": row["gpus"],
        "allocated": decimal(row["allocated_milli"]),
        "utilization": row["utilization"],
        "projects": projects,
    }


def _devices_of(node_ids: Collection[int], sees: Sees) -> defaultdict[int, list[Row]]:
    shares: dict[int, list[Row]] = defaultdict(list)
    live = Allocation.objects.filter(released_at=None, device__node_id__in=node_ids).order_by("pk")
    for values in live.values_list(*_SHARE_COLUMNS):
        shares[values[0]].append(_share(values, sees))
    devices: defaultdict[int, list[Row]] = defaultdict(list)
    present = Device.objects.filter(node_id__in=node_ids).order_by("node_id", "index")
    for values in present.values_list(*_DEVICE_COLUMNS):
        device = dict(zip(_DEVICE_COLUMNS, values, strict=True))
        device["shares"] = shares[device.pop("id")]
        devices[device.pop("node_id")].append(device)
    return devices


def _share(values: tuple[Any, ...], sees: Sees) -> Row:
    _device, milli, job_id, name, use, project = values
    is_visible = sees is None or project in sees
    return {
        "job": str(job_id) if is_visible else None,
        "name": name if is_visible else None,
        "project": project,
        "milli_gpus": milli,
        "utilization": use,
    }


def _node(row: Mapping[str, Any], devices: list[Row]) -> Row:
    measured = [device["utilization"] for device in devices if device["utilization"] is not None]
    return _shape_node(row) | {
        "gpus": len(devices),
        "allocated": decimal(sum(device["allocated_milli"] for device in devices)),
        "utilization": round(sum(measured) / len(measured), 4) if measured else None,
        "devices": devices,
    }


def _shape_node(row: Mapping[str, Any]) -> Row:
    return {
        "name": row["name"],
        "is_ready": row["is_ready"],
        "is_reachable": row["cluster__is_reachable"],
        "is_cordoned": row["is_cordoned"] or row["is_closed"],
    }
