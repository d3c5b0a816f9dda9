"""Pages of datasets: the list, one dataset with its history, caches and jobs, and its deletion."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_http_methods

from controlplane.access import Actor, role_in, visible_project_ids
from controlplane.models import Role
from dashboards.lists.table import list_page
from dashboards.pages.asking import Question, ask
from dashboards.pages.base_page import attempt, show, signed_in
from dashboards.reads.submit import projects_to_submit_to
from datasets.access import dataset_for, visible_datasets
from datasets.actions.datasets import delete_dataset
from datasets.models import Cache, Dataset, DatasetRegistration
from datasets.pages.lists import DATASETS
from datasets.queries.cache_locations import cache_states, locations_of
from datasets.queries.caches import cache_rows, cache_shapes, jobs_with
from datasets.queries.datasets import dataset_shape, version_rows, version_shapes
from datasets.queries.registrations import registration_shape

VERSIONS_SHOWN, SUBSETS_SHOWN, CACHES_SHOWN, JOBS_SHOWN, REGISTRATIONS_SHOWN = 100, 100, 100, 50, 3
VERSIONS_OFFERED = 100
# What is said of a version with several caches: the first of these states that one of them has.
_CACHED = (
    (Cache.FAILED, gettext_lazy("cache failed")),
    (Cache.EVICTING, gettext_lazy("being removed")),
    (Cache.FILLING, gettext_lazy("being cached")),
    (Cache.QUEUED, gettext_lazy("queued")),
    (Cache.READY, gettext_lazy("cached")),
)


@signed_in
def dataset_list(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show the datasets of the actor's projects, and shared ones."""
    page = list_page(DATASETS, actor, visible_datasets(actor), request.GET.dict())
    may_create = bool(projects_to_submit_to(actor))
    return show(request, actor, "datasets/datasets.html", {"page": page, "may_create": may_create})


@signed_in
def dataset_page(request: HttpRequest, actor: Actor, dataset_id: str) -> HttpResponseBase:
    """Show one dataset: its versions, its caches, and the jobs that mount it."""
    dataset = dataset_for(actor, dataset_id)
    versions = version_shapes(version_rows(dataset.versions.whole().order_by("-number")[:VERSIONS_SHOWN]))
    subsets = _subsets(dataset)
    caches = Cache.objects.filter(version__dataset=dataset).order_by("-created_at", "pk")
    about = _about_caches(dataset, [UUID(row["id"]) for row in (*versions, *subsets)])
    visible = visible_project_ids(actor)
    context = {
        **dataset_context(actor, dataset),
        "versions": [version | about(version["id"]) for version in versions],
        "has_more_versions": dataset.latest > len(versions),
        "registrations": _registrations(dataset),
        "subsets": [subset | about(subset["id"]) for subset in subsets],
        "asks_where": bool(locations_of(dataset.project.cluster)),
        "caches": cache_shapes(cache_rows(caches[:CACHES_SHOWN])),
        "cache_count": caches.count(),
        "uses": jobs_with(dataset, None if visible is None else list(visible))[:JOBS_SHOWN],
    }
    return show(request, actor, "datasets/dataset.html", context)


def _registrations(dataset: Dataset) -> list[dict[str, Any]]:
    """Return the unfinished registrations, and those that failed since the newest version, newest first, in REST form;
    of all, only the last REGISTRATIONS_SHOWN are examined."""
    unfinished = DatasetRegistration.objects.filter(dataset=dataset).exclude(state=DatasetRegistration.READY)
    rows = unfinished.select_related("created_by", "version").order_by("-created_at")[:REGISTRATIONS_SHOWN]
    newest = dataset.versions.order_by("-created_at").values_list("created_at", flat=True).first()
    shown = [row for row in rows if row.finished_at is None or newest is None or row.finished_at > newest]
    return [registration_shape(row) for row in shown]


def _about_caches(dataset: Dataset, versions: Sequence[UUID]) -> Callable[[str], dict[str, Any]]:
    """Return a function that gives, for the id of one of these versions, {"may_cache", "cached"}. `may_cache`:
    whether a location has no cache of it yet. `cached`: the state of its caches in a word, "" without any."""
    names, states = cache_states(dataset, versions)
    return lambda version: {
        "may_cache": any(name not in states[version] for name in names),
        "cached": next((words for state, words in _CACHED if state in states[version].values()), ""),
    }


def _subsets(dataset: Dataset) -> list[dict[str, Any]]:
    rows = dataset.versions.exclude(subset="").order_by("-number", "subset")[:SUBSETS_SHOWN]
    return [
        subset | {"name": f"{subset['number']}/{subset['subset']}"}
        for subset in version_shapes(version_rows(rows))
    ]


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def dataset_delete(request: HttpRequest, actor: Actor, dataset_id: str) -> HttpResponseBase:
    """Ask for confirmation; delete the dataset with all its versions on POST. For owners of its project."""
    dataset = dataset_for(actor, dataset_id, needed=Role.OWNER)
    if request.method == "POST":
        done = _("{name} is deleted.").format(name=dataset.name)
        if attempt(request, lambda: delete_dataset(dataset, actor=actor), done):
            return redirect("dataset-list")
        return redirect("dataset-page", dataset.pk)
    question = Question(
        title=_("Delete {name}?").format(name=dataset.name),
        sentences=[
            ngettext(
                "Its {count} version is deleted, with its caches. This cannot be undone.",
                "All of its {count} versions are deleted, with their caches. This cannot be undone.",
                dataset.latest,
            ).format(count=dataset.latest),
            _("Jobs that have ended keep the name and number of the version that they used."),
        ],
        back=reverse("dataset-page", args=[dataset.pk]),
        do=_("Delete the dataset"),
    )
    return ask(request, actor, question)


def dataset_context(actor: Actor, dataset: Dataset) -> dict[str, Any]:
    """Return the template context shared by all pages of a dataset."""
    role = role_in(actor, dataset.project)
    return {
        "dataset": dataset_shape(dataset),
        "project": dataset.project,
        "is_inside": role is not None,
        "is_member": Role.is_at_least(role, Role.MEMBER),
        "is_owner": Role.is_at_least(role, Role.OWNER),
    }


def newest_numbers(dataset: Dataset) -> range:
    """Return the numbers of the newest VERSIONS_OFFERED versions, newest first, as a form offers them."""
    return range(dataset.latest, max(0, dataset.latest - VERSIONS_OFFERED), -1)
