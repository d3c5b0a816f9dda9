"""Line figures as Plotly graph objects: charts over time or steps are lists of strokes on two axes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dashboards.charts.labels import EndLabel, annotations, room_for
from dashboards.charts.palette import Theme
from dashboards.charts.series import MOST_POINTS, Gapped, X, edge, thin
from dashboards.charts.templates import graph_objects, template_name

TOP, BOTTOM, LEFT = 8, 38, 46
SMALL, TALL = 170, 340
MINUTE, DAY = 60_000, 86_400_000
# Time formats of tick labels by the distance between ticks in milliseconds; each fits on one line.
TIME_TICKS = [
    {"dtickrange": [None, MINUTE - 1], "value": "%H:%M:%S"},
    {"dtickrange": [MINUTE, DAY - 1], "value": "%H:%M"},
    {"dtickrange": [DAY, None], "value": "%-d %b"},
]
# Share of the x axis that a mark's label needs; labels that would overlap others are omitted.
MARK_SHARE = 0.16


@dataclass(frozen=True, slots=True)
class Stroke:
    """One line of a figure. `key`: addresses live values to the line; `scale`: factor for these; `dash`: Plotly's name
    of a dash style; `is_step`: drawn as steps; `is_muted`: drawn faintly; `shift`: offset at which the line is drawn;
    `label`: text at its end, in which {value} is replaced by its last value."""

    key: str
    name: str
    points: Sequence[Gapped]
    colour: str
    width: float = 1.8
    dash: str = "solid"
    is_step: bool = False
    is_muted: bool = False
    scale: float = 1.0
    shift: float = 0.0
    label: str = ""

    @property
    def last(self) -> float | None:
        """Return the newest value, None if there is none."""
        return next((value for _x, value in reversed(self.points) if value is not None), None)


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line with a label at its top."""

    x: datetime | float
    text: str


@dataclass(frozen=True, slots=True)
class Axes:
    """Titles and ranges of the two axes. `unit`: shown after values in the hover list. `x_step`, `y_step`: distance
    of the ticks, None to let Plotly choose. `x_range`: None for the range of the points. `height`: of the chart in
    pixels; `meta`: data for static/js/charts.js."""

    x_title: str
    y_title: str
    y_range: tuple[float, float]
    unit: str = ""
    is_time: bool = True
    y_step: float | None = None
    x_step: float | None = None
    x_range: tuple[datetime, datetime] | None = None
    height: int = SMALL
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def plot_pixels(self) -> int:
        """Return the height of the plot area in pixels."""
        return self.height - TOP - BOTTOM


def line_figure(
    strokes: Sequence[Stroke], axes: Axes, *, theme: Theme, marks: Sequence[Mark] = ()
) -> dict[str, Any]:
    """Return the figure of these lines as JSON data. It names the template of `theme`, which the browser
    resolves. `marks`: vertical lines."""
    plotly = graph_objects()
    labels = [
        _end_label(stroke, stroke.last) for stroke in strokes if stroke.label and stroke.last is not None
    ]
    low, high = axes.y_range
    ends = annotations(labels, low, high, axes.plot_pixels)
    layout = {
        "template": template_name(theme),
        "height": axes.height,
        "margin": {
            "l": LEFT,
            "r": room_for([stroke.label for stroke in strokes]),
            "t": TOP,
            "b": BOTTOM,
            "pad": 4,
        },
        "xaxis": _across(axes),
        "yaxis": _up(axes),
        "annotations": ends + _mark_texts(marks, axes, strokes),
        "shapes": [_mark_line(mark) for mark in marks],
        "meta": {"unit": axes.unit, **axes.meta},
    }
    found = as_json(plotly.Figure([_trace(stroke) for stroke in strokes], layout), theme)
    # Bypass Plotly's validation of arrays, which checks each value twice: 3 ms for a line of 400 points that
    # was computed here.
    for trace, stroke in zip(found["data"], strokes, strict=True):
        trace.update(_values(stroke))
    return found


def as_json(figure: Any, theme: Theme) -> dict[str, Any]:
    """Return a Plotly figure as plain data, with the name of the theme's template in place of the template."""
    found: dict[str, Any] = figure.to_plotly_json()
    found["layout"]["template"] = template_name(theme)
    return found


def time_axis(title: str, x_range: tuple[datetime, datetime] | None) -> dict[str, Any]:
    """Return Plotly's layout of a time axis over `x_range`; None fits it to the points."""
    # Plotly does not take a list of formats from a template.
    axis: dict[str, Any] = {"type": "date", "title": {"text": title}, "tickformatstops": TIME_TICKS}
    return axis | ({"range": [edge(end) for end in x_range]} if x_range else {})


