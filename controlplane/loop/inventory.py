"""Keep the rows of nodes and devices equal to the engine's report. A node that is no longer reported becomes not
ready; its row stays."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from controlplane.engines.base import DeviceReport, Engine, EngineUnreachable, NodeReport
from controlplane.engines.kinds import engine_kind
from controlplane.fields import LONGEST_MESSAGE
from controlplane.loop.cluster_warnings import set_warning
from controlplane.models import Cluster, Device, Event, Node, NodePool
from controlplane.models.bulk_update import one_by_one
from controlplane.notation import some_of
from jobs.allocation import record_capacity

REPORTED = ("uuid", "model", "memory_mib", "is_foreign")  # of a device
VANISHED = "Its engine no longer reports it."
# The category of this warning among a cluster's checks.
CHECK = "nodes"
WITHOUT_THEM = "No job is sent to these nodes; the others are used."


def sync_nodes(cluster: Cluster, engine: Engine, now: datetime) -> bool:
    """Update the cluster's nodes from its engine, and return whether anything changed. Does nothing if the engine is
    unreachable, or if the cluster's settings have changed since its row was read, because the nodes may have other
    names now."""
    try:
        reports = _without_names_of_others(cluster, engine.nodes())
    except EngineUnreachable:
        return False
    known = {node.name: node for node in Node.objects.filter(cluster=cluster)}
    changes: list[bool] = []

    def write(batch: Sequence[NodeReport]) -> None:
        if _is_outdated(cluster):
            return
        devices = _devices_of(cluster, batch)
        events = [
            event
            for report in batch
            for event in _take_over(cluster, report, known.get(report.name), devices, now)
        ]
        if events:
            Event.objects.append(events)
        changes.append(bool(events))

    one_by_one(reports, write)
    reported = {report.name for report in reports}
    if not any(changes) and all(name in reported for name, node in known.items() if node.is_ready):
        return False
    with transaction.atomic():
        lost = [] if _is_outdated(cluster) else _vanished(known.values(), reported, now)
        if lost or any(changes):
            record_capacity(cluster, now)
        if lost:
            Event.objects.append(lost)
    return any(changes) or bool(lost)


def _is_outdated(cluster: Cluster) -> bool:
    """Return whether the cluster was changed or detached since its row was read. Locks the row, so that no node is
    renamed before the commit; call it in a transaction."""
    row = Cluster.objects.select_for_update(no_key=True).get(pk=cluster.pk)
    return row.settings != cluster.settings or row.detached_at is not None


def _devices_of(cluster: Cluster, reports: Sequence[NodeReport]) -> Mapping[int, Mapping[int, Device]]:
    """Return the device rows of the reported nodes: primary key of the node -> device index -> row."""
    found: dict[int, dict[int, Device]] = defaultdict(dict)
    names = [report.name for report in reports]
    for device in Device.all_objects.filter(node__cluster=cluster, node__name__in=names):
        found[device.node_id][device.index] = device
    return found


def _without_names_of_others(cluster: Cluster, reports: Sequence[NodeReport]) -> list[NodeReport]:
    """Return the reports of nodes whose names no other cluster uses, and set a warning about the rest. /nodes/NAME
    must mean one node, and one clash must not make the other nodes unusable."""
    names = [report.name for report in reports]
    others = Node.objects.exclude(cluster=cluster).filter(name__in=names).order_by("name")
    taken = dict(others.values_list("name", "cluster__name"))
    set_warning(
        cluster,
        CHECK,
        _clash(cluster, taken, len(names)) if taken else "",
        without_it=WITHOUT_THEM,
        begins="cluster.nodes_left_out",
        ends="cluster.nodes_taken_in",
    )
    return [report for report in reports if report.name not in taken]


def _clash(cluster: Cluster, taken: Mapping[str, str], count: int) -> str:
    """Return the warning about nodes that are left out. `taken`: node name -> the cluster that has it; `count`: how
    many nodes were reported."""
    shown = some_of([f"{name} (in {cluster})" for name, cluster in taken.items()])
    return (
        f"{len(taken)} of {count} nodes are left out, since another cluster has nodes of these names:"
        f" {shown}. {_twin(taken, count)}{_way_out(cluster)}"
    )


def _twin(taken: Mapping[str, str], count: int) -> str:
    """Return a hint that this cluster may be attached twice; "" unless one other cluster has all of the reported
    nodes."""
    others = set(taken.values())
    if len(taken) < count or len(others) > 1:
        return ""
    return f"Is it the same cluster as {others.pop()}? Then remove one of the two: its GPUs would count twice. Else: "


def _way_out(cluster: Cluster) -> str:
    return engine_kind(cluster.engine).rename_hint.format(cluster=cluster.name)


def _take_over(
    cluster: Cluster,
    report: NodeReport,
    node: Node | None,
    devices: Mapping[int, Mapping[int, Device]],
    now: datetime,
) -> list[Event]:
    fresh: dict[str, Any] = {
        "milli_cpus": report.milli_cpus,
        "memory_mib": report.memory_mib,
        "extras": dict(report.extras),
        "labels": dict(report.labels),
        "is_ready": report.is_ready,
        "is_closed": report.is_closed,
        "device_parts": report.device_parts,
        "is_one_part_per_pod": report.is_one_part_per_pod,
        "message": report.message[:LONGEST_MESSAGE],
    }
    if node is None:
        pool, _ = NodePool.objects.get_or_create(cluster=cluster, name=report.pool or "default")
        node = Node.objects.create(cluster=cluster, pool=pool, name=report.name, seen_at=now, **fresh)
        _take_devices(node, report, {})
        noticed = _note_interruption(node, report, now)
        return [Event(kind="node.registered", node_id=node.pk, message=node.name), *noticed]
    noticed = _note_interruption(node, report, now)
    has_other_devices = _take_devices(node, report, devices.get(node.pk, {}))
    if not has_other_devices and all(getattr(node, name) == value for name, value in fresh.items()):
        return noticed
    Node.objects.filter(pk=node.pk).update(**fresh, seen_at=now)
    return [*noticed, Event(kind="node.changed", node_id=node.pk, message=fresh["message"] or node.name)]


def _note_interruption(node: Node, report: NodeReport, now: datetime) -> list[Event]:
    """Store or remove the interruption notice that the cluster reports for the node, and return the events. A notice
    given over REST is kept, unless the cluster reports an earlier time."""
    seconds, known = report.interruption_seconds, node.interruption_at
    # Most nodes return here: building a query for each of a thousand nodes takes longer than all else.
    if seconds is None and (known is None or node.interruption_by):
        return []
    rows = Node.objects.filter(pk=node.pk)
    if seconds is None:
        rows.update(interruption_at=None)
        return [Event(kind="node.notice_withdrawn", node_id=node.pk, message=node.name)]
    goes_at = now + timedelta(seconds=seconds)
    if known is not None and known <= goes_at:
        return []
    rows.update(interruption_at=goes_at, interruption_by="")
    message = f"{node.name} will be withdrawn by its provider in {seconds} s."
    return [Event(kind="node.interrupted", node_id=node.pk, message=message, data={"in_seconds": seconds})]


def _take_devices(node: Node, report: NodeReport, known: Mapping[int, Device]) -> bool:
    """Write the reported devices: new ones are added, others updated, and those that the report lacks marked as
    absent. `known`: rows by index. Return whether anything changed."""
    reported = {device.index: device for device in report.devices}
    fresh = [_new_device(node, device) for index, device in reported.items() if index not in known]
    if fresh:
        Device.all_objects.bulk_create(fresh)
    changed = [device for index, device in known.items() if _update(device, reported.get(index))]
    if changed:
        Device.all_objects.bulk_update(changed, [*REPORTED, "is_present"])
    return bool(fresh or changed)


def _new_device(node: Node, report: DeviceReport) -> Device:
    return Device(node=node, index=report.index, **{name: getattr(report, name) for name in REPORTED})


def _update(device: Device, report: DeviceReport | None) -> bool:
    """Copy a report into the row of a device, without saving it; None marks the device as absent. Return whether
    anything changed."""
    fresh: dict[str, Any] = {"is_present": report is not None}
    if report is not None:
        fresh |= {name: getattr(report, name) for name in REPORTED}
    changed = [name for name, value in fresh.items() if getattr(device, name) != value]
    for name in changed:
        setattr(device, name, fresh[name])
    return bool(changed)


def _vanished(known: Iterable[Node], reported: set[str], now: datetime) -> list[Event]:
    gone = [node for node in known if node.name not in reported and node.is_ready]
    rows = Node.objects.filter(pk__in=[node.pk for node in gone])
    # The device was present until this report.
    rows.update(is_ready=False, message=VANISHED, seen_at=now)
    return [
        Event(kind="node.lost", node_id=node.pk, message=f"{node.name} is no longer reported by its engine.")
        for node in gone
    ]
