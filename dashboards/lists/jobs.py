"""The list of jobs."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import (
    Case,
    Count,
    DateTimeField,
    DurationField,
    ExpressionWrapper,
    F,
    OuterRef,
    QuerySet,
    Subquery,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Coalesce
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from controlplane.access import Actor, visible_project_names
from controlplane.models import Project, User
from controlplane.scheduling.reasons import QUEUED_REASONS
from dashboards import formats
from dashboards.lists import cells
from dashboards.lists.filters import NAME_CONTAINS, OF_PROJECT
from dashboards.lists.table import Column, Filter, ListView, Row, Text, by
from dashboards.reads.projects import palette
from dashboards.templatetags.ui import asked, badge, gpu_use, node_link, ran, since
from jobs.access import visible_jobs
from jobs.kinds.registry import KINDS
from jobs.lifecycle import ACTIVE_STATES, FINAL_STATES, LOOKS, RUNNING_STATES, STATES
from jobs.models import Job, Pod
from jobs.project_status import asked_milli, largest_device_mib
from jobs.queries import job_rows

UNFINISHED, ACTIVE, FINISHED = "unfinished", "active", "finished"
# Columns omitted from tables beside other panels, which are narrower.
BESIDE = ("kind", "node", "use")
# Longest reason in characters; fits on two lines of the column.
REASON_LENGTH = 90


def rows_of(actor: Actor, jobs: QuerySet[Job], colours: dict[str, int] | None = None) -> list[Row]:
    """Return jobs as list rows, in the queryset's order, as the actor may see them. `colours`: palette index by
    project name; None reads those of all projects."""
    known = palette() if colours is None else colours
    return [
        job | {"key": job["id"], "palette_index": known.get(job["project"])}
        for job in job_rows(jobs, visible_project_names(actor))
    ]


def unfinished_of(actor: Actor, project: Project, limit: int = 20) -> tuple[list[Row], int]:
    """Return (rows, total) of a project's unfinished jobs: those with GPUs first, then the newest, at most
    `limit` rows."""
    unfinished = Job.objects.filter(project=project).unfinished()
    is_waiting = Case(When(state__in=ACTIVE_STATES, then=Value(0)), default=Value(1))
    shown = unfinished.order_by(is_waiting, "-submit_rank")[:limit]
    rows = rows_of(actor, shown, {project.name: project.palette_index})
    return rows, unfinished.count() if len(rows) == limit else len(rows)


def latest_of(actor: Actor, user: User, limit: int = 20) -> list[Row]:
    """Return rows of the user's newest jobs that the actor may see, at most `limit`."""
    return rows_of(actor, visible_jobs(actor).filter(user=user).order_by("-submit_rank")[:limit])


def _rows(actor: Actor, pks: Sequence[Any]) -> list[Row]:
    if not pks:
        return []
    found = {row["key"]: row for row in rows_of(actor, Job.objects.filter(pk__in=pks))}
    return [found[str(pk)] for pk in pks if str(pk) in found]


def _node(row: Row) -> str:
    nodes = sorted({pod["node"] for pod in row["status"]["pods"] if pod["node"]})
    if not nodes:
        return formats.NOTHING
    more = format_html(' <span class="second">+{}</span>', len(nodes) - 1) if len(nodes) > 1 else ""
    return format_html(
        '<a href="{}" title="{}">{}</a>{}', node_link(nodes[0]), ", ".join(nodes), nodes[0], more
    )


def _progress(row: Row) -> str:
    done = formats.fraction(row["status"]["progress"])
    if row["status"]["state"] in RUNNING_STATES and done is not None:
        return cells.bar(done)
    reason = row["status"]["reason"]
    short = shortened(reason["code"], reason["message"])
    return format_html('<span class="reason" title="{}">{}</span>', reason["message"], short)


