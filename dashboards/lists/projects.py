"""The list of projects. All users see quota and allocation; only members get a link to the project's page."""

from collections.abc import Sequence
from typing import Any

from django.db.models import Count, OuterRef, Subquery, Sum
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from controlplane.access import Actor, visible_project_ids
from controlplane.models import Project
from controlplane.queries.projects import project_rows
from dashboards import formats
from dashboards.lists import cells
from dashboards.lists.columns import number_column
from dashboards.lists.filters import NAME_CONTAINS, OF_CLUSTER
from dashboards.lists.table import Column, ListView, Row, counted, in_order
from dashboards.reads.projects import with_bars
from jobs.lifecycle import ACTIVE_STATES, QUEUED
from jobs.models import Job


def _rows(actor: Actor, pks: Sequence[Any]) -> list[Row]:
    visible = visible_project_ids(actor)
    projects = in_order(Project.objects.select_related("cluster", "department"), pks)
    return with_bars(
        [
            row
            | row["status"]
            | {"key": project.name, "project": project.name, "palette_index": project.palette_index}
            | {"is_visible": visible is None or project.pk in visible}
            for project, row in zip(projects, project_rows(projects), strict=True)
        ]
    )


def _name(row: Row) -> str:
    return cells.chip(row["palette_index"], row["name"], is_link=row["is_visible"])


def _of_jobs(value: Any, **states: Any) -> Any:
    """Return a sort function (see Column) for an aggregate `value` over the project's unfinished jobs, 0 without any.
    `states`: further filters on the jobs."""
    jobs = Job.objects.filter(project=OuterRef("pk"), **states).unfinished()
    found = jobs.order_by().values("project").annotate(found=value)
    return lambda at: Coalesce(Subquery(found.values("found")), 0)


PROJECTS = ListView(
    name="projects",
    unique="name",
    rows=_rows,
    summary=counted(
        ngettext_lazy("{count} project, GPU quota: {quota}", "{count} projects, GPU quota: {quota}"),
        quota=("gpu_quota_milli", lambda milli: formats.number(milli / 1000)),
    ),
    live="projects jobs",
    empty="dashboards/empty/projects.html",
    filters=(NAME_CONTAINS, OF_CLUSTER),
    columns=(
        Column("name", _("Project"), _name, "name"),
        Column(
            "bar",
            _("Allocation"),
            cells.part(
                "dashboards/parts/share_bar.html", bar="bar", status="status", palette_index="palette_index"
            ),
            css="wide-bar whole",
        ),
        number_column("gpus", _("GPUs"), "allocated_gpus", _of_jobs(Sum("allocated_milli")), "num strong"),
        number_column("quota", _("Quota"), "gpu_quota", "gpu_quota_milli"),
        number_column("fair", _("Fair share"), "fair_share_gpus", "fair_share_milli"),
        number_column("limit", _("Limit"), "gpu_limit", "gpu_limit_milli", "num quiet", is_nullable=True),
        number_column(
            "running", _("Running"), "running_jobs", _of_jobs(Count("pk"), state__in=ACTIVE_STATES)
        ),
        number_column("queued", _("Queued"), "queued_jobs", _of_jobs(Count("pk"), state=QUEUED)),
        Column("cluster", _("Cluster"), cells.text("cluster"), "cluster__name", "quiet aside"),
    ),
)
