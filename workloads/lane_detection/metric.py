"""The TuSimple lane metric: accuracy, false positives and false negatives of predicted lanes.

A lane is a list of x, one for each y of `h_samples`, -2 where it has no point. `score` follows the
benchmark's own rules, including its oddities (one prediction may match two lanes), so that numbers are
comparable; `strict_score` matches each prediction once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Largest distance in pixels of a matching point, for an upright lane: the benchmark's rule, as are the next two.
PIXELS = 20.0
# Share of matching points that makes a lane match.
MATCHED = 0.85
# With more true lanes than this, one missed lane is not counted.
MOST_LANES = 4
SLOWEST_MS = 200.0
NO_POINT = -100.0

Lane = Sequence[float]


@dataclass(frozen=True, slots=True)
class Score:
    """The rates of one image, or their means over many: 0 to 1 each."""

    accuracy: float
    false_positives: float
    false_negatives: float


def score(
    predicted: Sequence[Lane], true: Sequence[Lane], rows: Sequence[float], run_ms: float = 0.0
) -> Score:
    """Return the score of the lanes `predicted` for one image with the lanes `true`, by the benchmark's rules.
    `rows`: the y of each x in a lane. `run_ms`: the network's time for the image in milliseconds; above
    SLOWEST_MS all lanes count as missed. Raises ValueError for a lane whose length differs from that of `rows`."""
    return _score(predicted, true, rows, run_ms, is_strict=False)


def strict_score(
    predicted: Sequence[Lane], true: Sequence[Lane], rows: Sequence[float], run_ms: float = 0.0
) -> Score:
    """Return the score of one image with each prediction matched to at most one true lane, best pairs first.
    Arguments and errors as in `score`."""
    return _score(predicted, true, rows, run_ms, is_strict=True)


def mean_of(scores: Sequence[Score]) -> Score:
    """Return the mean over images. Raises ValueError if there are none."""
    if not scores:
        raise ValueError("There is no picture to score.")
    columns = zip(
        *((each.accuracy, each.false_positives, each.false_negatives) for each in scores), strict=True
    )
    return Score(*(math.fsum(column) / len(scores) for column in columns))


def _score(
    predicted: Sequence[Lane], true: Sequence[Lane], rows: Sequence[float], run_ms: float, *, is_strict: bool
) -> Score:
    if any(len(lane) != len(rows) for lane in [*predicted, *true]):
        raise ValueError(f"Every lane has a point, or -2, for each of the {len(rows)} rows.")
    if run_ms > SLOWEST_MS or len(predicted) > len(true) + 2:
        return Score(0.0, 0.0, 1.0)
    tolerances = [PIXELS / math.cos(_angle(lane, rows)) for lane in true]
    table = [
        [_accuracy(guess, lane, tolerance) for guess in predicted]
        for lane, tolerance in zip(true, tolerances, strict=True)
    ]
    best = _best_once(table) if is_strict else [max(row, default=0.0) for row in table]
    return _rates(best, len(predicted), len(true))


def _rates(best: Sequence[float], predicted: int, true: int) -> Score:
    """Return the three rates from each true lane's best accuracy. `predicted`, `true`: the numbers of lanes. With
    more than four true lanes the worst is not counted."""
    matched = sum(1 for accuracy in best if accuracy >= MATCHED)
    missed, total = true - matched, math.fsum(best)
    if true > MOST_LANES:
        missed -= 1 if missed > 0 else 0
        total -= min(best)
    counted = max(min(MOST_LANES, true), 1)
    false_positives = (predicted - matched) / predicted if predicted else 0.0
    return Score(total / counted, false_positives, missed / counted)


def _best_once(table: Sequence[Sequence[float]]) -> list[float]:
    """Return the accuracy of each lane if every prediction is used at most once, best pairs first; 0 for an
    unmatched lane. `table[lane][prediction]`: accuracies."""
    pairs = sorted(
        ((accuracy, lane, guess) for lane, row in enumerate(table) for guess, accuracy in enumerate(row)),
        key=lambda pair: (-pair[0], pair[1], pair[2]),
    )
    best, used = dict[int, float](), set[int]()
    for accuracy, lane, guess in pairs:
        if lane not in best and guess not in used:
            best[lane] = accuracy
            used.add(guess)
    return [best.get(lane, 0.0) for lane in range(len(table))]


def _accuracy(guess: Lane, lane: Lane, tolerance: float) -> float:
    """Return the share of rows on which the predicted lane `guess` and `lane` are less than `tolerance` pixels
    apart, or both have no point."""
    pairs = (
        (x if x >= 0 else NO_POINT, true if true >= 0 else NO_POINT)
        for x, true in zip(guess, lane, strict=True)
    )
    return sum(1 for x, true in pairs if abs(x - true) < tolerance) / len(lane)


def _angle(lane: Lane, rows: Sequence[float]) -> float:
    """Return the lane's angle from the vertical in radians, by least squares of x over y; 0 with fewer than
    two points."""
    points = [(x, y) for x, y in zip(lane, rows, strict=True) if x >= 0]
    if len(points) < 2:
        return 0.0
    mean_x = math.fsum(x for x, _ in points) / len(points)
    mean_y = math.fsum(y for _, y in points) / len(points)
    spread = math.fsum((y - mean_y) ** 2 for _, y in points)
    return math.atan(math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / spread) if spread else 0.0
