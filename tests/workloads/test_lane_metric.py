"""The TuSimple metric on pictures whose score is known by hand."""

import pytest

from workloads.lane_detection.metric import Score, mean_of, score, strict_score

ROWS = list(range(240, 720, 10))  # 48 rows, as in the benchmark


def lane(x: float, lean: float = 0.0) -> list[float]:
    return [x + lean * (y - 240) for y in ROWS]


def without(points: list[float], count: int) -> list[float]:
    """The lane with its first points missing."""
    return [-2.0] * count + points[count:]


def test_a_perfect_prediction():
    true = [lane(100), lane(400, 0.5), without(lane(700), 10)]
    assert score(true, true, ROWS) == strict_score(true, true, ROWS) == Score(1.0, 0.0, 0.0)


def test_points_count_one_by_one_and_a_match_needs_85_percent():
    near, far = [119.0] * 48, [121.0] * 48
    assert score([near], [lane(100)], ROWS) == Score(1.0, 0.0, 0.0)
    assert score([far], [lane(100)], ROWS) == Score(0.0, 1.0, 1.0)
    most = [119.0] * 41 + [121.0] * 7
    assert score([most], [lane(100)], ROWS) == Score(41 / 48, 0.0, 0.0)
    fewer = [119.0] * 40 + [121.0] * 8
    assert score([fewer], [lane(100)], ROWS) == Score(40 / 48, 1.0, 1.0)


def test_a_leaning_lane_is_given_more_room():
    leaning = lane(100, 2.0)  # cos(atan 2) = 0.447: 44.7 pixels
    assert score([[x + 44 for x in leaning]], [leaning], ROWS).accuracy == 1.0
    assert score([[x + 46 for x in leaning]], [leaning], ROWS).accuracy == 0.0


def test_rows_without_a_point_on_both_sides_agree():
    assert score([without(lane(100), 24)], [without(lane(100), 24)], ROWS).accuracy == 1.0
    assert score([lane(100)], [without(lane(100), 24)], ROWS).accuracy == 0.5


def test_nothing_predicted_and_nothing_there():
    assert score([], [lane(100)], ROWS) == Score(0.0, 0.0, 1.0)
    assert score([], [], ROWS) == Score(0.0, 0.0, 0.0)
    assert score([lane(100)], [], ROWS) == Score(0.0, 1.0, 0.0)


def test_too_many_predictions_or_too_slow_ones_count_nothing():
    assert score([lane(100)] * 4, [lane(100)], ROWS) == Score(0.0, 0.0, 1.0)
    assert score([lane(100)], [lane(100)], ROWS, run_ms=201) == Score(0.0, 0.0, 1.0)


def test_of_more_than_four_lanes_the_worst_is_forgiven():
    five = [lane(x) for x in (100, 300, 500, 700, 900)]
    assert score(five[:4], five, ROWS) == Score(1.0, 0.0, 0.0)
    assert score(five[:3], five, ROWS) == Score(0.75, 0.0, 0.25)


def test_one_prediction_may_match_two_lanes_but_not_strictly():
    twins = [lane(100), lane(110)]
    assert score([lane(105)], twins, ROWS) == Score(1.0, -1.0, 0.0)
    assert strict_score([lane(105)], twins, ROWS) == Score(0.5, 0.0, 0.5)


def test_a_lane_of_another_length_is_an_error():
    with pytest.raises(ValueError, match="48 rows"):
        score([[100.0]], [lane(100)], ROWS)


def test_the_mean_over_pictures():
    assert mean_of([Score(1.0, 0.0, 0.0), Score(0.5, 1.0, 0.5)]) == Score(0.75, 0.5, 0.25)
    with pytest.raises(ValueError, match="no picture"):
        mean_of([])
