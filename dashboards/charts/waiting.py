"""Bar chart of jobs' waiting times."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from dashboards.charts.figures import BOTTOM, LEFT, SMALL, TOP, Axes, as_json, time_axis
from dashboards.charts.palette import Theme, palette_for
from dashboards.charts.series import Chart, edge
from dashboards.charts.templates import graph_objects, template_name

MINUTE, HOUR = 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class Waited:
    """Jobs that started within the time interval that begins `at`: their mean and longest wait in seconds, and their
    number."""

    at: datetime
    mean: float
    longest: float
    jobs: int


def waiting_chart(
    spans: Sequence[Waited], span_seconds: int, *, theme: Theme, start: datetime, end: datetime
) -> Chart:
    """Return the figure with a bar of the mean wait per interval of `span_seconds` and a tick at the longest;
    intervals in which no job started are empty."""
    longest = max((span.longest for span in spans), default=0.0)
    unit, seconds = _unit(longest)
    axes = Axes("Time", f"Wait, {unit}", (0, max(longest / seconds, 1.0) * 1.08), unit, x_range=(start, end))
    figure = _figure(spans, span_seconds, axes, seconds, theme)
    columns = ("From", "Jobs started", f"Mean wait, {unit}", f"Longest wait, {unit}")
    rows = tuple(
        (edge(span.at), span.jobs, round(span.mean / seconds, 2), round(span.longest / seconds, 2))
        for span in reversed(spans)
    )
    return Chart(figure, _summary(spans, unit, seconds), columns, rows)


def _figure(
    spans: Sequence[Waited], span_seconds: int, axes: Axes, seconds: float, theme: Theme
) -> dict[str, object]:
    plotly, palette = graph_objects(), palette_for(theme)
    # Bar width: four fifths of an interval, in milliseconds.
    width = span_seconds * 800
    times = [edge(span.at) for span in spans]
    means = plotly.Bar(
        name="mean",
        x=times,
        y=[span.mean / seconds for span in spans],
        width=width,
        offset=0,
        marker={"color": palette.accent},
        meta={"key": "mean"},
    )
    most = plotly.Scatter(
        name="longest",
        x=times,
        y=[span.longest / seconds for span in spans],
        mode="markers",
        # Above the middle of its interval, as the bar is, and not at the interval's beginning.
        xperiod=span_seconds * 1000,
        xperiod0=times[0] if times else None,
        xperiodalignment="middle",
        marker={"color": palette.second, "symbol": "line-ew-open", "size": 12},
        meta={"key": "longest", "width": width},
    )
    layout = {
        "template": template_name(theme),
        "height": SMALL,
        "margin": {"l": LEFT, "r": 12, "t": TOP, "b": BOTTOM, "pad": 4},
        "xaxis": time_axis(axes.x_title, axes.x_range),
        "yaxis": {"title": {"text": axes.y_title}, "range": list(axes.y_range)},
        "meta": {"unit": axes.unit, "span_seconds": None},
    }
    return as_json(plotly.Figure([means, most], layout), theme)


def _summary(spans: Sequence[Waited], unit: str, seconds: float) -> str:
    if not spans:
        return "No job started in this range."
    jobs = sum(span.jobs for span in spans)
    mean = sum(span.mean * span.jobs for span in spans) / jobs
    longest = max(span.longest for span in spans)
    started = "1 job" if jobs == 1 else f"{jobs:,} jobs"
    said = f"waited {mean / seconds:.3g} {unit} on average (bars) and {longest / seconds:.3g} {unit} at most (lines)"
    return f"{started} started and {said}."


def _unit(seconds: float) -> tuple[str, float]:
    if seconds < 3 * MINUTE:
        return "s", 1.0
    return ("min", MINUTE) if seconds < 3 * HOUR else ("h", HOUR)
