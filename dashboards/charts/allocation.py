"""Allocated GPUs per project over time, as steps with the names at the line ends."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dashboards.charts.labels import EndLabel, annotations
from dashboards.charts.layout import Frame, layout, nice_ceiling, sliding
from dashboards.charts.palette import palette_for
from dashboards.charts.series import Chart, Line, edge, thin

SMALL, TALL = Frame(right=92), Frame(height=320, left=34, right=110)
SAYS = "GPUs at the end of the range: {each}."  # the browser fills it again as live points come
LABELS_MOST = 12  # more would not be read; the others are told by hovering and in the table
DODGE_PIXELS = 2.2  # lines with equal values stand this far apart, so that none hides another


@dataclass(frozen=True, slots=True)
class Usage:
    """What a project held over a range, in GPUs."""

    gpu_hours: float
    mean: float
    peak: float


def allocation_chart(
    lines: Sequence[Line],
    *,
    theme: str,
    start: datetime,
    end: datetime,
    live_seconds: int | None = None,
    is_tall: bool = False,
) -> Chart:
    """One step line a project; points are (time, GPUs) change points. `live_seconds`: the range slides with now."""
    palette, frame = palette_for(theme), TALL if is_tall else SMALL
    held = [(line, carried(line.points, start, end)) for line in lines]
    top = nice_ceiling(max((value for _line, points in held for _x, value in points), default=1.0))
    units_per_pixel = top * 1.08 / frame.plot_pixels
    offsets = _offsets(held, DODGE_PIXELS * units_per_pixel)
    shape = layout(palette, frame, y_range=(-0.04 * top, top * 1.04), is_time=True)
    shape |= sliding(shape, start, end, live_seconds)
    shape["meta"] |= {"says": SAYS, "usage": True}
    labels = [
        EndLabel(f"project:{line.key}", line.name, points[-1][1], palette.project(line.palette_index or 0))
        for line, points in sorted(held, key=lambda item: -item[1][-1][1])[:LABELS_MOST]
    ]
    shape["annotations"] = annotations(labels, -0.04 * top, top * 1.04, frame.plot_pixels)
    data = [
        _trace(line, points, palette.project(line.palette_index or 0), offset)
        for (line, points), offset in zip(held, offsets, strict=True)
    ]
    rows = tuple(_row(line, usage(points)) for line, points in held)
    return Chart(
        {"data": data, "layout": shape},
        _summary(held),
        ("Project", "GPU hours", "Mean GPUs", "Peak GPUs"),
        rows,
    )


def carried(
    points: Sequence[tuple[datetime | float, float]], start: datetime, end: datetime
) -> list[tuple[datetime, float]]:
    """Change points as a line over exactly start..end: what held before the start enters, the last value runs out."""
    value, inside = 0.0, []
    for at, level in points:
        assert isinstance(at, datetime)
        if at <= start:
            value = level
        elif at < end:
            inside.append((at, level))
    line = [(start, value), *inside]
    return [*line, (end, line[-1][1])]


def usage(points: Sequence[tuple[datetime, float]]) -> Usage:
    """The area under a step line, its mean and its peak."""
    pairs = list(itertools.pairwise(points))
    seconds = (points[-1][0] - points[0][0]).total_seconds()
    area = sum(value * (after - at).total_seconds() for (at, value), (after, _next) in pairs)
    return Usage(area / 3600, area / seconds if seconds else 0.0, max(value for _at, value in points))


def _trace(
    line: Line, points: Sequence[tuple[datetime, float]], colour: str, offset: float
) -> dict[str, Any]:
    shown = thin(points)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": line.name,
        "x": [edge(x) for x, _value in shown],
        "y": [value + offset for _x, value in shown],
        "customdata": [value for _x, value in shown],
        "line": {"color": colour, "width": 1.8, "shape": "hv"},
        "hovertemplate": "%{customdata:~g} GPUs",
        "meta": {"key": f"project:{line.key}", "offset": offset},
    }


def _offsets(held: Sequence[tuple[Line, Sequence[tuple[datetime, float]]]], step: float) -> list[float]:
    middle = (len(held) - 1) / 2
    return [(middle - index) * min(step, 3 * step / max(len(held) - 1, 1)) for index in range(len(held))]


def _row(line: Line, used: Usage) -> tuple[object, ...]:
    return (line.name, round(used.gpu_hours, 2), round(used.mean, 2), round(used.peak, 3))


def _summary(held: Sequence[tuple[Line, Sequence[tuple[datetime, float]]]]) -> str:
    if not held:
        return "There is no project yet."
    now = ", ".join(f"{line.name} {points[-1][1]:g}" for line, points in held)
    return SAYS.format(each=now)
