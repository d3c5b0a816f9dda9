"""Actions of cache buttons: fill, pin, unpin and remove a cache."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.access import Actor, NotVisible
from controlplane.actions.errors import Invalid
from controlplane.models import Role
from dashboards import formats
from dashboards.pages.asking import Question, ask
from dashboards.pages.base_page import attempt, show, signed_in
from datasets.access import cache_for, dataset_for
from datasets.actions.caches import cache_version, clear_cache, location_for, pin_cache
from datasets.queries.cache_locations import cache_states, locations_of
from datasets.queries.datasets import find_version


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def cache_new(request: HttpRequest, actor: Actor, dataset_id: str) -> HttpResponseBase:
    """GET: ask for the location. POST: fill a cache of a version at the location named in the form; "" selects the
    cluster's default location."""
    dataset = dataset_for(actor, dataset_id, needed=Role.MEMBER)
    version = find_version(dataset, (request.POST or request.GET).get("version", ""))
    if version is None:
        messages.error(request, _("{name} has no such version.").format(name=dataset.name))
        return redirect("dataset-page", dataset.pk)
    if request.method != "POST":
        names, states = cache_states(dataset, [version.pk])
        free = [name for name in names if name not in states[str(version.pk)]]
        context = {"version": version, "locations": free, "back": reverse("dataset-page", args=[dataset.pk])}
        return show(request, actor, "datasets/cache_new.html", context)
    named = request.POST.get("location", "")
    if named and named not in {one.name for one in locations_of(dataset.project.cluster)}:
        messages.error(request, _("There is no cache location named {name}.").format(name=named[:80]))
        return redirect("dataset-page", dataset.pk)
    try:
        location = location_for(dataset.project.cluster, dataset.project, named)
    except Invalid as refusal:
        messages.error(request, str(refusal.errors[0].detail))
        return redirect("dataset-page", dataset.pk)
    done = _("{name} is being cached at {location}.")
    attempt(
        request,
        lambda: cache_version(version, location, actor=actor),
        done.format(name=version, location=location.name),
    )
    return redirect("dataset-page", dataset.pk)


@require_POST
@signed_in
def cache_verb(request: HttpRequest, actor: Actor, cache_id: str, verb: str) -> HttpResponseBase:
    """Pin a cache if `verb` is "pin", else unpin it."""
    cache = cache_for(actor, cache_id, needed=Role.MEMBER)
    is_pinned = verb == "pin"
    done = (
        _("Pinned: it stays until it is unpinned.") if is_pinned else _("It is removed when no job uses it.")
    )
    attempt(request, lambda: pin_cache(cache, is_pinned, actor=actor), done)
    return redirect("dataset-page", cache.version.dataset_id)


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def cache_clear(request: HttpRequest, actor: Actor, cache_id: str) -> HttpResponseBase:
    """GET: ask for confirmation. POST: start the removal of the cache, and go to its dataset's page."""
    cache = cache_for(actor, cache_id, needed=Role.MEMBER)
    back = reverse("dataset-page", args=[cache.version.dataset_id])
    name = str(cache.version)
    if request.method == "POST":
        done = _("{name} is being removed from {location}.").format(name=name, location=cache.location.name)
        try:
            attempt(request, lambda: clear_cache(cache, actor=actor), done)
        except NotVisible:
            messages.success(request, done)
        return redirect(back)
    words = _(
        "About {size} beside the GPUs become free. The version stays in the lake, and the next job that mounts it"
    )
    question = Question(
        title=_("Remove {name} from {location}?").format(name=name, location=cache.location.name),
        sentences=[
            words.format(size=formats.size(cache.charged_bytes)) + " " + _("waits until it is cached again.")
        ],
        back=back,
        do=_("Remove the cache"),
    )
    return ask(request, actor, question)
