"""The overview page: the cluster from totals to details."""

import time
from collections.abc import Hashable
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponseBase
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import get_language

from controlplane.access import Actor, visible_project_names
from controlplane.models import Event
from dashboards.pages.base_page import show, signed_in
from dashboards.reads.overview import overview_page, usable_project

# How old a cached rendering may be when a page is opened; live updates then refresh it at once.
FRESH_SECONDS = 2.0
# Bounds memory: one rendering for each set of visible projects and each language.
KEPT_MOST = 32
LEAST_HEADER = "X-Live-Seq"


@dataclass(frozen=True, slots=True)
class Drawing:
    """A cached rendering as of event `seq`, shared by all readers with the same access. `drawn_at`: by
    time.monotonic()."""

    html: SafeString
    seq: int
    drawn_at: float

    def is_good(self, least: int | None) -> bool:
        """Return whether the rendering may be used: it contains event `least` or, for None (a newly opened page),
        is at most FRESH_SECONDS old or contains the newest event."""
        if least is not None and least >= 0:
            return self.seq >= least
        return time.monotonic() - self.drawn_at < FRESH_SECONDS or self.seq == Event.objects.last_seq()


_kept: dict[Hashable, Drawing] = {}


@signed_in
def overview(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show seven figures, devices, projects, history, running jobs and the queue."""
    drawing = _drawing(actor, request.headers.get(LEAST_HEADER, ""))
    return show(request, actor, "dashboards/overview.html", {"body": drawing.html})


def _drawing(actor: Actor, least: str) -> Drawing:
    """Return the rendering of the page. `least`: the event number that it must contain, "" for a newly opened
    page. Renderings of large clusters are cached and shared by readers with the same access."""
    sees, usable = visible_project_names(actor), usable_project(actor)
    key = (sees, usable, get_language())
    kept = _kept.get(key)
    if kept is not None and kept.is_good(int(least) if least.isdecimal() else None):
        return kept
    page = overview_page(sees)
    html = render_to_string(
        "dashboards/parts/overview_body.html", page | {"usable": usable or page["usable"]}
    )
    drawing = Drawing(html, page["seq"], time.monotonic())
    if "heat" in page:
        while len(_kept) >= KEPT_MOST:
            # The default: another thread may have removed the entry meanwhile.
            _kept.pop(next(iter(_kept)), None)
        _kept[key] = drawing
    return drawing
