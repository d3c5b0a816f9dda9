"""Charts of a scaling report: throughput, efficiency and communication time by number of workers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dashboards.charts.figures import Axes, Stroke, line_figure, nice_ceiling
from dashboards.charts.palette import Theme, palette_for
from dashboards.charts.series import Chart, percent

MOST_TICKS = 8


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one run. `allreduce_share`, `gpu_utilization`: 0 to 1; they and the memory are None if the
    program does not report them."""

    workers: int
    samples_per_second: float
    allreduce_share: float | None = None
    gpu_utilization: float | None = None
    gpu_memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Scaled:
    """A run compared with the run of fewest workers. `speed_up`: relative to one worker, assuming that the
    smallest run scaled ideally; `efficiency`: `speed_up` divided by the number of workers."""

    run: Measured
    speed_up: float
    efficiency: float


def scaled(runs: Sequence[Measured]) -> list[Scaled]:
    """Return the runs in order of their workers, each compared with the smallest run. Rates must be above 0."""
    ordered = sorted(runs, key=lambda run: run.workers)
    found = []
    for run in ordered:
        speed_up = run.samples_per_second / ordered[0].samples_per_second * ordered[0].workers
        found.append(Scaled(run, speed_up, speed_up / run.workers))
    return found


def throughput_chart(runs: Sequence[Measured], theme: Theme) -> Chart:
    """Return the figure of samples per second, with the ideal line extrapolated from the smallest run."""
    palette, found = palette_for(theme), scaled(runs)
    rates = [(float(one.run.workers), one.run.samples_per_second) for one in found]
    ideal = [(x, found[0].run.samples_per_second / found[0].run.workers * x) for x, _rate in rates]
    top = nice_ceiling(max((y for _x, y in [*rates, *ideal]), default=1.0))
    # The axis has space for labels of four characters.
    unit, scale = ("1,000 samples/s", 1000) if top >= 1000 else ("samples/s", 1)
    axes = _axes(unit, top / scale, unit, found)
    shown, best = ([(x, y / scale) for x, y in points] for points in (rates, ideal))
    strokes = [
        Stroke("ideal", "ideal", best, palette.warning, width=1.4, dash="dash", label="ideal"),
        Stroke("measured", "measured", shown, palette.accent, label="measured"),
    ]
    rows = tuple((int(x), _short(y), _short(best)) for (x, y), (_x, best) in zip(rates, ideal, strict=True))
    words = _sentence(found, lambda last: f"{last.speed_up:.2f} times as fast as one")
    return Chart(
        line_figure(strokes, axes, theme=theme), words, ("Workers", "Samples per second", "Ideal"), rows
    )


def efficiency_chart(runs: Sequence[Measured], theme: Theme) -> Chart:
    """Return the figure of efficiency by number of workers: speed-up in percent of the ideal."""
    palette, found = palette_for(theme), scaled(runs)
    points = [(float(one.run.workers), one.efficiency * 100) for one in found]
    top = max(100.0, nice_ceiling(max((y for _x, y in points), default=100.0)))
    strokes = [
        Stroke("ideal", "ideal", [(x, 100.0) for x, _y in points], palette.warning, width=1.4, dash="dash"),
        Stroke("efficiency", "efficiency", points, palette.good),
    ]
    rows = tuple((one.run.workers, _short(one.speed_up), _short(one.efficiency * 100)) for one in found)
    words = _sentence(found, lambda last: f"{percent(last.efficiency)} of the ideal speed-up")
    figure = line_figure(strokes, _axes("Efficiency, %", top, "%", found), theme=theme)
    return Chart(figure, words, ("Workers", "Speed-up", "Efficiency, %"), rows)


def allreduce_chart(runs: Sequence[Measured], theme: Theme) -> Chart:
    """Return the chart of the share of step time spent in all-reduce, by number of workers. Omits runs that did not
    measure it."""
    palette, found = palette_for(theme), [one for one in scaled(runs) if one.run.allreduce_share is not None]
    points = [(float(one.run.workers), (one.run.allreduce_share or 0.0) * 100) for one in found]
    strokes = [Stroke("allreduce", "all-reduce", points, palette.accent)]
    rows = tuple((int(x), _short(y)) for x, y in points)
    figure = line_figure(strokes, _axes("% of a step", 100.0, "%", found), theme=theme)
    words = _sentence(
        found, lambda last: f"all-reduce under way in {percent(last.run.allreduce_share or 0)} of a step"
    )
    return Chart(figure, words, ("Workers", "All-reduce, % of a step"), rows)


CHARTS: dict[str, Callable[[Sequence[Measured], Theme], Chart]] = {
    "throughput": throughput_chart,
    "efficiency": efficiency_chart,
    "allreduce": allreduce_chart,
}


def _axes(title: str, top: float, unit: str, found: Sequence[Scaled]) -> Axes:
    span = found[-1].run.workers - found[0].run.workers if found else 1
    step = max(1, math.ceil(span / MOST_TICKS))
    meta = {"span_seconds": None}
    return Axes("Workers", title, (0, top * 1.04), unit=unit, is_time=False, x_step=step, meta=meta)


def _sentence(found: Sequence[Scaled], of_last: Callable[[Scaled], str]) -> str:
    if not found:
        return "No run has reported it yet."
    workers = found[-1].run.workers
    return f"With {workers} worker{'s' if workers > 1 else ''}: {of_last(found[-1])}."


def _short(value: float) -> float:
    return float(f"{value:.4g}")
