"""The numbers beside the navigation, for static/js/nav.js when the live feed says that they may have moved."""

from django.http import HttpRequest, HttpResponseBase, JsonResponse

from controlplane.access import Actor
from dashboards.pages.base_page import signed_in
from dashboards.reads.base_page import nav_counts


@signed_in
def counts(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """JSON {"jobs", "projects", "nodes"}."""
    response = JsonResponse(nav_counts(actor))
    response["Cache-Control"] = "no-store"
    return response
