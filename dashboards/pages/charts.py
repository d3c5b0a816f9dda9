"""Figures as JSON, for static/js/charts.js: `{"figure", "summary", "table"}`, in the theme that is asked for."""

import orjson
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone

from controlplane.access import Actor, NotVisible, job_for
from dashboards.charts.allocation import allocation_chart
from dashboards.charts.curves import CURVES, curve_chart
from dashboards.charts.series import Chart
from dashboards.charts.utilisation import utilisation_chart
from dashboards.pages.frame import signed_in
from dashboards.reads import series

SHORTEST, LONGEST = 60, 400 * 86400


@signed_in
def utilisation(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """GPU and memory utilisation over the last `span` seconds."""
    span, now = _span(request), timezone.now()
    start = series.first_seen(now, span)
    gpu, memory = series.utilisation_points(start, now)
    chart = utilisation_chart(gpu, memory, theme=_theme(request), start=start, end=now, live_seconds=span)
    return _answer(chart)


@signed_in
def allocation(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Allocated GPUs by project over the last `span` seconds."""
    span, now = _span(request), timezone.now()
    start = series.first_seen(now, span)
    lines = series.allocation_lines(start, now)
    return _answer(allocation_chart(lines, theme=_theme(request), start=start, end=now, live_seconds=span))


@signed_in
def job_curve(request: HttpRequest, actor: Actor, job_id: str, name: str) -> HttpResponseBase:
    """Loss, accuracy or GPU use of a job."""
    job = job_for(actor, job_id)
    if name not in CURVES:
        raise NotVisible(f"There is no curve {name!r}.")
    return _answer(curve_chart(CURVES[name], series.job_points(job, name), theme=_theme(request)))


def _answer(chart: Chart) -> HttpResponse:
    response = HttpResponse(orjson.dumps(chart.as_json()), content_type="application/json")
    response["Cache-Control"] = "no-store"
    return response


def _span(request: HttpRequest) -> int:
    text = request.GET.get("span", "")
    return min(max(int(text), SHORTEST), LONGEST) if text.isdecimal() and len(text) < 10 else 3600


def _theme(request: HttpRequest) -> str:
    return "dark" if request.GET.get("theme") == "dark" else "light"
