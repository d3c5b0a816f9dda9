"""The first page: the cluster from far to near."""

from django.http import HttpRequest, HttpResponseBase

from controlplane.access import Actor
from dashboards.pages.frame import show, signed_in
from dashboards.reads.overview import overview_page


@signed_in
def overview(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Seven figures, devices, projects, time, running jobs, the queue."""
    return show(request, actor, "dashboards/overview.html", overview_page(actor))
