"""What a figure is drawn from: named lines of (x, value) points, and how they are thinned for a screen."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

MOST_POINTS = 400
X = datetime | float
Point = tuple[X, float]


@dataclass(frozen=True, slots=True)
class Line:
    """One line. `key` is what live values are addressed to; `points` are in x order."""

    key: str
    name: str
    points: tuple[Point, ...]
    palette_index: int | None = None

    @property
    def last(self) -> float | None:
        """The newest value."""
        return self.points[-1][1] if self.points else None


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure with its twin for people who cannot see it: one sentence, and a table."""

    figure: dict[str, Any]
    summary: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]

    def as_json(self) -> dict[str, Any]:
        """What the browser fetches."""
        table = {"columns": list(self.columns), "rows": [list(row) for row in self.rows]}
        return {"figure": self.figure, "summary": self.summary, "table": table}


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most `most` points: of every stretch its first, lowest, highest and last, in order.

    Peaks and dips stay; so do the values at the edges of a stretch, which is what keeps a step line true.
    """
    if len(points) <= most:
        return list(points)
    buckets = most // 4
    edges = [len(points) * bucket // buckets for bucket in range(buckets + 1)]
    kept: list[Point] = []
    for start, end in itertools.pairwise(edges):
        lowest = min(range(start, end), key=lambda index: points[index][1])
        highest = max(range(start, end), key=lambda index: points[index][1])
        kept.extend(points[index] for index in sorted({start, lowest, highest, end - 1}))
    return kept


def edge(x: X) -> str | float:
    """An x value as JSON carries it."""
    return x.isoformat().replace("+00:00", "Z") if isinstance(x, datetime) else x
