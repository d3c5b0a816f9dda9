"""Pages of clusters, for admins: list, details, attach, edit, check again, detach."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from controlplane import fields
from controlplane.access import Actor, NotVisible, cluster_for, require_admin
from controlplane.actions.cluster_input import credentials_for, settings_for
from controlplane.actions.clusters import (
    check_cluster,
    detach_cluster,
    edit_cluster,
    register_cluster,
)
from controlplane.actions.errors import Conflict, Invalid, invalid
from controlplane.engines.kinds import PLANNER, EngineKind, engine_kind, engine_kinds
from controlplane.fields import Refused
from controlplane.models import Cluster
from controlplane.telemetry.usage import MOST_HOURS, half_life_of
from dashboards.lists.clusters import CLUSTERS
from dashboards.lists.nodes import NODES, first_of
from dashboards.lists.table import list_page, table
from dashboards.pages.base_page import attempt, show, signed_in
from dashboards.pages.fields import errors_by_field
from dashboards.reads import clusters as reads

# Limit in bytes on an uploaded file, larger than any credential.
UPLOAD_BYTES = 1024 * 1024
HALF_LIFE = "usage_half_life_hours"
# Longer numbers are refused before they are converted.
MOST_DIGITS = 9


@signed_in
def cluster_list(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show all clusters with their conditions."""
    require_admin(actor)
    page = list_page(CLUSTERS, actor, Cluster.objects.filter(detached_at=None), request.GET.dict())
    return show(request, actor, "dashboards/clusters.html", {"page": page})


@signed_in
def cluster_page(request: HttpRequest, actor: Actor, name: str) -> HttpResponseBase:
    """Show one cluster: the result of its checks, its nodes, and what detaching removes."""
    require_admin(actor)
    cluster = cluster_for(name)
    context = {
        "cluster": reads.rows([cluster])[0],
        "nodes": table(NODES, first_of(cluster), without=("devices", "use", "cluster")),
        "projects": list(cluster.projects.order_by("name")),
        "half_life_hours": half_life_of(cluster) // timedelta(hours=1),
        "can_check": engine_kind(cluster.engine).has_checks,
        "can_edit": engine_kind(cluster.engine).form is not None,
    }
    return show(request, actor, "dashboards/cluster.html", context)


