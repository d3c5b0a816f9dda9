"""Names at the ends of lines instead of a legend, kept apart. static/js/charts.js moves them as live values come."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GAP_PIXELS = 13.0
# Pixels right of the plot: without labels, and at most.
NARROW, WIDE = 12, 120
# Of a letter; the browser measures the text and shortens what does not fit.
EM_PIXELS = 7.0


@dataclass(frozen=True, slots=True)
class EndLabel:
    """The label at the end of the line `key`; `value` is the line's last value."""

    key: str
    text: str
    value: float
    colour: str


def spread(values: Sequence[float], low: float, high: float, plot_pixels: float) -> list[float]:
    """Return how many pixels each label moves (negative is down) so that none overlap and none leave the plot.

    Labels go from the highest value down, equal values in their order; those that would fall out at the bottom push
    the others up. More labels than fit share the height evenly.
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
    """Return how many labels fit beside each other without touching."""
    return int(plot_pixels // GAP_PIXELS) + 1


def room_for(labels: Sequence[str]) -> int:
    """Return the pixels that labels need right of the plot, whatever the value in them is."""
    longest = max((len(label.replace("{value}", "100")) for label in labels), default=0)
    if not longest:
        return NARROW
    return round(min(WIDE, max(40, longest * EM_PIXELS + 12)))


def annotations(
    labels: Sequence[EndLabel], low: float, high: float, plot_pixels: float
) -> list[dict[str, Any]]:
    """Return Plotly annotations right of the plot, beside each line's last value."""
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
