"""Base class of views that read or write a lake; maps the lake's errors to HTTP statuses."""

from rest_framework.response import Response

from controlplane.api.operations import ApiView
from controlplane.api.problems import Problem
from datasets.storage.base import Blocked, ContentDamaged, ContentMissing

# HTTP statuses for codes of Blocked, 503 for the others: clients must distinguish a full disk from an outage, and a
# lake that removes old content is no fault.
_STATUSES = {"disk_full": 507, "in_use": 409}


class LakeView(ApiView):
    """A view that answers 503 or 507 if the lake is blocked, and 409 if it is busy or content is missing or damaged."""

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
    return Problem(_STATUSES.get(error.code, 503), error.code, error.detail, headers={"Retry-After": "30"})
