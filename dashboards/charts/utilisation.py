"""Charts of GPU and memory utilisation over time: of the cluster, of a node with its devices, of a job."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from dashboards.charts.figures import SMALL, Axes, Mark, Stroke, line_figure, sliding
from dashboards.charts.palette import Theme, palette_for
from dashboards.charts.series import Chart, Line, Point, TimePoint, edge, percent, thin, with_gaps

# The browser fills in the placeholders again when live points arrive.
SAYS = "GPU utilisation is {last} now, {mean} on average."
SAYS_BOTH = "GPU utilisation is {last} now, {mean} on average; memory is {second}."
ROWS_MOST = 60


def utilisation_chart(
    gpu: Sequence[Point],
    memory: Sequence[Point],
    *,
    theme: Theme,
    start: datetime,
    end: datetime,
    live_seconds: int | None,
    height: int = SMALL,
) -> Chart:
    """Return the figure of the lines `gpu` and `memory`, shares from 0 to 1, drawn in percent over start..end.
    `live_seconds`: length of a range that moves with the current time, None for a fixed one. `height`: of the
    chart, in pixels."""
    palette = palette_for(theme)
    says = SAYS_BOTH if memory else SAYS
    meta = {"says": says, "rounds": "share", "points": len(gpu), "mean": _mean(gpu) * 100}
    axes = _percent_axes("Share, %", start, end, live_seconds, height=height, meta=meta)
    strokes = [
        Stroke("gpu_utilization", "GPU", _percent(gpu), palette.accent, scale=100, label="GPU {value} %"),
        Stroke(
            "gpu_memory_utilization", "memory", _percent(memory), palette.third, width=1.2, scale=100,
            label="memory {value} %",
        ),
    ]  # fmt: skip
    figure = line_figure(strokes, axes, theme=theme)
    return Chart(figure, _summary(gpu, memory, says), ("Time", "GPU %", "Memory %"), _rows([gpu, memory]))


def device_chart(
    what: str, whole: Line, devices: Sequence[Line], *, theme: Theme, start: datetime, end: datetime
) -> Chart:
    """Return the figure of a node's line `whole` with a thin line per device: shares from 0 to 1, drawn in
    percent. `what`: "utilisation" or "memory", for the summary."""
    palette = palette_for(theme)
    strokes = [
        Stroke(
            line.key,
            line.name,
            _percent(line.points),
            palette.third,
            width=1.0,
            is_muted=True,
            label=line.name,
        )
        for line in devices
    ]
    strokes.append(
        Stroke(
            whole.key, whole.name, _percent(whole.points), palette.accent, label=f"{whole.name} {{value}} %"
        )
    )
    axes = _percent_axes("Share, %", start, end, None, meta={"sorted": True})
    figure = line_figure(strokes, axes, theme=theme)
    columns = ("Time", f"{whole.name} %", *(f"{line.name} %" for line in devices))
    rows = _rows([whole.points, *(line.points for line in devices)])
    return Chart(figure, _device_summary(what, whole, devices), columns, rows)


def job_use_chart(
    name: str, key: str, points: Sequence[TimePoint], marks: Sequence[Mark], *, theme: Theme, unit: str,
    scale: float, top: float, longest_gap: timedelta, span: tuple[datetime, datetime],
    live_seconds: int | None,
) -> Chart:  # fmt: skip
    """Return the figure of a job's use over time, with a gap where points are more than `longest_gap` apart.
    `key`: addresses live values to the line; `scale`: factor for the values, to `unit`; `top`: the scaled value
    at the top of the axis; `marks`: the starts of its attempts; `span`: start and end of the axis.
    `live_seconds`: length of a range that moves with the current time, None for a fixed one."""
    palette = palette_for(theme)
    scaled = [(x, value * scale) for x, value in points]
    says = f"{name} is {{last}} {unit}; lowest {{low}} {unit}, highest {{high}} {unit}."
    meta = sliding(*span, live_seconds) | {"says": says}
    axes = Axes("Time", f"{name}, {unit}", (0, top * 1.04), unit, x_range=span, meta=meta, y_step=_half(top))
    stroke = Stroke(key, name, with_gaps(scaled, longest_gap), palette.accent, width=1.6, scale=scale)
    figure = line_figure([stroke], axes, theme=theme, marks=marks)
    summary = f"{name}: nothing has been recorded yet."
    if scaled:
        values = [value for _x, value in scaled]
        figures = {"last": values[-1], "low": min(values), "high": max(values)}
        summary = says.format(**{slot: f"{value:.4g}" for slot, value in figures.items()})
    rows = tuple((edge(x), float(f"{value:.4g}")) for x, value in reversed(_known(thin(scaled, ROWS_MOST))))
    return Chart(figure, summary, ("Time", f"{name}, {unit}"), rows)


def _percent_axes(
    title: str, start: datetime, end: datetime, live_seconds: int | None, *, height: int = SMALL,
    meta: dict[str, Any] | None = None,
) -> Axes:  # fmt: skip
    moves = sliding(start, end, live_seconds) | (meta or {})
    return Axes("Time", title, (0, 104), "%", x_range=(start, end), y_step=25, height=height, meta=moves)


def _percent(points: Sequence[Point]) -> list[Point]:
    return [(x, round(value * 100, 2)) for x, value in points]


def _half(top: float) -> float | None:
    return 50 if top == 100 else None


def _known(points: Sequence[tuple[Any, float | None]]) -> list[Point]:
    return [(x, value) for x, value in points if value is not None]


def _summary(gpu: Sequence[Point], memory: Sequence[Point], says: str) -> str:
    if not gpu:
        return "No utilisation has been recorded in this range yet."
    figures = {"last": gpu[-1][1], "mean": _mean(gpu), "second": memory[-1][1] if memory else 0.0}
    return says.format(**{name: percent(value) for name, value in figures.items()})


def _device_summary(what: str, whole: Line, devices: Sequence[Line]) -> str:
    if not whole.points:
        return f"No {what} of {whole.name} has been recorded in this range yet."
    now, mean = whole.points[-1][1], _mean(whole.points)
    sentence = f"{what.capitalize()} of {whole.name} is {percent(now)} now, {percent(mean)} on average"
    means = sorted((_mean(line.points), line.name) for line in devices if line.points)
    if len(means) < 2:
        return f"{sentence}."
    (low, least), (high, most) = means[0], means[-1]
    return f"{sentence}; from {percent(low)} on {least} to {percent(high)} on {most}."


def _mean(points: Sequence[Point]) -> float:
    return sum(value for _x, value in points) / len(points) if points else 0.0


def _rows(lines: Sequence[Sequence[Point]]) -> tuple[tuple[object, ...], ...]:
    """Return one row per time of the first line, newest first, with the values of all lines in percent, None where a
    line has none."""
    others = [dict(line) for line in lines]
    times = [x for x, _value in thin(lines[0], ROWS_MOST)]
    return tuple(
        (edge(x), *(round(values[x] * 100, 1) if x in values else None for values in others))
        for x in reversed(times)
    )
