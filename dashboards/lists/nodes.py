"""The list of nodes; nodes with problems first."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import (
    Avg,
    Case,
    Exists,
    IntegerField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
    When,
)
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from controlplane.access import Actor, visible_project_names
from controlplane.models import Cluster, Device, Node, NodePool
from controlplane.queries.nodes import node_rows
from dashboards import formats
from dashboards.lists import cells
from dashboards.lists.filters import NAME_CONTAINS, OF_CLUSTER
from dashboards.lists.table import Column, Filter, ListView, Row, Text, by, in_order, named
from dashboards.reads.devices import device_nodes
from dashboards.reads.projects import palette
from dashboards.templatetags.ui import since
from jobs.lifecycle import STOPPING
from jobs.models import Pod
from jobs.node_pods import reserved_on

# Order of the list: the most urgent condition first.
AWAY, NOT_READY, INTERRUPTED, DRAINING, CORDONED, READY = range(6)
PROBLEMS = "problems"
CONDITIONS: dict[str, tuple[int, Text]] = {
    "away": (AWAY, _("Not reachable")),
    "not-ready": (NOT_READY, _("Not ready")),
    "interrupted": (INTERRUPTED, _("Interrupted")),
    "draining": (DRAINING, _("Draining")),
    "cordoned": (CORDONED, _("Cordoned")),
    "ready": (READY, _("Ready")),
}


def first_of(cluster: Cluster, limit: int = 50) -> list[Row]:
    """Return the first `limit` nodes of a cluster as list rows, without device cells."""
    nodes = Node.objects.filter(cluster=cluster).select_related("cluster", "pool")
    return _described(list(nodes.order_by(_condition(), "name")[:limit]))


def _rows(actor: Actor, pks: Sequence[Any]) -> list[Row]:
    rows = _described(in_order(Node.objects.select_related("cluster", "pool"), pks))
    drawn = device_nodes(Node.objects.filter(pk__in=pks), visible_project_names(actor), palette())
    cells_of = {node["name"]: node["cells"] for node in drawn}
    return [row | {"cells": cells_of.get(row["name"], [])} for row in rows]


def _described(nodes: Sequence[Node]) -> list[Row]:
    """Return nodes as list rows, without device cells."""
    reserved = reserved_on(node.pk for node in nodes)
    return [
        row
        | reserved.get(node.pk, {"reserved_cpus": 0, "reserved_memory_mib": 0, "pods": 0, "stopping": 0})
        | {"key": node.name, "cells": []}
        for node, row in zip(nodes, node_rows(nodes), strict=True)
    ]


def condition(row: Row) -> int:
    """Return the condition of a node's row as one of the numbers by which the list is sorted; `_condition`
    computes the same in SQL."""
    if not row["is_reachable"]:
        return AWAY
    if not row["is_ready"]:
        return NOT_READY
    if row["interruption_at"]:
        return INTERRUPTED
    if row["is_cordoned"]:
        return DRAINING if row["stopping"] else CORDONED
    return READY


def _condition(at: datetime | None = None) -> Case:
    is_closed = Q(is_cordoned=True) | Q(is_closed=True)
    stopping = Pod.objects.filter(node=OuterRef("pk"), released_at=None, job__state=STOPPING)
    return Case(
        When(cluster__is_reachable=False, then=Value(AWAY)),
        When(is_ready=False, then=Value(NOT_READY)),
        When(interruption_at__isnull=False, then=Value(INTERRUPTED)),
        When(is_closed & Exists(stopping), then=Value(DRAINING)),
        When(is_closed, then=Value(CORDONED)),
        default=Value(READY),
        output_field=IntegerField(),
    )


def _state(row: Row) -> str:
    found = condition(row)
    label = next(label for rank, label in CONDITIONS.values() if rank == found)
    if found == NOT_READY:
        seen = format_html("{}, {} {}", label, gettext("seen"), since(row["seen_at"], "ago"))
        return cells.badge("bad", seen)
    tone = "bad" if found in (AWAY, INTERRUPTED) else "good" if found == READY else "warning"
    left = ngettext("{count} pod left", "{count} pods left", row["pods"]).format(count=row["pods"])
    is_emptying = found in (INTERRUPTED, DRAINING, CORDONED) and row["pods"]
    return format_html(
        "{}{}",
        cells.badge(tone, label),
        format_html(' <span class="second">{}</span>', left) if is_emptying else "",
    )


def _by_condition(nodes: QuerySet[Node], asked: str) -> QuerySet[Node]:
    ranked = nodes.annotate(condition=_condition())
    if asked == PROBLEMS:
        return ranked.filter(condition__lt=READY)
    return ranked.filter(condition=CONDITIONS[asked][0]) if asked in CONDITIONS else nodes.none()


def _conditions(actor: Actor) -> list[tuple[str, Text]]:
    return [(PROBLEMS, _("With a problem")), *((name, label) for name, (_rank, label) in CONDITIONS.items())]


def _of_devices(value: Any) -> Any:
    """Return a sort function (see Column) for an aggregate `value` over the node's devices."""
    found = Device.objects.filter(node=OuterRef("pk")).order_by().values("node").annotate(found=value)
    return lambda at: Subquery(found.values("found"))


