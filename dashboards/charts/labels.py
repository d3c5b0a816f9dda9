"""Names at the ends of lines instead of a legend, kept apart. static/js/charts.js moves them as live values come."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GAP_PIXELS = 13.0


@dataclass(frozen=True, slots=True)
class EndLabel:
    """What stands at the end of the line `key`, whose last value is `value`."""

    key: str
    text: str
    value: float
    colour: str


def spread(values: Sequence[float], units_per_pixel: float, gap_pixels: float = GAP_PIXELS) -> list[float]:
    """How many pixels each label moves (negative is down) so that no two are closer than the gap.

    Labels go from the highest value down; equal values keep their order.
    """
    shifts = [0.0] * len(values)
    ceiling = float("inf")
    for index in sorted(range(len(values)), key=lambda index: (-values[index], index)):
        place = min(values[index], ceiling)
        shifts[index] = (place - values[index]) / units_per_pixel
        ceiling = place - gap_pixels * units_per_pixel
    return shifts


def annotations(
    labels: Sequence[EndLabel], low: float, high: float, plot_pixels: float
) -> list[dict[str, Any]]:
    """Plotly annotations right of the plot, beside each line's last value."""
    units_per_pixel = (high - low) / plot_pixels
    shifts = spread([label.value for label in labels], units_per_pixel)
    return [
        {
            "name": label.key,
            "text": label.text,
            "x": 1,
            "xref": "paper",
            "xanchor": "left",
            "xshift": 6,
            "y": label.value,
            "yref": "y",
            "yanchor": "middle",
            "yshift": shift,
            "showarrow": False,
            "font": {"color": label.colour, "size": 11},
        }
        for label, shift in zip(labels, shifts, strict=True)
    ]
