"""Line figures as graph objects: every chart over time or steps is a list of strokes on two axes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dashboards.charts.labels import EndLabel, annotations, room_for
from dashboards.charts.palette import Theme
from dashboards.charts.series import MOST_POINTS, Gapped, edge, thin
from dashboards.charts.templates import graph_objects, template_name

TOP, BOTTOM, LEFT = 8, 40, 50
SMALL, TALL = 170, 340


@dataclass(frozen=True, slots=True)
class Stroke:
    """One line of a figure. `key` is what live values are addressed to, `scale` what they are multiplied by; `shift`:
    drawn this far from its true value; `label`: the text at its end, in which {value} is its last value."""

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
        """The newest value."""
        return next((value for _x, value in reversed(self.points) if value is not None), None)


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line with a word at its top."""

    x: datetime | float
    text: str


@dataclass(frozen=True, slots=True)
class Axes:
    """What the two axes say. `unit` follows values in the list under the pointer; `x_range` None: as the points are."""

    x_title: str
    y_title: str
    y_range: tuple[float, float]
    unit: str = ""
    is_time: bool = True
    y_step: float | None = None
    x_range: tuple[datetime, datetime] | None = None
    height: int = SMALL
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def plot_pixels(self) -> int:
        """The height that the lines have."""
        return self.height - TOP - BOTTOM


def line_figure(
    strokes: Sequence[Stroke], axes: Axes, *, theme: Theme, marks: Sequence[Mark] = ()
) -> dict[str, Any]:
    """Return the figure as JSON-able data; its template is a name that the browser resolves."""
    plotly = graph_objects()
    labels = [
        EndLabel(
            stroke.key, stroke.label.replace("{value}", f"{stroke.last:.0f}"), stroke.last, stroke.colour
        )
        for stroke in strokes
        if stroke.label and stroke.last is not None
    ]
    low, high = axes.y_range
    ends = annotations(labels, low, high, axes.plot_pixels)
    layout = {
        "template": template_name(theme),
        "height": axes.height,
        "margin": {"l": LEFT, "r": room_for(labels), "t": TOP, "b": BOTTOM, "pad": 4},
        "xaxis": _across(axes),
        "yaxis": _up(axes),
        "annotations": ends + [_mark_text(mark) for mark in marks],
        "shapes": [_mark_line(mark) for mark in marks],
        "meta": {"unit": axes.unit, **axes.meta},
    }
    figure = plotly.Figure([_trace(plotly, stroke) for stroke in strokes], layout)
    return as_json(figure, theme)


def as_json(figure: Any, theme: Theme) -> dict[str, Any]:
    """Return a figure as plain data that names its template instead of carrying it."""
    found: dict[str, Any] = figure.to_plotly_json()
    found["layout"]["template"] = template_name(theme)
    return found


def sliding(start: datetime, end: datetime, live_seconds: int | None) -> dict[str, Any]:
    """Return the meta of a range that the browser moves with live points: it keeps at most `live_seconds`, and never
    goes back behind `start`. None: the range stays."""
    return {"span_seconds": live_seconds, "since": edge(start)}


def nice_ceiling(value: float) -> float:
    """Return the next round number at or above a value, so that the top of an axis has a label."""
    if value <= 0:
        return 1.0
    step = 1.0
    while step * 10 <= value:
        step *= 10
    while step > value:
        step /= 10
    return next(
        step * factor for factor in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * factor >= value * 0.999999
    )


def _trace(plotly: Any, stroke: Stroke) -> Any:
    shown = thin(stroke.points, MOST_POINTS)
    values = [value for _x, value in shown]
    meta: dict[str, Any] = {"key": stroke.key, "scale": stroke.scale, "offset": stroke.shift}
    look: dict[str, Any] = {"color": stroke.colour, "width": stroke.width, "dash": stroke.dash}
    extra: dict[str, Any] = {}
    if stroke.shift:
        extra["customdata"] = values
    if len(shown) == 1:
        extra["mode"] = "markers"
    if stroke.is_muted:
        extra["opacity"] = 0.55
    return plotly.Scatter(
        name=stroke.name,
        x=[edge(x) for x, _value in shown],
        y=[None if value is None else value + stroke.shift for value in values],
        line=look | ({"shape": "hv"} if stroke.is_step else {}),
        meta=meta | ({"label": stroke.label} if stroke.label else {}),
        **extra,
    )


def _across(axes: Axes) -> dict[str, Any]:
    axis: dict[str, Any] = {"type": "date" if axes.is_time else "linear", "title": {"text": axes.x_title}}
    if not axes.is_time:
        axis["tickformat"] = ",~g"
    if axes.x_range:
        axis["range"] = [edge(end) for end in axes.x_range]
    return axis


def _up(axes: Axes) -> dict[str, Any]:
    steps = {} if axes.y_step is None else {"tick0": 0, "dtick": axes.y_step}
    return {"range": list(axes.y_range), "title": {"text": axes.y_title}, **steps}


def _mark_line(mark: Mark) -> dict[str, Any]:
    x = edge(mark.x)
    place = {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1}
    return {**place, "line": {"dash": "dot"}, "layer": "below"}


def _mark_text(mark: Mark) -> dict[str, Any]:
    place = {"x": edge(mark.x), "xref": "x", "y": 1, "yref": "paper"}
    return {
        **place,
        "text": mark.text,
        "xanchor": "left",
        "yanchor": "top",
        "xshift": 3,
        "font": {"size": 10},
    }
