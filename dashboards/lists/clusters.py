"""The list of clusters, for admins; clusters with problems first."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import Case, Count, IntegerField, OuterRef, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, ngettext_lazy

from controlplane.access import Actor
from controlplane.models import Cluster, Device, Node
from dashboards import formats
from dashboards.lists import cells
from dashboards.lists.columns import number_column, time_column
from dashboards.lists.table import Column, ListView, Row, counted, in_order
from dashboards.reads.clusters import rows as cluster_rows


def _rows(actor: Actor, pks: Sequence[Any]) -> list[Row]:
    return [
        row | {"key": row["name"], "checked_at": row["status"]["checked_at"], "cluster": row}
        for row in cluster_rows(in_order(Cluster.objects.all(), pks))
    ]


def _condition(at: datetime) -> Case:
    return Case(
        When(state=Cluster.REFUSED, then=Value(0)),
        When(state=Cluster.ATTACHED, is_reachable=False, then=Value(1)),
        When(state=Cluster.CHECKING, then=Value(2)),
        default=Value(3),
        output_field=IntegerField(),
    )


def _count(rows: QuerySet[Any], cluster: str) -> Any:
    found = rows.filter(**{cluster: OuterRef("pk")}).order_by().values(cluster).annotate(found=Count("pk"))
    return lambda at: Coalesce(Subquery(found.values("found")), 0)


def _state(row: Row) -> str:
    badge = cells.part("dashboards/parts/cluster_badge.html", cluster="cluster")(row)
    if not row["odd"]:
        return badge
    findings = ngettext("one finding", "{count} findings", row["odd"]).format(count=row["odd"])
    return format_html('{} <span class="second">{}</span>', badge, findings)


def _nodes(row: Row) -> str:
    return cells.of_total(formats.number(row["nodes_ready"]), formats.number(row["nodes"]))


CLUSTERS = ListView(
    name="clusters",
    unique="name",
    rows=_rows,
    summary=counted(ngettext_lazy("{count} cluster", "{count} clusters")),
    live="nodes",
    empty="dashboards/empty/clusters.html",
    columns=(
        Column("name", _("Cluster"), cells.linked("cluster", "name"), "name"),
        Column("state", _("State"), _state, _condition, "nowrap"),
        Column("engine", _("Engine"), cells.text("engine"), "engine", "quiet aside"),
        Column("scheduler", _("Placed by"), cells.text("scheduler"), "scheduler", "quiet aside"),
        Column(
            "nodes",
            _("Nodes ready"),
            _nodes,
            _count(Node.objects.filter(is_ready=True), "cluster"),
            "num nowrap",
            falls=True,
        ),
        number_column("gpus", _("GPUs"), "gpus", _count(Device.objects.all(), "node__cluster")),
        time_column("checked", _("Checked"), "checked_at", never=formats.NOTHING),
    ),
)
