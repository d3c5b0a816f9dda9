"""One curve of a job: loss or accuracy over steps, GPU use over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.charts.layout import Frame, layout, nice_ceiling
from dashboards.charts.palette import Palette, palette_for
from dashboards.charts.series import Chart, Point, edge, thin

FRAME = Frame(height=150, left=34, right=8)


@dataclass(frozen=True, slots=True)
class Curve:
    """What a curve shows. `scale` multiplies stored values; `colour` names a colour of the palette."""

    key: str
    name: str
    unit: str
    colour: str
    scale: float = 1.0
    is_time: bool = False
    ceiling: float | None = None


CURVES = {
    "loss": Curve("loss", "Loss", "", "accent"),
    "accuracy": Curve("accuracy", "Accuracy", "%", "good", scale=100.0, ceiling=100.0),
    "gpu_utilization": Curve(
        "gpu_utilization", "GPU use", "%", "accent", scale=100.0, is_time=True, ceiling=100.0
    ),
}


def curve_chart(curve: Curve, points: Sequence[Point], *, theme: str) -> Chart:
    """The figure of one curve; points in x order, values as stored."""
    palette = palette_for(theme)
    scaled = [(x, value * curve.scale) for x, value in points]
    top = curve.ceiling or nice_ceiling(max((value for _x, value in scaled), default=1.0))
    shape = layout(
        palette,
        FRAME,
        y_range=(0, top * 1.04),
        is_time=curve.is_time,
        y_step=50 if curve.ceiling == 100 else None,
    )
    unit = f" {curve.unit}" if curve.unit else ""
    says = f"{curve.name} is {{last}}{unit}; lowest {{low}}{unit}, highest {{high}}{unit}."
    shape["meta"] = {"span_seconds": None, "says": says}
    shown = thin(scaled)
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines" if len(shown) > 1 else "markers",
        "name": curve.name,
        "x": [edge(x) for x, _value in shown],
        "y": [value for _x, value in shown],
        "line": {"color": _colour(palette, curve.colour), "width": 1.6},
        "hovertemplate": f"%{{y:.4~g}}{unit}",
        "meta": {"key": curve.key, "scale": curve.scale},
    }
    rows = tuple((edge(x), float(f"{value:.5g}")) for x, value in reversed(thin(scaled, 60)))
    columns = ("Time" if curve.is_time else "Step", f"{curve.name}{unit}")
    return Chart({"data": [trace], "layout": shape}, _summary(curve, scaled, says), columns, rows)


def _summary(curve: Curve, scaled: Sequence[Point], says: str) -> str:
    if not scaled:
        return f"{curve.name}: nothing has been recorded yet."
    values = [value for _x, value in scaled]
    told = {"last": values[-1], "low": min(values), "high": max(values)}
    return says.format(**{name: f"{value:.4g}" for name, value in told.items()})


def _colour(palette: Palette, name: str) -> str:
    return {"accent": palette.accent, "good": palette.good, "warning": palette.warning}[name]
