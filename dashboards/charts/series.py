"""What a figure is drawn from: named lines of (x, value) points, and how they are thinned for a screen."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

MOST_POINTS = 400
X = datetime | float
Point = tuple[X, float]
TimePoint = tuple[datetime, float]
# None: the line is interrupted.
Gapped = tuple[X, float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """One line. `key` is what live values are addressed to; `points` are in x order. `is_gone`: what it is about has
    been deleted."""

    key: str
    name: str
    points: tuple[Point, ...]
    palette_index: int | None = None
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure with its equivalents for people who cannot see it: one sentence, and a table."""

    figure: dict[str, Any]
    summary: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]

    def as_json(self) -> dict[str, Any]:
        """Return what the browser fetches."""
        table = {"columns": list(self.columns), "rows": [list(row) for row in self.rows]}
        return {"figure": self.figure, "summary": self.summary, "table": table}


def thin(points: Sequence[Gapped], most: int = MOST_POINTS) -> list[Gapped]:
    """Return at most `most` points: of every stretch its first, lowest, highest and last, in order.

    Peaks and dips stay; so do the values at the edges of a stretch, which is what keeps a step line true.
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
    """Return points over time with an interruption wherever two of them are further apart than `longest`."""
    line: list[Gapped] = []
    for (before, _value), (at, value) in itertools.pairwise([*points[:1], *points]):
        if at - before > longest:
            line.append((before + longest, None))
        line.append((at, value))
    return line


def edge(x: X) -> str | float:
    """Return an x value as JSON carries it."""
    return x.isoformat().replace("+00:00", "Z") if isinstance(x, datetime) else x
