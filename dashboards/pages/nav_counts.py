"""The navigation's counts, which static/js/nav.js fetches when a live update says that they may have
changed."""

from django.http import HttpRequest, HttpResponseBase, JsonResponse

from controlplane.access import Actor
from dashboards.pages import navigation
from dashboards.pages.base_page import signed_in


@signed_in
def counts(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Return JSON: count by name of the navigation entry."""
    response = JsonResponse(navigation.counts(actor))
    response["Cache-Control"] = "no-store"
    return response
