"""Search of the command palette: pages, then projects, nodes and jobs, then the results of each navigation entry's
`find` (for example users, clusters, datasets and volumes)."""

from typing import Any

from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from controlplane.access import Actor, visible_projects
from controlplane.models import Node
from dashboards.pages.base_page import signed_in
from dashboards.pages.navigation import shown_entries
from dashboards.reads.jobs import find

MOST = 8
MOST_IN_ALL = 32


@signed_in
def search(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Return JSON {"results": [{"label", "kind", "url"}]} for `?q=`: at most MOST_IN_ALL pages and objects; pages only
    without a text."""
    text = request.GET.get("q", "").strip()[:100]
    results = [place for place in _places(actor) if text.casefold() in place["label"].casefold()]
    if text:
        results += _objects(actor, text)
    return JsonResponse({"results": results[:MOST_IN_ALL]})


def _places(actor: Actor) -> list[dict[str, Any]]:
    places = [(entry.name, _(entry.label)) for entry in shown_entries(actor)]
    forms = [("job-new", _("Submit a job")), ("tokens", _("API tokens"))]
    if actor.is_admin:
        forms.append(("project-new", _("New project")))
    return [_result(label, _("page"), reverse(name)) for name, label in places + forms]


def _objects(actor: Actor, text: str) -> list[dict[str, Any]]:
    projects = (
        visible_projects(actor)
        .filter(name__icontains=text)
        .order_by("name")
        .values_list("name", flat=True)[:MOST]
    )
    nodes = Node.objects.filter(name__icontains=text).order_by("name").values_list("name", flat=True)[:MOST]
    jobs = find(actor, text, MOST)
    return [
        *(_result(name, _("project"), reverse("project", args=[name])) for name in projects),
        *(_result(name, _("node"), reverse("node", args=[name])) for name in nodes),
        *(
            _result(job["name"], f"{job['project__name']} · {job['state']}", reverse("job", args=[job["id"]]))
            for job in jobs
        ),
        *(
            _result(*found)
            for entry in shown_entries(actor)
            if entry.find
            for found in entry.find(actor, text, MOST)
        ),
    ]


def _result(label: str, kind: str, url: str) -> dict[str, Any]:
    return {"label": label, "kind": kind, "url": url}
