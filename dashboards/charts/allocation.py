"""Charts of allocated GPUs over time as step lines: all projects, or one project with its quota."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dashboards.charts.figures import SMALL, TALL, Axes, Stroke, line_figure, nice_ceiling, sliding
from dashboards.charts.labels import most_labels
from dashboards.charts.palette import Palette, Theme, palette_for
from dashboards.charts.series import Chart, Line, Point

# The browser fills in the placeholder again when live points arrive.
SAYS = "GPUs at the end of the range: {each}."
# Lines with equal values are drawn this far apart, so that none hides another.
DODGE_PIXELS = 2.2
CAPACITY, TOTAL, QUOTA = "capacity", "total", "quota"
Steps = Sequence[tuple[datetime, float]]


@dataclass(frozen=True, slots=True)
class Usage:
    """A project's use of GPUs over a time range. `mean` and `peak` are in GPUs."""

    gpu_hours: float
    mean: float
    peak: float


@dataclass(frozen=True, slots=True)
class _Held:
    """A project's line, cut to the range."""

    line: Line
    points: Steps


def allocation_chart(
    lines: Sequence[Line],
    *,
    theme: Theme,
    start: datetime,
    end: datetime,
    live_seconds: int | None = None,
    capacity: Sequence[Point] = (),
) -> Chart:
    """Return the figure with one step line per project. Points are (time, GPUs) change points.
    `live_seconds`: length of a range that moves with the current time, None for a fixed one. `capacity`:
    change points of all existing GPUs; if given, the chart is taller and also shows the sum of all projects."""
    palette = palette_for(theme)
    held = [
        _Held(line, carried(line.points, start, end)) for line in sorted(lines, key=lambda line: line.is_gone)
    ]
    whole = _whole(held, capacity, palette, start, end) if capacity else []
    values = [value for one in held for _x, value in one.points]
    values += [value for stroke in whole for _x, value in stroke.points if value is not None]
    top = nice_ceiling(max(values, default=1.0))
    meta = sliding(start, end, live_seconds) | {"says": SAYS, "usage": True, "sorted": True}
    axes = _axes(top, start, end, meta, height=TALL if capacity else SMALL)
    strokes = _project_strokes(held, palette, axes, most_labels(axes.plot_pixels) - len(whole))
    columns = ("Project", "GPU hours", "Mean GPUs", "Peak GPUs")
    rows = tuple(_row(one.line, usage(one.points)) for one in held)
    return Chart(line_figure(strokes + whole, axes, theme=theme), _summary(held), columns, rows)


def quota_chart(
    name: str, palette_index: int, held: Sequence[Point], quota: Sequence[Point], *, theme: Theme,
    start: datetime, end: datetime, live_seconds: int | None = None,
) -> Chart:  # fmt: skip
    """Return the figure of one project's allocated GPUs (`held`) and its `quota`, both as (time, GPUs) change
    points, over start..end. `palette_index`: its colour. `live_seconds`: length of a range that moves with the
    current time, None for a fixed one."""
    palette = palette_for(theme)
    used, allowed = carried(held, start, end), carried(quota, start, end, is_known_before=True)
    top = nice_ceiling(max(value for _x, value in [*used, *allowed]))
    says = f"{name} holds {{last}} GPUs, its quota is {{second}}; it held {{high}} at most in this range."
    axes = _axes(top, start, end, sliding(start, end, live_seconds) | {"says": says})
    strokes = [
        Stroke(
            f"project:{name}",
            "allocated",
            used,
            palette.project(palette_index),
            is_step=True,
            label="allocated",
        ),
        Stroke(QUOTA, "quota", allowed, palette.text, width=1.2, dash="dash", is_step=True, label="quota"),
    ]
    summary = says.format(
        last=_short(used[-1][1]), second=_short(allowed[-1][1]), high=_short(usage(used).peak)
    )
    columns = ("From", "Allocated GPUs", "Quota, GPUs")
    return Chart(line_figure(strokes, axes, theme=theme), summary, columns, _quota_rows(used, allowed))


def _axes(top: float, start: datetime, end: datetime, meta: dict[str, Any], height: int = SMALL) -> Axes:
    y_range = (-0.04 * top, top * 1.04)
    return Axes("Time", "GPUs", y_range, unit="GPUs", x_range=(start, end), height=height, meta=meta)


