"""Labels at the ends of lines, in place of a legend, moved apart so that they do not overlap.
static/js/charts.js moves them when live values arrive."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GAP_PIXELS = 13.0
# Pixels to the right of the plot: without labels, and the maximum.
NARROW, WIDE = 12, 120
# Estimated width of a letter in pixels; the browser measures the text and shortens what does not fit.
EM_PIXELS = 7.0


@dataclass(frozen=True, slots=True)
class EndLabel:
    """The label at the end of the line `key`; `value`: the line's last value."""

    key: str
    text: str
    value: float
    colour: str


def spread(values: Sequence[float], low: float, high: float, plot_pixels: float) -> list[float]:
    """Return the vertical shift of each label in pixels (negative is down) so that none overlap or leave the plot.
    `low`, `high`: the values at the bottom and top of the plot, which is `plot_pixels` high.

    Labels are placed from the highest value down, equal values in the given order; labels that would leave the plot
    at the bottom push the others up. If there are too many, they share the height evenly.
    """
    units_per_pixel = (high - low) / plot_pixels
    gap = min(GAP_PIXELS, plot_pixels / max(len(values) - 1, 1)) * units_per_pixel
    downwards = sorted(range(len(values)), key=lambda index: (-values[index], index))
    places, ceiling = list(values), high
    for index in downwards:
        places[index] = min(places[index], ceiling)
        ceiling = places[index] - gap
    floor = low
    for index in reversed(downwards):
        places[index] = max(places[index], floor)
        floor = places[index] + gap
    return [(place - value) / units_per_pixel for place, value in zip(places, values, strict=True)]


def most_labels(plot_pixels: float) -> int:
    """Return how many labels fit one below the other in a plot of this height in pixels."""
    return int(plot_pixels // GAP_PIXELS) + 1


def room_for(labels: Sequence[str]) -> int:
    """Return the width in pixels to reserve for labels to the right of the plot. `labels`: may contain {value},
    which counts as three characters; without labels it is NARROW."""
    longest = max((len(label.replace("{value}", "100")) for label in labels), default=0)
    if not longest:
        return NARROW
    return round(min(WIDE, max(40, longest * EM_PIXELS + 12)))


def annotations(
    labels: Sequence[EndLabel], low: float, high: float, plot_pixels: float
) -> list[dict[str, Any]]:
    """Return Plotly annotations to the right of the plot, beside each line's last value, moved apart. `low`,
    `high`: the values at the bottom and top of the plot; `plot_pixels`: its height."""
    shifts = spread([label.value for label in labels], low, high, plot_pixels)
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
