"""Page of recorded history over any range: allocation, utilisation, waiting and users, as charts, tables and
CSV."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from controlplane.access import Actor, NotVisible, visible_project_ids
from dashboards import formats
from dashboards.charts.allocation import allocation_chart, carried, usage
from dashboards.charts.palette import Theme
from dashboards.charts.series import Chart
from dashboards.charts.users import users_chart
from dashboards.charts.utilisation import utilisation_chart
from dashboards.charts.waiting import waiting_chart
from dashboards.formats import NBSP
from dashboards.pages.base_page import show, signed_in
from dashboards.pages.charts import answer, theme
from dashboards.reads import history, series
from jobs.estimate_record import estimate_counts

PRESETS = {"1h": 3600, "24h": 86400, "7d": 7 * 86400, "30d": 30 * 86400, "90d": 90 * 86400}
# Arithmetic with times outside this range can overflow datetime.
YEARS = range(1970, 9999)


@dataclass(frozen=True, slots=True)
class Range:
    """A time range. `preset`: its name if it ends now, else "". `error`: why the requested range was
    invalid."""

    start: datetime
    end: datetime
    preset: str = ""
    error: str = ""


@signed_in
def analytics(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show the table of GPU use by project over the requested range; the browser loads the charts separately.
    Status 400 for an invalid range."""
    chosen = _chosen(request)
    lines = series.allocation_lines(chosen.start, chosen.end)
    used = [(line, usage(carried(line.points, chosen.start, chosen.end))) for line in lines]
    used.sort(key=lambda one: (one[0].is_gone, -one[1].gpu_hours))
    context = {
        "chosen": chosen,
        "presets": [(name, f"{name[:-1]}{NBSP}{name[-1]}") for name in PRESETS],
        "used": used,
        "total_hours": sum(use.gpu_hours for _line, use in used),
        "hours_places": formats.measured_decimals(use.gpu_hours for _line, use in used),
        "mean_places": formats.measured_decimals(use.mean for _line, use in used),
        "peak_places": formats.decimals(use.peak for _line, use in used),
        "query": request.GET.urlencode(),
        "estimates": estimate_counts(chosen.start),
    }
    return show(request, actor, "dashboards/analytics.html", context, status=400 if chosen.error else 200)


@signed_in
def analytics_chart(request: HttpRequest, actor: Actor, name: str) -> HttpResponseBase:
    """Return a chart of the page over the requested range. Raises NotVisible for an unknown `name`."""
    if name not in _CHARTS:
        raise NotVisible(f"There is no chart {name!r}.")
    return answer(_CHARTS[name](actor, _chosen(request), theme(request)))


@signed_in
def analytics_csv(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Return the changes of allocated GPUs in the range as CSV with the columns time, project, gpus; each
    project's first row is its value at the start."""
    chosen = _chosen(request)
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["time", "project", "gpus"])
    for line in series.allocation_lines(chosen.start, chosen.end):
        for at, value in carried(line.points, chosen.start, chosen.end):
            writer.writerow([at.isoformat().replace("+00:00", "Z"), line.name, f"{value:g}"])
    headers = {"Content-Disposition": 'attachment; filename="allocated-gpus.csv"'}
    return HttpResponse(out.getvalue(), content_type="text/csv; charset=utf-8", headers=headers)


def read_range(preset: str, start: str, end: str, now: datetime) -> Range:
    """Return the requested range: a preset that ends `now`, or the two times `start` and `end` ("": now). Otherwise
    the last day, with `error` set if times were given."""
    default = Range(now - timedelta(days=1), now, "24h")
    if preset in PRESETS:
        return Range(now - timedelta(seconds=PRESETS[preset]), now, preset)
    if not start and not end:
        return default
    first, last = _time(start), _time(end) if end else now
    if first is None or last is None:
        return Range(default.start, now, "24h", _("Give both times as in 2026-01-31T08:00."))
    if first >= last:
        return Range(default.start, now, "24h", _("The range must start before it ends."))
    return Range(first, last)


def _chosen(request: HttpRequest) -> Range:
    asked, now = request.GET, timezone.now()
    chosen = read_range(asked.get("range", ""), asked.get("from", ""), asked.get("to", ""), now)
    if not chosen.preset:
        return chosen
    return replace(chosen, start=series.first_seen(now, (now - chosen.start).total_seconds()))


def _time(text: str) -> datetime | None:
    try:
        parsed = parse_datetime(text)
        if parsed is None:
            return None
        at = parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return at if at.year in YEARS else None


def _allocation(actor: Actor, chosen: Range, theme: Theme) -> Chart:
    lines = series.allocation_lines(chosen.start, chosen.end)
    capacity = series.capacity_points(chosen.start, chosen.end)
    return allocation_chart(lines, theme=theme, start=chosen.start, end=chosen.end, capacity=capacity)


def _utilisation(actor: Actor, chosen: Range, theme: Theme) -> Chart:
    gpu, memory = series.utilisation_points(chosen.start, chosen.end)
    return utilisation_chart(gpu, memory, theme=theme, start=chosen.start, end=chosen.end, live_seconds=None)


def _waiting(actor: Actor, chosen: Range, theme: Theme) -> Chart:
    spans, seconds = history.waits(chosen.start, chosen.end)
    return waiting_chart(spans, seconds, theme=theme, start=chosen.start, end=chosen.end)


def _users(actor: Actor, chosen: Range, theme: Theme) -> Chart:
    hours = history.user_hours(chosen.start, chosen.end, visible_project_ids(actor))
    return users_chart(hours, theme=theme)


_CHARTS: dict[str, Callable[[Actor, Range, Theme], Chart]] = {
    "allocation": _allocation,
    "utilisation": _utilisation,
    "waiting": _waiting,
    "users": _users,
}