def sliding(start: datetime, end: datetime, live_seconds: int | None) -> dict[str, Any]:
    """Return the metadata of a range that the browser moves with live points: it keeps at most `live_seconds`
    and never begins before `start`. None: the range is fixed."""
    return {"span_seconds": live_seconds, "since": edge(start)}


def nice_ceiling(value: float) -> float:
    """Return the next round number at or above `value`, so that the top of the axis has a label; 1 if `value` is
    not positive or not finite."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    step = 1.0
    while step * 10 <= value:
        step *= 10
    while step > value:
        step /= 10
    return next(
        step * factor for factor in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * factor >= value * 0.999999
    )


def _trace(stroke: Stroke) -> dict[str, Any]:
    meta: dict[str, Any] = {"key": stroke.key, "scale": stroke.scale, "offset": stroke.shift}
    line: dict[str, Any] = {"color": stroke.colour, "width": stroke.width, "dash": stroke.dash}
    look: dict[str, Any] = {"opacity": 0.55} if stroke.is_muted else {}
    # A line needs two points: a single one would be invisible.
    if len(stroke.points) == 1:
        look["mode"] = "markers"
    return {
        "type": "scatter",
        "name": stroke.name,
        "line": line | ({"shape": "hv"} if stroke.is_step else {}),
        "meta": meta | ({"label": stroke.label} if stroke.label else {}),
        **look,
    }


def _values(stroke: Stroke) -> dict[str, Any]:
    shown = thin(stroke.points, MOST_POINTS)
    values = [value for _x, value in shown]
    drawn = [None if value is None else value + stroke.shift for value in values]
    # The hover list shows these values instead of the shifted ones.
    true = {"customdata": values} if stroke.shift else {}
    return {"x": [edge(x) for x, _value in shown], "y": drawn, **true}


def _end_label(stroke: Stroke, value: float) -> EndLabel:
    return EndLabel(stroke.key, stroke.label.replace("{value}", f"{value:.0f}"), value, stroke.colour)


def _across(axes: Axes) -> dict[str, Any]:
    if axes.is_time:
        return time_axis(axes.x_title, axes.x_range)
    steps = {} if axes.x_step is None else {"tick0": 0, "dtick": axes.x_step}
    return {"type": "linear", "title": {"text": axes.x_title}, "tickformat": ",~g", **steps}


def _up(axes: Axes) -> dict[str, Any]:
    steps = {} if axes.y_step is None else {"tick0": 0, "dtick": axes.y_step}
    return {"range": list(axes.y_range), "title": {"text": axes.y_title}, **steps}


def _mark_line(mark: Mark) -> dict[str, Any]:
    x = edge(mark.x)
    place = {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1}
    return {**place, "line": {"dash": "dot"}, "layer": "below"}


def _mark_texts(marks: Sequence[Mark], axes: Axes, strokes: Sequence[Stroke]) -> list[dict[str, Any]]:
    """Return the labels of marks as Plotly annotations: to the right of the line, or to the left near the chart's
    end. A label that would cover the next mark or its label is omitted."""
    ends = axes.x_range or _ends(strokes)
    if not ends:
        return []
    low, high = map(_number, ends)
    found: list[dict[str, Any]] = []
    next_line = next_label = math.inf
    for mark in reversed(marks):
        place = (_number(mark.x) - low) / ((high - low) or 1.0)
        is_left = place > 1 - MARK_SHARE
        begin, end = (place - MARK_SHARE, place) if is_left else (place, place + MARK_SHARE)
        if end <= min(next_label, math.inf if is_left else next_line):
            found.append(_mark_text(mark, is_left=is_left))
            next_label = begin
        next_line = place
    return found[::-1]


def _mark_text(mark: Mark, *, is_left: bool) -> dict[str, Any]:
    place = {"x": edge(mark.x), "xref": "x", "y": 1, "yref": "paper", "yanchor": "top"}
    side = {"xanchor": "right", "xshift": -3} if is_left else {"xanchor": "left", "xshift": 3}
    return {**place, **side, "text": mark.text, "font": {"size": 10}}


def _ends(strokes: Sequence[Stroke]) -> tuple[X, X] | None:
    xs = [x for stroke in strokes for x, _value in (*stroke.points[:1], *stroke.points[-1:])]
    return (min(xs, key=_number), max(xs, key=_number)) if xs else None


def _number(x: X) -> float:
    return x.timestamp() if isinstance(x, datetime) else x
