"""GPU and memory utilisation of the cluster over time."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from dashboards.charts.labels import EndLabel, annotations
from dashboards.charts.layout import Frame, layout, sliding
from dashboards.charts.palette import palette_for
from dashboards.charts.series import Chart, Line, Point, edge, thin

FRAME = Frame(right=92)
SAYS = "GPU utilisation is {last} now, {mean} on average."  # the browser fills it again as live points come
SAYS_BOTH = "GPU utilisation is {last} now, {mean} on average; memory is {second}."


def utilisation_chart(
    gpu: Sequence[Point],
    memory: Sequence[Point],
    *,
    theme: str,
    start: datetime,
    end: datetime,
    live_seconds: int,
) -> Chart:
    """Two lines of shares (0 to 1), drawn in percent over start..end, which slides with live points."""
    palette = palette_for(theme)
    lines = (
        (Line("gpu_utilization", "GPU", tuple(gpu)), palette.accent, 1.8),
        (Line("gpu_memory_utilization", "memory", tuple(memory)), palette.third, 1.2),
    )
    shape = layout(palette, FRAME, y_range=(0, 104), is_time=True, y_step=25)
    shape |= sliding(shape, start, end, live_seconds)
    says = SAYS_BOTH if memory else SAYS
    shape["meta"] |= {"says": says, "rounds": "share", "points": len(gpu), "mean": _mean(gpu) * 100}
    labels = [
        EndLabel(line.key, f"{line.name} {line.last * 100:.0f} %", line.last * 100, colour)
        for line, colour, _width in lines
        if line.last is not None
    ]
    shape["annotations"] = annotations(labels, 0, 104, FRAME.plot_pixels)
    data = [_trace(line, colour, width) for line, colour, width in lines]
    return Chart(
        {"data": data, "layout": shape},
        _summary(gpu, memory, says),
        ("Time", "GPU %", "Memory %"),
        _rows(gpu, memory),
    )


def _trace(line: Line, colour: str, width: float) -> dict[str, Any]:
    points = thin(line.points)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": line.name,
        "x": [edge(x) for x, _value in points],
        "y": [round(value * 100, 2) for _x, value in points],
        "line": {"color": colour, "width": width},
        "hovertemplate": "%{y:.0f} %",
        "meta": {"key": line.key, "scale": 100, "label": f"{line.name} {{value}} %"},
    }


def _summary(gpu: Sequence[Point], memory: Sequence[Point], says: str) -> str:
    if not gpu:
        return "No utilisation has been recorded in this range yet."
    told = {"last": gpu[-1][1], "mean": _mean(gpu), "second": memory[-1][1] if memory else 0.0}
    return says.format(**{name: f"{value:.0%}" for name, value in told.items()})


def _mean(points: Sequence[Point]) -> float:
    return sum(value for _x, value in points) / len(points) if points else 0.0


def _rows(gpu: Sequence[Point], memory: Sequence[Point]) -> tuple[tuple[object, ...], ...]:
    by_time = dict(memory)
    recent = thin(gpu, 60)
    return tuple(
        (edge(x), round(value * 100, 1), round(by_time[x] * 100, 1) if x in by_time else None)
        for x, value in reversed(recent)
    )
