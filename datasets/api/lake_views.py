"""Base class of views that read or write a lake; maps the lake's errors to HTTP statuses."""

from rest_framework.response import Response

from controlplane.api.operations import ApiView
from controlplane.api.problems import Problem
from datasets.storage.base import Blocked, ContentDamaged, ContentMissing


class LakeView(ApiView):
    """A view that answers 503 or 507 if the lake is blocked, and 409 if content is missing or damaged."""

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, Blocked):
            exc = lake_unavailable(exc)
        elif isinstance(exc, ContentMissing):
            exc = Problem(409, "content_missing", f"{exc} Check the version: yard dataset verify.")
        elif isinstance(exc, ContentDamaged):
            exc = Problem(409, "content_damaged", f"{exc} Check the version: yard dataset verify.")
        return super().handle_exception(exc)


def lake_unavailable(error: Blocked) -> Problem:
    """Return the HTTP problem for a blocked lake."""
    status = 507 if error.code == "disk_full" else 503
    return Problem(status, error.code, error.detail, headers={"Retry-After": "30"})