def carried(
    points: Sequence[Point], start: datetime, end: datetime, *, is_known_before: bool = False
) -> list[tuple[datetime, float]]:
    """Return change points as a line over exactly start..end: it begins with the value valid at the start,
    and the last value extends to the end. Before the first point the value is 0 or, if `is_known_before`,
    that of the first point."""
    value, inside = (points[0][1] if is_known_before and points else 0.0), []
    for at, level in points:
        assert isinstance(at, datetime)
        if at <= start:
            value = level
        elif at < end:
            inside.append((at, level))
    line = [(start, value), *inside]
    return [*line, (end, line[-1][1])]


def usage(points: Steps) -> Usage:
    """Return the GPU hours, mean and peak of a step line of (time, GPUs)."""
    pairs = list(itertools.pairwise(points))
    seconds = (points[-1][0] - points[0][0]).total_seconds()
    area = sum(value * (after - at).total_seconds() for (at, value), (after, _next) in pairs)
    return Usage(area / 3600, area / seconds if seconds else 0.0, max(value for _at, value in points))


def summed(lines: Sequence[Steps]) -> list[tuple[datetime, float]]:
    """Return the sum of step lines, as a step line with a point at every change of one of them."""
    changes: dict[datetime, float] = {}
    for line in lines:
        before = 0.0
        for at, value in line:
            changes[at] = changes.get(at, 0.0) + value - before
            before = value
    times = sorted(changes)
    return list(zip(times, itertools.accumulate(changes[at] for at in times), strict=True))


def _project_strokes(held: Sequence[_Held], palette: Palette, axes: Axes, most: int) -> list[Stroke]:
    low, high = axes.y_range
    shifts = _shifts(len(held), DODGE_PIXELS * (high - low) / axes.plot_pixels)
    ranked = sorted(held, key=lambda one: (one.line.is_gone, -one.points[-1][1]))
    named = {one.line.key for one in ranked[:most]}
    return [
        Stroke(
            f"project:{one.line.key}",
            one.line.name,
            one.points,
            palette.third if one.line.is_gone else palette.project(one.line.palette_index or 0),
            dash="dot" if one.line.is_gone else "solid",
            is_step=True,
            is_muted=one.line.is_gone,
            shift=shift,
            label=one.line.name if one.line.key in named else "",
        )
        for one, shift in zip(held, shifts, strict=True)
    ]


def _whole(
    held: Sequence[_Held], capacity: Sequence[Point], palette: Palette, start: datetime, end: datetime
) -> list[Stroke]:
    room = carried(capacity, start, end, is_known_before=True)
    whole = summed([one.points for one in held])
    limit = Stroke(
        CAPACITY, "capacity", room, palette.text, width=1.2, dash="dash", is_step=True, label="capacity"
    )
    if len(held) < 2:
        return [limit]
    total = Stroke(
        TOTAL, "all projects", whole, palette.second, width=1.2, is_step=True, label="all projects"
    )
    return [total, limit]


def _shifts(count: int, step: float) -> list[float]:
    middle = (count - 1) / 2
    return [(middle - index) * min(step, 3 * step / max(count - 1, 1)) for index in range(count)]


def _row(line: Line, used: Usage) -> tuple[object, ...]:
    return (line.name, round(used.gpu_hours, 2), round(used.mean, 2), round(used.peak, 2))


def _quota_rows(used: Steps, allowed: Steps) -> tuple[tuple[object, ...], ...]:
    """Return (time, allocated GPUs, quota) for the newest 60 changes of the lines `used` and `allowed`, newest first,
    without the end of the range."""
    times = sorted({at for line in (used, allowed) for at, _value in line[:-1]})[-60:]
    at_time = [(at, _value_at(used, at), _value_at(allowed, at)) for at in reversed(times)]
    return tuple((at.isoformat().replace("+00:00", "Z"), held, quota) for at, held, quota in at_time)


def _value_at(line: Steps, at: datetime) -> float:
    return next((value for time, value in reversed(line) if time <= at), 0.0)


def _short(value: float) -> str:
    return f"{value:.4g}"


def _summary(held: Sequence[_Held]) -> str:
    if not held:
        return "There is no project yet."
    now = ", ".join(f"{one.line.name} {one.points[-1][1]:g}" for one in held)
    return SAYS.format(each=now)
