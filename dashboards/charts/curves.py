"""Charts of one metric of a job over its steps, such as loss or accuracy; all attempts on one line."""

from collections.abc import Sequence
from dataclasses import dataclass

from dashboards.charts.figures import Axes, Mark, Stroke, line_figure, nice_ceiling
from dashboards.charts.palette import Palette, Theme, palette_for
from dashboards.charts.series import Chart, Gapped, Point, edge, thin

ROWS_MOST = 60
StepPoint = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """How to draw a metric. `key`: its name in progress lines; `scale`: factor for stored values; `colour`: name of
    a palette colour; `ceiling`: top of the axis, None to fit the values."""

    key: str
    name: str
    unit: str
    colour: str
    scale: float = 1.0
    ceiling: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The values that one attempt reported: (step, value) in the order of its output."""

    attempt: int
    points: tuple[StepPoint, ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """All attempts as one curve. `redone`: values that a later attempt computed again; `marks`: steps at
    which an attempt begins or resumes."""

    points: list[StepPoint]
    redone: list[Gapped]
    marks: list[Mark]


CURVES = {
    "loss": Curve("loss", "Loss", "", "accent"),
    "accuracy": Curve("accuracy", "Accuracy", "%", "good", scale=100.0, ceiling=100.0),
    "samples_per_second": Curve("samples_per_second", "Samples per second", "", "good"),
}


def joined(runs: Sequence[Run]) -> Joined:
    """Return the runs of all attempts as one curve with increasing steps. If an attempt resumes at an earlier
    step, the previous attempt's values from that step on go to `redone`."""
    points: list[StepPoint] = []
    redone: list[Gapped] = []
    marks: list[Mark] = []
    for run in runs:
        if not run.points:
            continue
        first = run.points[0][0]
        kept = [point for point in points if point[0] < first]
        if len(kept) < len(points):
            redone.extend([*points[len(kept) :], (points[-1][0], None)])
        if points or run.attempt > 1:
            marks.append(Mark(first, f"attempt {run.attempt}"))
        points = [*kept, *run.points]
    return Joined(points, redone[:-1] if redone else [], marks)


def curve_chart(curve: Curve, runs: Sequence[Run], *, theme: Theme, marks: Sequence[Mark] = ()) -> Chart:
    """Return the figure of one metric over steps. `runs`: values as stored, not scaled; `marks`: events at steps,
    in addition to the starts of attempts."""
    palette, whole = palette_for(theme), joined(runs)
    whole.marks.extend(marks)
    scaled = [(x, value * curve.scale) for x, value in whole.points]
    redone = [(x, None if value is None else value * curve.scale) for x, value in whole.redone]
    known = [value for _x, value in [*scaled, *redone] if value is not None]
    top = curve.ceiling or nice_ceiling(max(known, default=1.0))
    unit = f" {curve.unit}" if curve.unit else ""
    title = f"{curve.name}, {curve.unit}" if curve.unit else curve.name
    says = f"{curve.name} is {{last}}{unit}; lowest {{low}}{unit}, highest {{high}}{unit}."
    axes = Axes(
        "Step",
        title,
        (0, top * 1.04),
        unit=curve.unit,
        is_time=False,
        y_step=50 if curve.ceiling == 100 else None,
        meta={"span_seconds": None, "says": says},
    )
    colour = _colour(palette, curve.colour)
    strokes = [Stroke(curve.key, curve.name, scaled, colour, width=1.6, scale=curve.scale)]
    if redone:
        strokes.append(Stroke("redone", "before it was redone", redone, colour, width=1.2, is_muted=True))
    figure = line_figure(strokes, axes, theme=theme, marks=whole.marks)
    rows = tuple((edge(x), float(f"{value:.5g}")) for x, value in reversed(_thin(scaled)))
    return Chart(figure, _summary(curve, scaled, says, whole.marks), ("Step", title), rows)


def _thin(points: Sequence[Point]) -> list[Point]:
    return [(x, value) for x, value in thin(points, ROWS_MOST) if value is not None]


def _summary(curve: Curve, scaled: Sequence[Point], says: str, marks: Sequence[Mark]) -> str:
    if not scaled:
        return f"{curve.name}: nothing has been recorded yet."
    values = [value for _x, value in scaled]
    figures = {"last": values[-1], "low": min(values), "high": max(values)}
    return says.format(**{name: f"{value:.4g}" for name, value in figures.items()})


def _colour(palette: Palette, name: str) -> str:
    return {"accent": palette.accent, "good": palette.good, "warning": palette.warning}[name]
