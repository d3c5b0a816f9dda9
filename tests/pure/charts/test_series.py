"""Thinning keeps what the eye would see; labels at the line ends never overlap."""

import itertools
from datetime import UTC, datetime, timedelta
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards.charts.labels import GAP_PIXELS, spread
from dashboards.charts.series import MOST_POINTS, edge, thin

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_short_lines_are_left_alone():
    points = [(float(x), float(x * x)) for x in range(MOST_POINTS)]
    assert thin(points) == points


@settings(max_examples=50)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40),
    st.integers(MOST_POINTS + 1, 3000),
    st.integers(0, 2**32),
)
def test_thinning_keeps_ends_extremes_and_order(drawn: list[float], count: int, seed: int):
    # A list of so many drawn floats takes a hundred times as long to make.
    dice = Random(seed)
    values = dice.choices([*drawn, *(dice.uniform(-1e6, 1e6) for _ in range(400))], k=count)
    points = list(enumerate(values))
    kept = thin(points)
    assert len(kept) <= MOST_POINTS
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert kept == sorted(kept, key=lambda point: point[0])
    assert set(kept) <= set(points)
    assert min(value for _x, value in kept) == min(values)
    assert max(value for _x, value in kept) == max(values)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.floats(50, 400))
def test_labels_never_overlap_nor_leave_the_plot(values: list[float], plot_pixels: float):
    shifts = spread(values, 0, 100, plot_pixels)
    places = [value * plot_pixels / 100 + shift for value, shift in zip(values, shifts, strict=True)]
    ordered = sorted(places, reverse=True)
    gap = min(GAP_PIXELS, plot_pixels / max(len(values) - 1, 1))
    assert all(high - low >= gap * 0.999 for high, low in itertools.pairwise(ordered))
    assert ordered[-1] >= -0.001
    assert ordered[0] <= plot_pixels + 0.001
    highest_first = sorted(range(len(values)), key=lambda index: (-values[index], index))
    assert [places[index] for index in highest_first] == ordered


def test_labels_far_apart_stay_where_they_are():
    assert spread([10.0, 50.0], 0, 100, 100) == [0.0, 0.0]


def test_times_leave_as_utc_and_numbers_as_numbers():
    assert edge(START + timedelta(minutes=5)) == "2026-01-01T00:05:00Z"
    assert edge(7.5) == 7.5