@signed_in
def cluster_new(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show and save the form that attaches a cluster. For admins."""
    require_admin(actor)
    kind = _kind_to_attach(request)
    return _form_page(request, actor, kind, None, lambda: _attach(request, actor, kind))


@signed_in
def cluster_edit(request: HttpRequest, actor: Actor, name: str) -> HttpResponseBase:
    """Show and save the form that changes a cluster's scheduler, settings or credentials. For admins. Raises
    NotVisible for a kind of cluster that has no form."""
    require_admin(actor)
    cluster = cluster_for(name)
    kind = engine_kind(cluster.engine)
    if kind.form is None:
        raise NotVisible(f"{name} can only be changed through the REST API.")
    return _form_page(request, actor, kind, cluster, lambda: _edit(request, actor, cluster))


@require_POST
@signed_in
def cluster_verb(request: HttpRequest, actor: Actor, name: str, verb: str) -> HttpResponseBase:
    """Check a cluster again if `verb` is "check", else detach it. For admins."""
    require_admin(actor)
    cluster = cluster_for(name)
    if verb == "check":
        attempt(request, lambda: check_cluster(cluster, actor=actor), _("The check has started."))
        return redirect("cluster", name)
    if attempt(
        request, lambda: detach_cluster(cluster, actor=actor), _("%(name)s is detached.") % {"name": name}
    ):
        return redirect("clusters")
    return redirect("cluster", name)


def _kind_to_attach(request: HttpRequest) -> EngineKind:
    """Return the engine kind named by `?engine=`, else the first kind that has a form."""
    kinds = [kind for kind in engine_kinds().values() if kind.form is not None]
    return next((kind for kind in kinds if kind.name == request.GET.get("engine")), kinds[0])


def _attach(request: HttpRequest, actor: Actor, kind: EngineKind) -> Cluster:
    try:
        name = fields.dns_label(50)(request.POST.get("name", "").strip())
    except Refused as refused:
        raise invalid("/name", refused.code, refused.detail) from refused
    return register_cluster(
        name,
        kind.name,
        settings_for(kind.name, _settings(request)),
        actor=actor,
        scheduler=request.POST.get("scheduler", PLANNER.name),
        usage_half_life_hours=_half_life(request),
        credentials=credentials_for(kind.name, _access(request, kind), is_new=True),
    )


def _edit(request: HttpRequest, actor: Actor, cluster: Cluster) -> Cluster:
    changes: dict[str, Any] = {
        "settings": settings_for(cluster.engine, _settings(request)),
        "scheduler": request.POST.get("scheduler", cluster.scheduler),
    }
    # A form without the field leaves it as it is.
    if HALF_LIFE in request.POST:
        changes[HALF_LIFE] = _half_life(request)
    changed = {name: value for name, value in changes.items() if value != getattr(cluster, name)}
    access = credentials_for(cluster.engine, _access(request, engine_kind(cluster.engine)), is_new=False)
    if not changed and not access:
        messages.info(request, _("Nothing was changed."))
    else:
        edit_cluster(cluster, changed, actor=actor, credentials=access)
    return cluster


def _half_life(request: HttpRequest) -> int | None:
    """Return the hours after which past use counts half; None for the server's setting. Raises Invalid for a
    malformed number."""
    hours = request.POST.get(HALF_LIFE, "").strip()
    if not hours:
        return None
    is_number = hours.isdecimal() and len(hours) <= MOST_DIGITS
    try:
        return int(fields.whole(0, MOST_HOURS)(int(hours) if is_number else hours))
    except Refused as refused:
        raise invalid(f"/{HALF_LIFE}", refused.code, refused.detail) from refused


def _access(request: HttpRequest, kind: EngineKind) -> dict[str, Any]:
    """Return the fields that say how to reach the cluster, in REST form: only the access method that was selected,
    or else all entered credentials. Raises Invalid as `_upload`."""
    for name in _widgets(kind, "way"):
        if request.POST.get("reach") == name:
            return {name: True}
    return {
        **{name: _upload(request, kind, name) for name in _widgets(kind, "file")},
        **{name: request.POST.get(name, "").strip() for name in _widgets(kind, "text")},
        **{name: bool(request.POST.get(name)) for name in _widgets(kind, "switch")},
    }


def _widgets(kind: EngineKind, widget: str) -> list[str]:
    return [name for name, one in kind.credentials.items() if one.widget == widget]


def _upload(request: HttpRequest, kind: EngineKind, name: str) -> str:
    """Return the credential `name` from its uploaded file or, without one, from the pasted text. Raises Invalid if
    it is not text or the kind of cluster refuses it."""
    chosen = request.FILES.get(f"{name}_file")
    text = request.POST.get(name, "").strip()
    try:
        if isinstance(chosen, UploadedFile):
            text = chosen.read(UPLOAD_BYTES).decode()
        return str(kind.credentials[name].read(text))
    except UnicodeDecodeError as error:
        raise invalid(f"/{name}", "not_text", _("The file is not text.")) from error
    except Refused as refused:
        raise invalid(f"/{name}", refused.code, refused.detail) from refused


def _settings(request: HttpRequest) -> dict[str, Any]:
    """Return the entered settings, one NAME=VALUE per line; a value that is valid JSON is decoded, any other is
    text. Raises Invalid for a line without "="."""
    settings: dict[str, Any] = {}
    for line in request.POST.get("settings", "").splitlines():
        name, equals, value = (part.strip() for part in line.partition("="))
        if not line.strip():
            continue
        if not equals:
            raise invalid(
                "/settings", "not_a_setting", _("%(line)s is not KNOB=VALUE.") % {"line": line.strip()[:60]}
            )
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings


def _form_page(
    request: HttpRequest, actor: Actor, kind: EngineKind, cluster: Cluster | None, save: Callable[[], Cluster]
) -> HttpResponseBase:
    """Show the form of a new cluster (`cluster` None) or of an existing one. On POST call `save` and go to the
    cluster's page; if it raises Invalid or Conflict, show the form again with the errors."""
    errors: dict[str, str] = {}
    if request.method == "POST":
        try:
            return redirect("cluster", save().name)
        except Invalid as refused:
            errors = errors_by_field(refused)
        except Conflict as conflict:
            errors = {"settings" if cluster else "name": conflict.detail}
    return _form(request, actor, kind, cluster, errors)


def _form(
    request: HttpRequest, actor: Actor, kind: EngineKind, cluster: Cluster | None, errors: dict[str, str]
) -> HttpResponseBase:
    # Never send uploaded credentials back.
    texts = ("name", "reach", "scheduler", "settings", HALF_LIFE)
    kept = (*texts, *_widgets(kind, "text"), *_widgets(kind, "switch"))
    context = {
        "cluster": cluster,
        "errors": errors,
        "raw": {name: request.POST.get(name, "") for name in kept} if errors else _filled(cluster),
        "default_half_life_hours": settings.USAGE_HALF_LIFE // timedelta(hours=1),
        "kind": kind,
        "kinds": [one.name for one in engine_kinds().values() if one.form is not None],
        "knobs": [
            {"name": name, "text": knob.text, "default": json.dumps(knob.default)}
            for name, knob in kind.knobs.items()
        ],
    }
    return show(request, actor, "dashboards/cluster_form.html", context, status=400 if errors else 200)


def _filled(cluster: Cluster | None) -> dict[str, str]:
    if cluster is None:
        return {"scheduler": PLANNER.name}
    lines = (f"{name}={reads.written(value)}" for name, value in cluster.settings.items())
    hours = cluster.usage_half_life_hours
    return {
        "scheduler": cluster.scheduler,
        "settings": "\n".join(lines),
        HALF_LIFE: "" if hours is None else str(hours),
    }
