"""The lists of volumes and snapshots."""

from collections.abc import Iterable, Sequence
from typing import Any

from django.db.models import QuerySet
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from controlplane.access import Actor
from dashboards import formats
from dashboards.lists import cells
from dashboards.lists.columns import time_column
from dashboards.lists.filters import NAME_CONTAINS, OF_PROJECT
from dashboards.lists.table import Column, ListView, Row, counted, in_order
from dashboards.templatetags.ui import meter
from datasets.models import Snapshot, Volume
from datasets.models.volumes import CREATING, DELETING, FAILED, MANY_JOBS, ONE_JOB, PENDING, READY
from datasets.queries.volumes import snapshot_rows, snapshot_shapes, volume_shapes
from jobs.models import Job

TONES = {READY: "good", CREATING: "accent", PENDING: "accent", DELETING: "second", FAILED: "bad"}
STATES = {
    READY: _("Ready"),
    CREATING: _("Being made"),
    PENDING: _("Being taken"),
    DELETING: _("Being deleted"),
    FAILED: _("Failed"),
}
MODES = {ONE_JOB: _("one job at a time"), MANY_JOBS: _("many jobs")}
CONSISTENCY = {"idle": _("no job was running"), "quiesced": _("jobs paused"), "crash": _("while a job wrote")}
CAUSES = {
    "request": _("requested"),
    "schedule": _("schedule"),
    "success": _("job succeeded"),
    "preempt": _("job was preempted"),
    "epoch": _("epoch ended"),
    "best_metric": _("best metric"),
}
JOBS_SHOWN, SNAPSHOTS_OF_JOB = 3, 20
# The share of its size from which a volume's use is coloured.
NEARLY_FULL = 0.9


def state_badge(state: str) -> str:
    """Return the coloured badge of a volume's or snapshot's state, as HTML."""
    return cells.badge(TONES[state], STATES[state])


def used(row: Row) -> str:
    """Return a bar with the used and all bytes of a volume, as HTML; only the size if its use is not known."""
    if row["used_bytes"] is None:
        return format_html('<span class="second">{}</span>', formats.binary_size(row["size_bytes"]))
    share = row["used_bytes"] / row["size_bytes"]
    text = cells.of_total(formats.binary_size(row["used_bytes"]), formats.binary_size(row["size_bytes"]))
    return format_html("{} {}", text, meter(share, fullness(share)))


def fullness(share: float | None) -> str:
    """Return the tone of a volume's use, a share of its size: "bad" if it holds more, "warning" if it is nearly full,
    else ""."""
    if share is None or share < NEARLY_FULL:
        return ""
    return "bad" if share > 1 else "warning"


def jobs(row: Row) -> str:
    """Return links to the unfinished jobs that mount the volume, at most JOBS_SHOWN and the number of the others, as
    HTML; a dash if there are none."""
    if not row["jobs"]:
        return formats.NOTHING
    links = format_html_join(
        ", ",
        '<a class="link" href="{}">{}</a>',
        ((reverse("job", args=[job["id"]]), job["name"]) for job in row["jobs"][:JOBS_SHOWN]),
    )
    more = len(row["jobs"]) - JOBS_SHOWN
    return format_html("{} {}", links, gettext("and %d more") % more) if more > 0 else links


def _mode(row: Row) -> str:
    return format_html('<span class="nowrap">{}</span>', MODES[row["access_mode"]])


def cause_words(causes: Iterable[str]) -> str:
    """Return what a snapshot was taken for as a text; a word that is no cause stays as it is."""
    return ", ".join(str(CAUSES.get(cause, cause)) for cause in causes)


def progress_words(snapshot: Row) -> str:
    """Return the job's epoch, accuracy and loss at the time of the snapshot as a text; "" if none is recorded."""
    found = snapshot["progress"]
    labels = (("epoch", gettext("epoch")), ("accuracy", gettext("accuracy")), ("loss", gettext("loss")))
    shown = [
        f"{label} {formats.figure(found[name])}"
        for name, label in labels
        if isinstance(found.get(name), int | float)
    ]
    return ", ".join(shown)


def snapshots_shown(snapshots: QuerySet[Snapshot]) -> list[Row]:
    return [
        row
        | {
            "badge": state_badge(row["status"]["state"]),
            "cause_words": cause_words(row["causes"]),
            "metric": progress_words(row),
            "consistency_words": CONSISTENCY.get(row["consistency"] or "", ""),
        }
        for row in snapshot_shapes(snapshot_rows(snapshots))
    ]


def snapshots_of_job(job: Job) -> list[Row]:
    """Return the newest snapshots of a job's volumes that were taken while it ran, on events or by users."""
    return snapshots_shown(
        Snapshot.objects.filter(job=job).order_by("-created_at", "-number")[:SNAPSHOTS_OF_JOB]
    )


def _rows(actor: Actor, pks: Sequence[Any]) -> list[Row]:
    volumes = in_order(Volume.objects.select_related("project__cluster"), pks)
    return [
        row
        | {"key": row["id"], "palette_index": volume.project.palette_index, "state": row["status"]["state"]}
        for volume, row in zip(volumes, volume_shapes(volumes), strict=True)
    ]


VOLUMES = ListView(
    name="volumes",
    rows=_rows,
    summary=counted(
        ngettext_lazy("{count} volume, holding {used}", "{count} volumes, holding {used}"),
        used=("used_bytes", formats.binary_size),
    ),
    live="volumes jobs",
    empty="datasets/empty_volumes.html",
    filters=(
        NAME_CONTAINS,
        OF_PROJECT,
    ),
    columns=(
        Column(
            "name",
            _("Volume"),
            lambda row: cells.link(reverse("volume", args=[row["id"]]), row["name"]),
            "name",
        ),
        Column(
            "project",
            _("Project"),
            lambda row: cells.chip(row["palette_index"], row["project"]),
            "project__name",
        ),
        Column("state", _("State"), lambda row: state_badge(row["state"]), "state"),
        Column("used", _("Used"), used, "used_bytes", "num", is_nullable=True, falls=True),
        Column("mode", _("Access"), _mode, "access_mode", "quiet"),
        Column("class", _("Class"), cells.text("storage_class"), "storage_class", "quiet aside minor"),
        Column("jobs", _("Mounted by"), jobs),
        time_column("created", _("Created"), "created_at", "num quiet nowrap aside"),
    ),
)
