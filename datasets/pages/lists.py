"""The dataset list."""

from collections.abc import Sequence
from typing import Any

from django.db.models import F, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from controlplane.access import Actor, visible_project_ids
from dashboards import formats
from dashboards.lists import cells
from dashboards.lists.columns import number_column
from dashboards.lists.filters import NAME_CONTAINS, OF_PROJECT
from dashboards.lists.table import Column, ListView, Row, in_order
from datasets.models import Dataset, DatasetVersion
from datasets.queries.datasets import dataset_shapes


def _rows(actor: Actor, pks: Sequence[Any]) -> list[Row]:
    visible = visible_project_ids(actor)
    datasets = in_order(Dataset.objects.select_related("project"), pks)
    return [
        row
        | {"key": row["id"], "palette_index": dataset.project.palette_index}
        | {"is_inside": visible is None or dataset.project_id in visible}
        for dataset, row in zip(datasets, dataset_shapes(datasets), strict=True)
    ]


def _name(row: Row) -> str:
    name = cells.link(reverse("dataset-page", args=[row["id"]]), row["name"])
    if not row["description"]:
        return name
    return format_html('{}<div class="second small">{}</div>', name, row["description"])


def _project(row: Row) -> str:
    return cells.chip(row["palette_index"], row["project"], is_link=row["is_inside"])


def _newest(column: str) -> Any:
    """Return a sort function (see Column) for a column of the dataset's newest version."""
    newest = DatasetVersion.objects.whole().filter(dataset=OuterRef("pk"), number=OuterRef("latest"))
    return lambda at: Subquery(newest.values(column)[:1])


def _or_zero(column: str) -> Any:
    newest = _newest(column)
    return lambda at: Coalesce(newest(at), 0)


def _shared(row: Row) -> str:
    return str(_("everyone")) if row["is_shared"] else str(_("project"))


def _summary(datasets: QuerySet[Dataset]) -> str:
    rows = DatasetVersion.objects.whole()
    newest = rows.filter(dataset__in=datasets.order_by(), number=F("dataset__latest"))
    found = datasets.count()
    text = ngettext(
        "{count} dataset, newest versions: {size}", "{count} datasets, newest versions: {size}", found
    )
    total = newest.aggregate(total=Sum("size_bytes", default=0))["total"]
    return text.format(count=formats.number(found), size=formats.size(total))


DATASETS = ListView(
    name="datasets",
    rows=_rows,
    summary=_summary,
    live="datasets",
    empty="datasets/empty/datasets.html",
    filters=(NAME_CONTAINS, OF_PROJECT),
    columns=(
        Column("name", _("Dataset"), _name, "name"),
        Column("project", _("Project"), _project, "project__name"),
        Column("latest", _("Versions"), cells.number("latest"), "latest", css="num"),
        number_column("files", _("Files"), "files", _or_zero("files")),
        Column(
            "size",
            _("Size"),
            lambda row: formats.size(row["size_bytes"]),
            _or_zero("size_bytes"),
            css="num",
            falls=True,
        ),
        Column(
            "updated",
            _("Updated"),
            cells.ago("updated_at"),
            _newest("created_at"),
            falls=True,
            is_nullable=True,
        ),
        Column("shared", _("Readable by"), _shared, "is_shared"),
    ),
)
