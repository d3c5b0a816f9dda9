"""Input of figures: named lines of (x, value) points, and reducing the number of points for a screen."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

MOST_POINTS = 400
X = datetime | float
Point = tuple[X, float]
TimePoint = tuple[datetime, float]
# A value of None interrupts the line.
Gapped = tuple[X, float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """One line. `key`: addresses live values to it; `points`: sorted by x; `palette_index`: its project's colour,
    None for a line of no project. `is_gone`: its subject was deleted."""

    key: str
    name: str
    points: tuple[Point, ...]
    palette_index: int | None = None
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A Plotly figure as JSON data with its accessible equivalents: a sentence, and a table with `columns` and
    `rows`."""

    figure: dict[str, Any]
    summary: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]

    def as_json(self) -> dict[str, Any]:
        """Return {"figure", "summary", "table"}, which static/js/charts.js draws."""
        table = {"columns": list(self.columns), "rows": [list(row) for row in self.rows]}
        return {"figure": self.figure, "summary": self.summary, "table": table}


def thin(points: Sequence[Gapped], most: int = MOST_POINTS) -> list[Gapped]:
    """Return at most `most` points: the first, lowest, highest and last of each section, in order.

    Keeps peaks and dips; keeping the first and last values preserves step lines.
    """
    if len(points) <= most:
        return list(points)
    buckets = most // 4
    edges = [len(points) * bucket // buckets for bucket in range(buckets + 1)]
    kept: list[Gapped] = []
    for start, end in itertools.pairwise(edges):
        known = [index for index in range(start, end) if points[index][1] is not None] or [start]
        lowest = min(known, key=lambda index: points[index][1] or 0.0)
        highest = max(known, key=lambda index: points[index][1] or 0.0)
        kept.extend(points[index] for index in sorted({start, lowest, highest, end - 1}))
    return kept


def with_gaps(points: Sequence[TimePoint], longest: timedelta) -> list[Gapped]:
    """Return the points, with a point of value None between two points that are more than `longest` apart, so
    that the line breaks there."""
    line: list[Gapped] = []
    for (before, _value), (at, value) in itertools.pairwise([*points[:1], *points]):
        if at - before > longest:
            line.append((before + longest, None))
        line.append((at, value))
    return line


def percent(share: float) -> str:
    """Return a share in words, as the pages write it: 0.97 -> "97 %"."""
    return f"{share * 100:.0f}\u00a0%"


def edge(x: X) -> str | float:
    """Return an x value in JSON form: a time in ISO format with Z, a number unchanged."""
    return x.isoformat().replace("+00:00", "Z") if isinstance(x, datetime) else x