def shortened(code: str, message: str, most: int = REASON_LENGTH) -> str:
    """Return a reason in at most `most` characters. First removes a queued job's advice, then shortens the
    middle."""
    if len(message) <= most:
        return message
    # The advice is the same for all jobs with this reason.
    if code in QUEUED_REASONS:
        first, stop, _rest = message.partition(". ")
        if len(first) + 2 <= most:
            return f"{first}{stop.strip()} …"
        message = first + stop.strip()
    if len(message) <= most:
        return message
    # The end is kept, because compared numbers and errors are there.
    head = message[: most // 2 - 2].rpartition(" ")[0] or message[: most // 2 - 2]
    tail = message[-(most - len(head) - 3) :]
    return f"{head} … {tail.partition(' ')[2] or tail}"


def _runtime(at: datetime) -> Any:
    ended = Coalesce(F("finished_at"), Value(at, output_field=DateTimeField()))
    return ExpressionWrapper(ended - F("started_at"), output_field=DurationField())


def _in_lifecycle_order(at: datetime) -> Any:
    return Case(*(When(state=state, then=Value(place)) for place, state in enumerate(STATES)))


def _first_node(at: datetime) -> Any:
    held = Pod.objects.filter(job=OuterRef("pk"), released_at=None).order_by("node__name")
    return Subquery(held.values("node__name")[:1])


def _by_state(jobs: QuerySet[Job], state: str) -> QuerySet[Job]:
    if state == UNFINISHED:
        return jobs.exclude(state__in=FINAL_STATES)
    if state in (ACTIVE, FINISHED):
        return jobs.filter(state__in=ACTIVE_STATES if state == ACTIVE else FINAL_STATES)
    return jobs.filter(state=state) if state in STATES else jobs.none()


def _states(actor: Actor) -> list[tuple[str, Text]]:
    groups: list[tuple[str, Text]] = [
        (UNFINISHED, _("Unfinished")),
        (ACTIVE, _("On nodes")),
        (FINISHED, _("Finished")),
    ]
    return groups + [(state, LOOKS[state].label) for state in STATES]


def _summary(jobs: QuerySet[Job]) -> str:
    """Return a text with the number of jobs and the GPUs that they request and hold. A request in MiB counts
    as its share of the cluster's largest GPU, as in a project's requested GPUs."""
    shapes = jobs.order_by().values_list("project__cluster_id", "milli_gpus", "gpu_memory_mib", "pods_wanted")
    counted = list(shapes.annotate(Count("pk"), Sum("allocated_milli")))
    largest = largest_device_mib() if any(shape[2] for shape in counted) else {}
    count = asked = held = 0
    for cluster_id, milli, memory_mib, pods, number, held_milli in counted:
        asked += asked_milli(milli, memory_mib, largest.get(cluster_id)) * pods * number
        count, held = count + number, held + held_milli
    text = ngettext(
        "{count} job, GPUs: {asked} asked for, {held} held",
        "{count} jobs, GPUs: {asked} asked for, {held} held",
        count,
    )
    return text.format(
        count=formats.number(count),
        asked=formats.number(asked / 1000),
        held=formats.number(held / 1000),
    )


JOBS = ListView(
    name="jobs",
    order="-submitted",
    unique="-submit_rank",
    size=50,
    rows=_rows,
    summary=_summary,
    live="jobs queue usage",
    empty="dashboards/empty/jobs.html",
    verbs=(("stop", _("Stop…")), ("suspend", _("Suspend…")), ("delete", _("Delete…"))),
    filters=(
        NAME_CONTAINS,
        Filter("state", _("Any state"), _by_state, _states),
        OF_PROJECT,
        Filter(
            "kind",
            _("Any type"),
            by("kind"),
            lambda actor: [(kind.name, kind.label) for kind in KINDS.values()],
        ),
        Filter("user", _("User"), by("user__username")),
    ),
    columns=(
        Column(
            "name", _("Job"), lambda row: cells.link(reverse("job", args=[row["id"]]), row["name"]), "name"
        ),
        Column(
            "project",
            _("Project"),
            lambda row: cells.chip(row["palette_index"], row["project"]),
            "project__name",
            "aside",
        ),
        Column("user", _("User"), cells.text("user"), "user__username", "quiet aside spare"),
        Column("kind", _("Type"), cells.text("kind"), "kind", "quiet extra"),
        Column("state", _("State"), lambda row: badge(row["status"]["state"]), _in_lifecycle_order),
        Column(
            "gpus", _("GPUs"), asked, lambda at: F("milli_gpus") * F("pods_wanted"), "num aside", falls=True
        ),
        Column("node", _("Node"), _node, _first_node, "quiet nowrap aside spare", is_nullable=True),
        Column(
            "use",
            _("GPU use"),
            lambda row: gpu_use(row["status"]["gpu_utilization"]),
            "gpu_utilization",
            "nowrap aside",
            is_nullable=True,
            falls=True,
        ),
        Column(
            "ran",
            _("Ran for"),
            lambda row: ran(row["status"]),
            _runtime,
            "num quiet nowrap aside spare",
            is_nullable=True,
            falls=True,
        ),
        Column("reason", _("Progress or reason"), _progress, "reason", "quiet whole"),
        Column(
            "submitted",
            _("Submitted"),
            lambda row: since(row["created_at"], "ago"),
            "submit_rank",
            "quiet nowrap",
            falls=True,
        ),
    ),
)
