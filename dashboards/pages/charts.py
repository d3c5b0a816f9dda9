"""Figures as JSON for static/js/charts.js: `{"figure", "summary", "table"}`, in the requested theme."""

from datetime import datetime

import orjson
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone

from controlplane.access import Actor, NotVisible, node_for, project_for
from dashboards.charts.allocation import allocation_chart, quota_chart
from dashboards.charts.curves import CURVES, curve_chart
from dashboards.charts.palette import Theme
from dashboards.charts.series import Chart
from dashboards.charts.templates import template_json, theme_of
from dashboards.charts.utilisation import device_chart, job_use_chart, utilisation_chart
from dashboards.pages.base_page import signed_in
from dashboards.reads import history, series, workers
from jobs.access import job_for
from jobs.kinds.registry import KINDS

SHORTEST, LONGEST = 60, 400 * 86400
# How long a browser caches the template; a new version may change it.
TEMPLATE_SECONDS = 300


@signed_in
def template(request: HttpRequest, actor: Actor, theme: str) -> HttpResponseBase:
    """Return the Plotly template of a theme, which figures reference by name."""
    response = HttpResponse(orjson.dumps(template_json(theme_of(theme))), content_type="application/json")
    response["Cache-Control"] = f"private, max-age={TEMPLATE_SECONDS}"
    return response


@signed_in
def utilisation(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Return the chart of GPU and memory utilisation over the last `span` seconds."""
    span, start, now = _range(request)
    gpu, memory = series.utilisation_points(start, now)
    return answer(
        utilisation_chart(gpu, memory, theme=theme(request), start=start, end=now, live_seconds=span)
    )


@signed_in
def allocation(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Return the chart of allocated GPUs by project over the last `span` seconds."""
    span, start, now = _range(request)
    lines = series.allocation_lines(start, now)
    return answer(allocation_chart(lines, theme=theme(request), start=start, end=now, live_seconds=span))


@signed_in
def project_quota(request: HttpRequest, actor: Actor, name: str) -> HttpResponseBase:
    """Return the chart of a project's allocated GPUs and quota over the last `span` seconds."""
    project = project_for(actor, name)
    span, start, now = _range(request)
    held, quota = history.project_levels(project, start, now)
    colour = project.palette_index
    chart = quota_chart(
        name, colour, held, quota, theme=theme(request), start=start, end=now, live_seconds=span
    )
    return answer(chart)


@signed_in
def node_use(request: HttpRequest, actor: Actor, name: str, metric: str) -> HttpResponseBase:
    """Return the chart of a node's and its devices' utilisation or memory over the last `span` seconds."""
    node = node_for(actor, name)
    _span, start, now = _range(request)
    whole, devices = history.NODE_LINES[metric](node, start, now)
    return answer(device_chart(metric, whole, devices, theme=theme(request), start=start, end=now))


@signed_in
def job_curve(request: HttpRequest, actor: Actor, job_id: str, name: str) -> HttpResponseBase:
    """Return the chart of a job's metric over its steps, or of its GPU use over time. Raises NotVisible for an
    unknown `name`."""
    job = job_for(actor, job_id)
    if name in history.JOB_USES:
        return answer(job_use_chart(**history.job_use(job, name, timezone.now()), theme=theme(request)))
    if name == "workers" and KINDS[job.kind].is_elastic:
        return answer(workers.timeline(job, timezone.now(), theme(request)))
    if name not in CURVES:
        raise NotVisible(f"There is no curve {name!r}.")
    marks = workers.generation_marks(job)
    return answer(curve_chart(CURVES[name], series.job_runs(job, name), theme=theme(request), marks=marks))


def answer(chart: Chart) -> HttpResponse:
    """Return a JSON response with the chart, marked as not cacheable."""
    response = HttpResponse(orjson.dumps(chart.as_json()), content_type="application/json")
    response["Cache-Control"] = "no-store"
    return response


def theme(request: HttpRequest) -> Theme:
    """Return the theme named by `?theme=`, by default the light one."""
    return theme_of(request.GET.get("theme"))


def _range(request: HttpRequest) -> tuple[int, datetime, datetime]:
    """Return (seconds, start, now) of the range `?span=`, which is limited to SHORTEST..LONGEST; 3600 s if it is
    malformed. The start is not before the first recorded sample."""
    text, now = request.GET.get("span", ""), timezone.now()
    span = min(max(int(text), SHORTEST), LONGEST) if text.isdecimal() and len(text) < 10 else 3600
    return span, series.first_seen(now, span), now
