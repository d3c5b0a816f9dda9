"""Clusters and nodes in REST form. The number of queries does not depend on the number of nodes."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from django.db.models import Count, Q

from controlplane.models import Cluster, Command, Device, Node
from controlplane.notation import decimal


def cluster_rows(clusters: Sequence[Cluster], *, is_admin: bool) -> list[dict[str, Any]]:
    """Return clusters as REST objects with their node and GPU counts; two queries. Settings and check results are
    included only if `is_admin`, credentials never."""
    ids = [cluster.pk for cluster in clusters]
    counted = Node.objects.filter(cluster_id__in=ids).values("cluster_id")
    counts = counted.annotate(
        nodes=Count("pk", distinct=True),
        ready=Count("pk", distinct=True, filter=Q(is_ready=True)),
        gpus=Count("devices"),
    )
    by_cluster = {row["cluster_id"]: row for row in counts}
    looks = Command.objects.unfinished().filter(cluster_id__in=ids, kind=Command.CHECK_CLUSTER)
    checking = set(looks.values_list("cluster_id", flat=True))
    return [
        _shape_cluster(cluster, by_cluster.get(cluster.pk))
        | {
            "settings": cluster.settings if is_admin else None,
            "status": _cluster_status(cluster, cluster.pk in checking, is_admin),
        }
        for cluster in clusters
    ]


def node_rows(nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """Return nodes as REST objects with their devices; one query. Load `cluster` and `pool` with the nodes
    (select_related)."""
    devices: dict[int, list[Device]] = defaultdict(list)
    for device in Device.objects.filter(node__in=[node.pk for node in nodes]).order_by("index"):
        devices[device.node_id].append(device)
    return [_shape_node(node, devices[node.pk]) for node in nodes]


def _shape_cluster(cluster: Cluster, counts: Any) -> dict[str, Any]:
    return {
        "name": cluster.name,
        "engine": cluster.engine,
        "scheduler": cluster.scheduler,
        "created_at": cluster.created_at,
        "nodes": counts["nodes"] if counts else 0,
        "nodes_ready": counts["ready"] if counts and cluster.is_reachable else 0,
        "gpus": counts["gpus"] if counts else 0,
        "usage_half_life_hours": cluster.usage_half_life_hours,
    }


def _cluster_status(cluster: Cluster, is_checking: bool, is_admin: bool) -> dict[str, Any]:
    return {
        "state": cluster.state,
        "is_checking": is_checking,
        "checked_at": cluster.checked_at,
        "checks": [_check_shape(check) for check in cluster.checks] if is_admin else [],
        "is_reachable": cluster.is_reachable,
        "unreachable_message": cluster.unreachable_message,
    }


def _check_shape(check: dict[str, Any]) -> dict[str, Any]:
    return {name: check[name] for name in ("name", "outcome", "message", "without_it")}


def _shape_node(node: Node, devices: Sequence[Device]) -> dict[str, Any]:
    return {
        "name": node.name,
        "cluster": node.cluster.name,
        "node_pool": node.pool.name if node.pool else None,
        "is_ready": node.is_ready,
        "is_reachable": node.cluster.is_reachable,
        "message": node.message,
        "is_cordoned": not node.is_open,
        "is_spot": node.is_spot,
        "interruption_at": node.interruption_at,
        "cpus": decimal(node.milli_cpus),
        "memory_mib": node.memory_mib,
        "extra_resources": node.extras,
        "labels": node.labels,
        "seen_at": node.seen_at,
        "gpus": len(devices),
        "allocated_gpus": decimal(sum(device.allocated_milli for device in devices)),
        "gpu_utilization": known_mean([device.utilization for device in devices]),
        "devices": [_shape_device(device) for device in devices],
    }


def _shape_device(device: Device) -> dict[str, Any]:
    return {
        "index": device.index,
        "uuid": device.uuid,
        "model": device.model,
        "memory_mib": device.memory_mib,
        "allocated": device.allocated_milli / 1000,
        "utilization": device.utilization,
        "memory_used_mib": device.memory_used_mib,
        "is_foreign": device.is_foreign,
    }


def known_mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if there are none."""
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured) if measured else None
