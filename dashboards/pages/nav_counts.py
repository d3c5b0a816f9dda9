"""The numbers beside the navigation, for static/js/nav.js when the live feed says that they may have moved."""

from django.http import HttpRequest, HttpResponseBase, JsonResponse

from controlplane.access import Actor
from dashboards.pages import navigation
from dashboards.pages.base_page import signed_in


@signed_in
def counts(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """JSON: a number by the name of its navigation entry."""
    response = JsonResponse(navigation.counts(actor))
    response["Cache-Control"] = "no-store"
    return response
