"""Uploading files into a dataset: static/js/dataset-upload.js sends them over REST."""

from django.http import HttpRequest, HttpResponseBase
from django.views.decorators.http import require_safe

from controlplane.access import Actor
from controlplane.models import Role
from dashboards.pages.base_page import show, signed_in
from datasets.access import dataset_for
from datasets.pages.datasets import dataset_context


@require_safe
@signed_in
def dataset_upload(request: HttpRequest, actor: Actor, dataset_id: str) -> HttpResponseBase:
    """Choose a folder or files that become a version."""
    dataset = dataset_for(actor, dataset_id, needed=Role.MEMBER)
    return show(request, actor, "datasets/upload.html", dataset_context(actor, dataset))
