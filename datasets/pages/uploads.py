"""Uploading files into a dataset: static/js/dataset-upload.js sends them over REST."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from controlplane.access import Actor
from controlplane.actions.errors import Invalid
from controlplane.models import Role
from dashboards.pages.base_page import attempt, show, signed_in
from datasets.access import dataset_for
from datasets.actions.registrations import allowed_sources, register_directory
from datasets.pages.datasets import dataset_context

NOTE_MOST = 200


@require_safe
@signed_in
def dataset_upload(request: HttpRequest, actor: Actor, dataset_id: str) -> HttpResponseBase:
    """Show the upload form for a folder or files; static/js/dataset-upload.js uploads them."""
    dataset = dataset_for(actor, dataset_id, needed=Role.MEMBER)
    context = dataset_context(actor, dataset) | {"sources": list(allowed_sources())}
    return show(request, actor, "datasets/upload.html", context)


@require_POST
@signed_in
def dataset_register(request: HttpRequest, actor: Actor, dataset_id: str) -> HttpResponseBase:
    """Request a version from a directory that an admin has allowed, and go to the dataset's page."""
    dataset = dataset_for(actor, dataset_id, needed=Role.MEMBER)
    path, note = request.POST.get("path", ""), request.POST.get("message", "")[:NOTE_MOST]
    done = _("{path} is being registered.").format(path=path[:200])
    try:
        attempt(request, lambda: register_directory(dataset, path, note, actor=actor), done)
    except Invalid as refusal:
        messages.error(request, refusal.errors[0].detail)
    return redirect("dataset-page", dataset.pk)
