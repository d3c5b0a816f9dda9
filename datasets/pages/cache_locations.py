"""Cache locations: the list for everyone; for admins creating, editing and deleting one."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from controlplane.access import Actor, NotVisible, require_admin
from controlplane.clusters import quantities
from controlplane.fields import Reader, Refused
from controlplane.models import Cluster, NodePool
from controlplane.notation import parse_pair
from dashboards.lists.table import list_page
from dashboards.pages.asking import Question, ask
from dashboards.pages.base_page import attempt, show, show_form, signed_in
from dashboards.pages.fields import NameField, offer, saved
from datasets.access import visible_locations
from datasets.actions.cache_locations import (
    create_location,
    delete_location,
    edit_location,
    read_labels,
    read_room,
    read_storage_class,
)
from datasets.models import CacheLocation
from datasets.pages.cache_location_lists import CACHE_LOCATIONS
from datasets.queries.cache_locations import has_locations
from datasets.queries.caches import has_cache_volumes, with_relations

LONGEST_DAYS = 3650
_UNITS = {"Ti": 1 << 40, "Gi": 1 << 30, "Mi": 1 << 20}


class LocationForm(forms.Form):
    """Form of a location's editable fields; the cleaned data are valid arguments of
    actions.cache_locations."""

    room_bytes = forms.CharField(
        required=False,
        max_length=20,
        label=gettext_lazy("Room"),
        help_text=gettext_lazy("Such as 500Gi; empty for as much as its disk has."),
    )
    unused_days = forms.IntegerField(
        min_value=1,
        max_value=LONGEST_DAYS,
        initial=1,
        label=gettext_lazy("Days unused"),
        help_text=gettext_lazy("Caches that no job used for so long are removed."),
    )
    node_pools = forms.MultipleChoiceField(
        required=False, label=gettext_lazy("Node pools"), widget=forms.CheckboxSelectMultiple
    )
    node_labels = forms.CharField(
        required=False,
        max_length=2000,
        label=gettext_lazy("or nodes with all of these labels"),
        help_text=gettext_lazy("Such as topology.kubernetes.io/zone=b; several with spaces between them."),
    )

    def __init__(self, location: CacheLocation | None, pools: list[str], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        offer(self, "node_pools", pools)
        if location is not None and has_cache_volumes(location.cluster):
            self.fields["room_bytes"].help_text = _(
                "Such as 500Gi; empty for cache_size of the cluster. Volumes that exist keep their size."
            )
        if location is not None and (location.is_default or location.project is not None):
            # Of all nodes that no other location has, or those of the location that the volume is at.
            del self.fields["node_pools"], self.fields["node_labels"]

    def clean_room_bytes(self) -> int | None:
        text = self.cleaned_data["room_bytes"].strip()
        return _read(read_room, _pieces(text)) if text else None

    def clean_node_labels(self) -> dict[str, str]:
        try:
            labels = dict(parse_pair(text) for text in self.cleaned_data["node_labels"].split())
        except ValueError as error:
            raise forms.ValidationError(_("Write labels as NAME=VALUE.")) from error
        if any("=" in value for value in labels.values()):
            raise forms.ValidationError(_("Write labels as NAME=VALUE."))
        found: dict[str, str] = _read(read_labels, labels)
        return found


class NewLocationForm(LocationForm):
    """A location of some nodes of a cluster."""

    name = NameField(longest=63, label=gettext_lazy("Name"))
    cluster = forms.ChoiceField(label=gettext_lazy("Cluster"))
    directory = forms.CharField(
        required=False,
        max_length=500,
        label=gettext_lazy("Directory"),
        help_text=gettext_lazy(
            "Where its nodes see it; empty for one below the cache directory of the server."
        ),
    )
    storage_class = forms.CharField(
        required=False,
        max_length=63,
        label=gettext_lazy("Storage class"),
        help_text=gettext_lazy("On Kubernetes, of each project's volume there; empty for the cluster's."),
    )
    access_mode = forms.ChoiceField(
        required=False,
        label=gettext_lazy("Volumes are mounted by"),
        choices=(
            ("", gettext_lazy("several nodes (ReadWriteMany)")),
            (CacheLocation.ONE_NODE, gettext_lazy("one node (ReadWriteOnce)")),
        ),
    )

    def __init__(self, clusters: list[str], pools: list[str], *args: Any, **kwargs: Any) -> None:
        super().__init__(None, pools, *args, **kwargs)
        offer(self, "cluster", clusters)

    def clean_storage_class(self) -> str:
        text = self.cleaned_data["storage_class"].strip()
        return str(_read(read_storage_class, text)) if text else ""


@signed_in
def location_list(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show the locations without a project, and those of projects that the actor may see."""
    page = list_page(CACHE_LOCATIONS, actor, visible_locations(actor), request.GET.dict())
    context = {"page": page, "may_create": actor.is_admin and bool(_clusters())}
    return show(request, actor, "datasets/cache_locations.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def location_new(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show the form for a cache location of some nodes of a cluster; create the location on POST, or show the
    form with its errors. For admins."""
    require_admin(actor)
    clusters = _clusters()
    posted = request.POST if request.method == "POST" else None
    form = NewLocationForm([one.name for one in clusters], _pools(clusters), posted)
    if posted is not None and form.is_valid():
        values = {name: value for name, value in form.cleaned_data.items() if value not in ("", None)}
        named = values.pop("cluster")
        cluster = next(one for one in clusters if one.name == named)
        if location := saved(form, lambda: create_location(cluster, values, actor=actor)):
            messages.success(request, _("{name} is created.").format(name=location.name))
            return redirect("cache-locations")
    return show_form(request, actor, "datasets/cache_location_new.html", form, {"clusters": clusters})


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def location_edit(request: HttpRequest, actor: Actor, name: str) -> HttpResponseBase:
    """Show and save the form with a location's size limit, age limit and nodes. For admins."""
    require_admin(actor)
    location = _location(actor, name)
    posted = request.POST if request.method == "POST" else None
    pools = sorted({*_pools([location.cluster]), *location.node_pools})
    form = LocationForm(location, pools, posted, initial=_initial(location))
    if (
        form.is_valid()
        and saved(form, lambda: edit_location(location, form.cleaned_data, actor=actor)) is not None
    ):
        messages.success(request, _("{name} is changed.").format(name=location.name))
        return redirect("cache-locations")
    return show_form(request, actor, "datasets/cache_location_edit.html", form, {"location": location})


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def location_delete(request: HttpRequest, actor: Actor, name: str) -> HttpResponseBase:
    """Ask for confirmation (GET), or delete the location (POST). For admins."""
    require_admin(actor)
    location = _location(actor, name)
    if request.method == "POST":
        done = _("{name} is deleted.").format(name=name)
        attempt(request, lambda: delete_location(location, actor=actor), done)
        return redirect("cache-locations")
    question = Question(
        title=_("Delete {name}?").format(name=name),
        sentences=[
            _("Its nodes read cached data from the location of all other nodes of {cluster} then.").format(
                cluster=location.cluster.name
            )
        ],
        back=reverse("cache-location-edit", args=[name]),
        do=_("Delete the location"),
    )
    return ask(request, actor, question)


def _clusters() -> list[Cluster]:
    """Return the clusters, but no detached ones, in which a location may serve only some of the nodes, by name."""
    return list(filter(has_locations, Cluster.objects.filter(detached_at=None).order_by("name")))


def _pools(clusters: list[Cluster]) -> list[str]:
    rows = NodePool.objects.filter(cluster__in=clusters).order_by("name")
    return list(dict.fromkeys(rows.values_list("name", flat=True)))


def _location(actor: Actor, name: str) -> CacheLocation:
    location = with_relations(visible_locations(actor)).filter(name=name).first()
    if location is None:
        raise NotVisible(_("There is no cache location named {name}.").format(name=name[:80]))
    return location


def _initial(location: CacheLocation) -> dict[str, Any]:
    return {
        "room_bytes": _written(location.room_bytes),
        "unused_days": location.unused_days,
        "node_pools": location.node_pools,
        "node_labels": " ".join(f"{key}={value}" for key, value in location.node_labels.items()),
    }


def _pieces(text: str) -> int:
    """Return the bytes of a size in a form, such as "500Gi". Raises ValidationError if it is malformed."""
    try:
        return quantities.pieces(text)
    except ValueError as error:
        raise forms.ValidationError(_('A size is a number of bytes, or a text such as "10Gi".')) from error


def _read(reader: Reader, value: Any) -> Any:
    """Return what `reader`, a reader of the REST API, makes of a form's value. Raises ValidationError if it
    refuses the value."""
    try:
        return reader(value)
    except Refused as refused:
        raise forms.ValidationError(str(refused)) from refused


def _written(size_bytes: int | None) -> str:
    """Return a size as the form reads it, in the largest unit that keeps it whole, such as 5Gi; "" for None."""
    if size_bytes is None:
        return ""
    units = (unit for unit in _UNITS if size_bytes and size_bytes % _UNITS[unit] == 0)
    unit = next(units, "")
    return f"{size_bytes // _UNITS.get(unit, 1)}{unit}"
