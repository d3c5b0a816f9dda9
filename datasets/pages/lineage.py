"""Page of the lineage of an artifact, job, version or snapshot, as a graph and as a list."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from controlplane.access import Actor
from dashboards.pages.base_page import show, signed_in
from datasets import lineage
from datasets.access import artifact_for, snapshot_for, version_for, visible_datasets
from datasets.lineage import Graph, Node
from datasets.lineage_layout import HEIGHT, WIDTH, draw
from datasets.models import DatasetVersion, Snapshot
from datasets.pages.volume_lists import CAUSES, cause_words
from datasets.queries import lineage as limits
from datasets.queries.lineage import lineage_of
from jobs.access import job_for, visible_jobs

LABELS = {
    lineage.ARTIFACT: _("Artifact"),
    lineage.RUN: _("Job"),
    lineage.VERSION: _("Dataset version"),
    lineage.SNAPSHOT: _("Snapshot"),
    lineage.VOLUME: _("Volume"),
    lineage.CODE: _("Code"),
    lineage.IMAGE: _("Image"),
    lineage.ENVIRONMENT: _("Environment"),
    lineage.PARAMETERS: _("Parameters"),
    lineage.SEED: _("Seed"),
}
_FIND: dict[str, Callable[[Actor, str], Any]] = {
    lineage.ARTIFACT: artifact_for,
    lineage.RUN: job_for,
    lineage.VERSION: version_for,
    lineage.SNAPSHOT: snapshot_for,
}
IDENTITY_SHOWN = 26


@signed_in
def lineage_page(request: HttpRequest, actor: Actor, kind: str, key: str) -> HttpResponseBase:
    """Show the inputs of an object, and what was made from it. `kind`: artifact, job, version or snapshot, any other
    answers 404; `key`: its id."""
    if kind not in _FIND:
        raise Http404(kind)
    row = _FIND[kind](actor, key)
    graph = lineage_of(row, visible_jobs(actor), visible_datasets(actor))
    picture, rows = draw(graph), _rows(graph)
    shown = {each["key"]: each for each in rows}
    start = shown[graph.start]
    context = {
        "start": start,
        "url": _own_page(row, start["url"]),
        "project": getattr(row, "project", None) or row.dataset.project,
        "rows": rows,
        "is_cut": graph.is_cut,
        "runs": limits.RUNS_MOST,
        "snapshots": limits.SNAPSHOTS_MOST,
        "picture": picture,
        "boxes": [{"box": box, **shown[box.node.key]} for box in picture.boxes],
        "box_width": WIDTH,
        "box_height": HEIGHT,
    }
    return show(request, actor, "datasets/lineage.html", context)


def _rows(graph: Graph) -> list[dict[str, Any]]:
    """Return the nodes as list rows, in the graph's order, each with its inputs."""
    names = {one.key: one.name for one in graph.nodes}
    return [
        {
            "key": one.key,
            "kind": one.kind,
            "label": str(LABELS[one.kind]),
            "name": one.name,
            "detail": one.detail,
            "identity": one.identity,
            "short": _short(one.identity),
            "url": url_of(one),
            "is_start": one.key == graph.start,
            "sources": [
                {"name": names[edge.source], "role": _role_words(edge.role)}
                for edge in graph.edges
                if edge.target == one.key
            ],
        }
        for one in graph.nodes
    ]


def _role_words(role: str) -> str:
    # The causes of a snapshot are codes, other roles are names and paths.
    causes = role.split(",")
    return cause_words(causes) if set(causes) <= CAUSES.keys() else role


def url_of(one: Node) -> str:
    """Return the URL of a node's page, "" if it has none. Versions and snapshots link to their lineage."""
    if not one.id:
        return ""
    if one.kind in (lineage.ARTIFACT, lineage.RUN, lineage.VOLUME):
        return reverse({lineage.RUN: "job"}.get(one.kind, one.kind), args=[one.id])
    return reverse("lineage", args=[one.kind, one.id]) if one.kind in _FIND else ""


def _own_page(row: Any, otherwise: str) -> str:
    if isinstance(row, DatasetVersion):
        return f"{reverse('dataset-files', args=[row.dataset_id])}?{urlencode({'version': row.name})}"
    if isinstance(row, Snapshot):
        return reverse("volume", args=[row.volume_id]) if row.volume_id else ""
    return otherwise


def _short(identity: str) -> str:
    return identity if len(identity) <= IDENTITY_SHOWN else f"{identity[: IDENTITY_SHOWN - 1]}…"
