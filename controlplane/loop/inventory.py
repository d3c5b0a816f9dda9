"""Keep node and device rows equal to what the engine reports. A node that vanished is not ready, never deleted."""

from collections.abc import Iterable
from datetime import datetime

from django.db import transaction

from controlplane.engines.base import Engine, EngineUnreachable, NodeReport
from controlplane.models import Cluster, Device, Event, Node, NodePool


def sync_nodes(cluster: Cluster, engine: Engine, now: datetime) -> bool:
    """Take the engine's nodes over. Returns true when something changed; an unreachable engine changes nothing."""
    try:
        reports = engine.nodes()
    except EngineUnreachable:
        return False
    known = {node.name: node for node in Node.objects.filter(cluster=cluster)}
    with transaction.atomic():
        events = [
            event for report in reports for event in _take_over(cluster, report, known.get(report.name), now)
        ]
        events += _vanished(known.values(), {report.name for report in reports})
        if events:
            Event.objects.append(events)
    return bool(events)


def _take_over(cluster: Cluster, report: NodeReport, node: Node | None, now: datetime) -> list[Event]:
    if node is None:
        pool, _ = NodePool.objects.get_or_create(cluster=cluster, name=report.pool or "default")
        node = Node.objects.create(
            cluster=cluster,
            pool=pool,
            name=report.name,
            milli_cpus=report.milli_cpus,
            memory_mib=report.memory_mib,
            labels=dict(report.labels),
            is_ready=report.is_ready,
            seen_at=now,
        )
        _add_devices(node, report)
        return [Event(kind="node.registered", node_id=node.pk, message=node.name)]
    fresh = {
        "milli_cpus": report.milli_cpus,
        "memory_mib": report.memory_mib,
        "labels": dict(report.labels),
        "is_ready": report.is_ready,
    }
    has_new_devices = _add_devices(node, report)
    if not has_new_devices and all(getattr(node, name) == value for name, value in fresh.items()):
        return []
    Node.objects.filter(pk=node.pk).update(**fresh, seen_at=now)
    return [Event(kind="node.changed", node_id=node.pk, message=report.message or node.name)]


def _add_devices(node: Node, report: NodeReport) -> bool:
    known = set(node.devices.values_list("index", flat=True))
    fresh = [device for device in report.devices if device.index not in known]
    Device.objects.bulk_create(
        Device(
            node=node, index=device.index, uuid=device.uuid, model=device.model, memory_mib=device.memory_mib
        )
        for device in fresh
    )
    return bool(fresh)


def _vanished(known: Iterable[Node], reported: set[str]) -> list[Event]:
    gone = [node for node in known if node.name not in reported and node.is_ready]
    Node.objects.filter(pk__in=[node.pk for node in gone]).update(is_ready=False)
    return [
        Event(kind="node.lost", node_id=node.pk, message=f"{node.name} is no longer reported by its engine.")
        for node in gone
    ]
