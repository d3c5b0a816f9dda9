"""One look for every figure, light and dark: no box, faint horizontal lines, one hover line, labels at the ends."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dashboards.charts.palette import Palette
from dashboards.charts.series import edge

FONT = 'Inter, system-ui, -apple-system, "Segoe UI", sans-serif'
TOP, BOTTOM = 8, 24
MINUTE, DAY = 60_000, 86_400_000
TIME_TICKS = [  # by distance between ticks, in milliseconds; one line each
    {"dtickrange": [None, MINUTE - 1], "value": "%H:%M:%S"},
    {"dtickrange": [MINUTE, DAY - 1], "value": "%H:%M"},
    {"dtickrange": [DAY, None], "value": "%-d %b"},
]


@dataclass(frozen=True, slots=True)
class Frame:
    """The size of a figure in pixels and the room that its labels need."""

    height: int = 150
    left: int = 30
    right: int = 84

    @property
    def plot_pixels(self) -> int:
        """The height that the lines have."""
        return self.height - TOP - BOTTOM


def layout(
    palette: Palette,
    frame: Frame,
    *,
    y_range: tuple[float, float],
    is_time: bool,
    y_format: str = ",~g",
    y_step: float | None = None,
) -> dict[str, Any]:
    """The layout of a line chart with a fixed y range."""
    axis: dict[str, Any] = {
        "showgrid": False,
        "zeroline": False,
        "showline": False,
        "ticks": "",
        "tickfont": {"color": palette.third, "size": 11},
        "nticks": 6,
        "automargin": False,
        "fixedrange": False,
    }
    across = (
        axis | {"type": "date", "tickformatstops": TIME_TICKS}
        if is_time
        else axis | {"type": "linear", "tickformat": ",~g"}
    )
    up = axis | {
        "showgrid": True,
        "gridcolor": palette.line,
        "range": list(y_range),
        "fixedrange": True,
        "nticks": 5,
        "tickformat": y_format,
    }
    if y_step is not None:
        up |= {"tick0": 0, "dtick": y_step}
    return {
        "height": frame.height,
        "margin": {"l": frame.left, "r": frame.right, "t": TOP, "b": BOTTOM, "pad": 4},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": palette.second},
        "showlegend": False,
        "hovermode": "x unified",
        "hoverlabel": {
            "bgcolor": palette.surface,
            "bordercolor": palette.line,
            "font": {"color": palette.text, "size": 12},
        },
        "dragmode": "zoom",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": palette.third, "activecolor": palette.text},
        "xaxis": across
        | {
            "showspikes": True,
            "spikemode": "across",
            "spikethickness": 1,
            "spikedash": "solid",
            "spikecolor": palette.third,
        },
        "yaxis": up,
    }


def sliding(
    shape: dict[str, Any], start: datetime, end: datetime, live_seconds: int | None
) -> dict[str, Any]:
    """The parts of a layout that fix its time range. `live_seconds`: the browser moves the end with live points and
    keeps at most that much before it; it never goes back behind `start`."""
    moves = {"span_seconds": live_seconds, "since": edge(start)}
    return {"meta": moves, "xaxis": shape["xaxis"] | {"range": [edge(start), edge(end)]}}


def nice_ceiling(value: float) -> float:
    """The next round number at or above a value, so that the top of an axis has a label."""
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
