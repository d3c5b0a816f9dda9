"""The audit log as a list, for admins: which user changed which object, from where, and how."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Q, QuerySet
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from controlplane.access import Actor
from controlplane.models import AuditEntry
from dashboards import formats
from dashboards.lists import cells
from dashboards.lists.columns import time_column
from dashboards.lists.table import Column, Filter, ListView, Row, Text, by, in_order
from jobs.models import Job

# Types of objects that have a page of their own, with the name of its route.
PAGES = {
    "job": "job",
    "project": "project",
    "user": "user",
    "node": "node",
    "cluster": "cluster",
    "dataset": "dataset-page",
    "volume": "volume",
}
NAMED = ("project", "user", "node", "cluster")
# A log of years is not counted whole for a page of it.
COUNTED_MOST = 10_000
# One step in the index per type: DISTINCT reads the index whole.
_EACH_TYPE = """
WITH RECURSIVE types (name) AS (
  SELECT MIN(object_type) FROM controlplane_auditentry
  UNION ALL
  SELECT (SELECT MIN(object_type) FROM controlplane_auditentry WHERE object_type > name)
  FROM types WHERE name IS NOT NULL
)
SELECT name FROM types WHERE name IS NOT NULL ORDER BY name
"""


def _rows(actor: Actor, pks: Sequence[Any]) -> list[Row]:
    entries = in_order(AuditEntry.objects.all(), pks)
    names = _known_names(entries)
    return [
        {
            "key": entry.pk,
            "at": entry.at,
            "actor": entry.actor,
            "token": entry.token_prefix,
            "address": entry.address,
            "verb": entry.verb,
            "type": entry.object_type,
            "object": entry.object_name,
            "name": _name(entry, names),
            "changes": changes(entry.before, entry.after),
        }
        for entry in entries
    ]


def _known_names(entries: Sequence[AuditEntry]) -> dict[str, str]:
    """Return names by id, for jobs that exist and for objects whose creation is in the log."""
    ids = {entry.object_name for entry in entries if _is_id(entry.object_name)}
    made = AuditEntry.objects.filter(object_name__in=ids, verb__endswith=".create")
    names = {
        found: after["name"] for found, after in made.values_list("object_name", "after") if "name" in after
    }
    jobs = Job.objects.filter(
        pk__in={entry.object_name for entry in entries if entry.object_type == "job"} & ids
    )
    return names | {str(job_id): name for job_id, name in jobs.values_list("pk", "name")}


def _is_id(text: str) -> bool:
    try:
        return bool(UUID(text))
    except ValueError:
        return False


def _name(entry: AuditEntry, names: Mapping[str, str]) -> str:
    """Return the name to show for the object of an entry: its own name where one is known, else the first 8
    characters of its id."""
    known = names.get(entry.object_name) or entry.after.get("name") or entry.before.get("name")
    if known and entry.object_type not in NAMED:
        return str(known)
    return entry.object_name[:8] if _is_id(entry.object_name) else entry.object_name


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (field, old value, new value) for each field whose value changed, as texts; "" for a field that did
    not exist before."""
    fields = [field for field in {**before, **after} if before.get(field) != after.get(field)]
    return [_change(field, before, after) for field in fields]


def _change(field: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, str, str]:
    old, new = (_edge(field, values.get(field)) for values in (before, after))
    name = field.removesuffix("_milli").removesuffix("_bytes")
    if not after:
        # Of what was deleted the old values are shown alone.
        return name, "", _words(old)
    return name, _words(old) if field in before else "", _words(new)


def _edge(field: str, value: Any) -> Any:
    """Return a column's value in the units of the pages: GPUs instead of milli-GPUs, bytes as text with a unit."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if field.endswith("_bytes"):
        return formats.binary_size(value)
    return value / 1000 if field.endswith("_milli") else value


def _words(value: Any) -> str:
    if value is None:
        return gettext("none")
    if isinstance(value, bool):
        return gettext("yes") if value else gettext("no")
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_words(one)}" for key, one in value.items()) or gettext("none")
    if isinstance(value, list):
        return ", ".join(_words(one) for one in value) or gettext("none")
    return formats.number(value) if isinstance(value, int | float) else str(value) or gettext("none")


def _who(row: Row) -> str:
    if not row["token"]:
        return format_html("{}", row["actor"])
    how = gettext("with the token {prefix}…").format(prefix=row["token"])
    return format_html('{} <span class="second" title="{}">{}</span>', row["actor"], how, gettext("token"))


def _object(row: Row) -> str:
    kind = format_html('<span class="second">{}</span>', row["type"])
    route = PAGES.get(row["type"])
    name = format_html("{}", row["name"])
    # A name of an earlier version, or of an attempt that was refused, may fit no address.
    with suppress(NoReverseMatch):
        if route and row["object"]:
            name = format_html('<a href="{}">{}</a>', reverse(route, args=[row["object"]]), row["name"])
    return format_html("{} {}", name, kind)


def _changes(row: Row) -> str:
    text = "; ".join(
        f"{field}: {old} → {new}" if old else f"{field}: {new}" for field, old, new in row["changes"]
    )
    return format_html('<span class="reason" title="{}">{}</span>', text, text) if text else formats.NOTHING


def _types(actor: Actor) -> list[tuple[str, Text]]:
    with connection.cursor() as cursor:
        cursor.execute(_EACH_TYPE)
        return [(kind, kind) for (kind,) in cursor.fetchall()]


def _matches(entries: QuerySet[AuditEntry], text: str) -> QuerySet[AuditEntry]:
    jobs = Job.objects.filter(name__icontains=text).values_list("pk", flat=True)[:100]
    ids = [str(job_id) for job_id in jobs]
    return entries.filter(Q(verb__icontains=text) | Q(object_name__icontains=text) | Q(object_name__in=ids))


def _summary(entries: QuerySet[AuditEntry]) -> str:
    count = entries[: COUNTED_MOST + 1].count()
    if count > COUNTED_MOST:
        return gettext("more than {count} changes").format(count=formats.number(COUNTED_MOST))
    return ngettext("{count} change", "{count} changes", count).format(count=formats.number(count))


AUDIT = ListView(
    name="audit",
    order="-when",
    unique="-pk",
    rows=_rows,
    summary=_summary,
    filters=(
        Filter("q", _("Action or object contains"), _matches),
        Filter("type", _("Any object"), by("object_type"), _types),
        Filter("user", _("User"), by("actor")),
    ),
    columns=(
        time_column("when", _("When"), "at"),
        Column("who", _("Who"), _who, "actor", "nowrap"),
        Column(
            "action", _("Action"), lambda row: format_html("<code>{}</code>", row["verb"]), "verb", "nowrap"
        ),
        Column("object", _("Object"), _object, "object_name", "break"),
        Column("change", _("Change"), _changes, css="quiet break aside"),
        Column("address", _("From"), cells.text("address"), "address", "quiet nowrap aside"),
    ),
)
