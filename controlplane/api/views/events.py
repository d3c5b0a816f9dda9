"""The numbered event log and the audit log."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.db.models import Q, QuerySet

from controlplane.access import Actor, Forbidden, visible_project_ids, visible_project_names
from controlplane.api import query
from controlplane.api.operations import Answer, ApiView, Call
from controlplane.api.paging import Filter, Listing, paged
from controlplane.api.query import BIGGEST
from controlplane.api.schemas import AUDIT_ENTRY, EVENT
from controlplane.models import AuditEntry, Event, Node, Project
from controlplane.queries.events import FOR_ADMINS, seen_event
from controlplane.scheduling.mentions import Sees

_COLUMNS = ("seq", "at", "kind", "project_id", "job_id", "node_id", "actor", "reason", "message", "data")

_FILTERS = {
    "since": Filter("seq__gt", query.whole(0, BIGGEST, "After this number.")),
    "kind": Filter("kind__in", query.texts("Of these kinds, such as job.submitted.")),
    "actor": Filter("actor__in", query.texts("Done by these users.")),
    "reason": Filter("reason__in", query.texts("With these reasons.")),
    "after": Filter("at__gte", query.moment("Not before this time.")),
    "before": Filter("at__lt", query.moment("Before this time.")),
}
JOB_EVENTS = Listing(EVENT, {"seq": ("seq",)}, "-seq", _FILTERS)
EVENTS = Listing(
    EVENT,
    {"seq": ("seq",)},
    "-seq",
    {
        **_FILTERS,
        "project": Filter("project_id__in", query.texts("Of these projects.")),
        "job": Filter("job_id__in", query.ids("Of these jobs.")),
        "node": Filter("node_id__in", query.texts("Of these nodes.")),
    },
)
AUDIT = Listing(
    AUDIT_ENTRY,
    {"id": ("id",)},
    "-id",
    {
        "actor": Filter("actor__in", query.texts("By these users.")),
        "verb": Filter("verb__in", query.texts("With these verbs, such as project.edit.")),
        "object_type": Filter("object_type__in", query.texts("On these kinds of object.")),
        "object_name": Filter("object_name__in", query.texts("On these objects.")),
        "after": Filter("at__gte", query.moment("Not before this time.")),
        "before": Filter("at__lt", query.moment("Before this time.")),
    },
)


class Events(ApiView):
    """The events that the caller may see, newest first; `ordering=seq` with `since` continues after an event
    number."""

    @EVENTS.operation("List events", "Event")
    def get(self, call: Call) -> Answer:
        _ids_for_names(call)
        shape = partial(shape_events, sees=visible_project_names(call.actor))
        return paged(call, _visible_events(call.actor), EVENTS, fetch=fetch_events, shape=shape)


class Audit(ApiView):
    """The audit log. For admins only."""

    @AUDIT.operation("List who did what", "AuditEntry")
    def get(self, call: Call) -> Answer:
        if not call.actor.is_admin:
            raise Forbidden("Only an admin may read the audit log.")
        return paged(call, AuditEntry.objects.all(), AUDIT, fetch=_fetch_audit, shape=list)


def fetch_events(rows: QuerySet[Event]) -> list[dict[str, Any]]:
    """Return the events in `rows` as dicts for `shape_events`."""
    return [dict(row) for row in rows.values(*_COLUMNS)]


def shape_events(rows: Sequence[dict[str, Any]], sees: Sees) -> list[dict[str, Any]]:
    """Return events as REST objects. `rows`: as `fetch_events` returns them; `sees`: the projects that the reader may
    view (None: all). Two queries for the names of projects and nodes."""
    projects = _names(Project.objects.filter(pk__in={row["project_id"] for row in rows}))
    nodes = _names(Node.objects.filter(pk__in={row["node_id"] for row in rows}))
    return [_shape(row, sees, projects.get(row["project_id"]), nodes.get(row["node_id"])) for row in rows]


def _shape(row: dict[str, Any], sees: Sees, project: str | None, node: str | None) -> dict[str, Any]:
    job = str(row["job_id"]) if row["job_id"] else None
    return seen_event(row, sees, project) | {"project": project, "job": job, "node": node}


def _visible_events(actor: Actor) -> QuerySet[Event]:
    """Return the events that the actor may see: all for an admin; for others those of visible projects, and those of
    nodes and clusters. The kinds FOR_ADMINS are left out, because their messages may name any project."""
    visible = visible_project_ids(actor)
    if visible is None:
        return Event.objects.all()
    shared = Q(project_id=None, job_id=None) & (Q(kind__startswith="node.") | Q(kind__startswith="cluster."))
    return Event.objects.filter(Q(project_id__in=visible) | shared).exclude(kind__in=FOR_ADMINS)


def _ids_for_names(call: Call) -> None:
    """Replace the names of projects and nodes in the query fields by their ids, which is what events store. An
    unknown name is dropped; if none is left, the filter matches nothing."""
    for field, rows in (("project", Project.objects.all()), ("node", Node.objects.all())):
        if call.query[field] is not None:
            call.query[field] = list(rows.filter(name__in=call.query[field]).values_list("pk", flat=True))


def _names(rows: QuerySet[Any]) -> dict[int, str]:
    return dict(rows.values_list("pk", "name"))


def _fetch_audit(rows: QuerySet[AuditEntry]) -> list[dict[str, Any]]:
    return [dict(row) for row in rows.values(*AUDIT_ENTRY["properties"])]