def _of_pods(column: str) -> Any:
    """Return a sort function (see Column) for the sum of `column` over the node's unreleased pods."""
    held = Pod.objects.filter(node=OuterRef("pk"), released_at=None).order_by().values("node")
    return lambda at: Subquery(held.annotate(found=Sum(column)).values("found"))


def _cpus(row: Row) -> str:
    return cells.of_total(formats.number(row["reserved_cpus"]), formats.number(row["cpus"]))


def _memory(row: Row) -> str:
    return cells.of_total(formats.mebibytes(row["reserved_memory_mib"]), formats.mebibytes(row["memory_mib"]))


def _pool(row: Row) -> str:
    found = [row["node_pool"] or "", gettext("spot") if row["is_spot"] else ""]
    return format_html("{}", " · ".join(filter(None, found)) or formats.NOTHING)


def _gpus(row: Row) -> str:
    return cells.of_total(formats.number(row["allocated_gpus"]), formats.number(row["gpus"]))


def _summary(nodes: QuerySet[Node]) -> str:
    counted = dict(
        nodes.annotate(rank=_condition()).order_by().values_list("rank").annotate(count=Sum(Value(1)))
    )
    count = sum(counted.values())
    text = ngettext("{count} node", "{count} nodes", count).format(count=formats.number(count))
    wrong = [
        f"{counted[rank]} {str(label).lower()}"
        for rank, label in CONDITIONS.values()
        if rank != READY and counted.get(rank)
    ]
    return ", ".join([text, *wrong])


NODES = ListView(
    name="nodes",
    order="state",
    unique="name",
    rows=_rows,
    summary=_summary,
    live="nodes jobs usage",
    empty="dashboards/empty/nodes.html",
    filters=(
        NAME_CONTAINS,
        Filter("state", _("Any state"), _by_condition, _conditions),
        OF_CLUSTER,
        Filter("pool", _("Any pool"), by("pool__name"), named(lambda actor: NodePool.objects.all())),
    ),
    columns=(
        Column("name", _("Node"), cells.linked("node", "name"), "name"),
        Column("state", _("State"), _state, _condition, "nowrap"),
        Column(
            "devices",
            _("Devices"),
            cells.part("dashboards/parts/cells.html", cells="cells"),
            css="cells-cell whole",
        ),
        Column(
            "gpus",
            _("GPUs"),
            _gpus,
            _of_devices(Sum("allocated_milli")),
            "num nowrap",
            is_nullable=True,
            falls=True,
        ),
        Column(
            "use",
            _("GPU use"),
            lambda row: formats.percent(row["gpu_utilization"]),
            _of_devices(Avg("utilization")),
            "num",
            is_nullable=True,
            falls=True,
        ),
        Column(
            "cpus",
            _("CPUs reserved"),
            _cpus,
            _of_pods("milli_cpus"),
            "num nowrap",
            is_nullable=True,
            falls=True,
        ),
        Column(
            "memory",
            _("Memory reserved"),
            _memory,
            _of_pods("memory_mib"),
            "num nowrap",
            is_nullable=True,
            falls=True,
        ),
        Column("pool", _("Pool"), _pool, "pool__name", "quiet aside", is_nullable=True),
        Column("cluster", _("Cluster"), cells.text("cluster"), "cluster__name", "quiet aside"),
    ),
)
