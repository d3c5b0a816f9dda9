"""Every figure is one that Plotly accepts, says the same in words and as a table, and is true to its rows."""

from datetime import UTC, datetime, timedelta

import plotly.graph_objects
import pytest

from dashboards.charts.allocation import allocation_chart, carried, usage
from dashboards.charts.curves import CURVES, curve_chart
from dashboards.charts.layout import nice_ceiling
from dashboards.charts.series import Chart, Line
from dashboards.charts.utilisation import utilisation_chart

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTES = [NOW - timedelta(minutes=60 - minute) for minute in range(61)]


def minutes(*pairs: tuple[int, float]) -> tuple[tuple[datetime, float], ...]:
    return tuple((NOW - timedelta(minutes=before), value) for before, value in pairs)


def accepted(chart: Chart) -> plotly.graph_objects.Figure:
    return plotly.graph_objects.Figure(chart.figure)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_utilisation_in_percent_with_both_labels(theme: str):
    gpu, memory = [(at, 0.5) for at in MINUTES], [(at, 0.25) for at in MINUTES]
    chart = utilisation_chart(
        [*gpu[:-1], (NOW, 0.97)], memory, theme=theme, start=MINUTES[0], end=NOW, live_seconds=3600
    )
    figure = accepted(chart)
    assert figure.data[0].y[-1] == 97
    assert [label.text for label in figure.layout.annotations] == ["GPU 97 %", "memory 25 %"]
    assert chart.summary == "GPU utilisation is 97% now, 51% on average; memory is 25%."
    assert chart.rows[0] == ("2026-01-01T12:00:00Z", 97.0, 25.0)


def test_utilisation_without_history_says_so():
    chart = utilisation_chart([], [], theme="light", start=MINUTES[0], end=NOW, live_seconds=3600)
    accepted(chart)
    assert chart.summary == "No utilisation has been recorded in this range yet."
    assert chart.rows == ()


def test_a_day_of_seconds_is_thinned():
    gpu = [(NOW - timedelta(seconds=86400 - second), (second % 100) / 100) for second in range(86400)]
    chart = utilisation_chart(
        gpu, gpu, theme="dark", start=NOW - timedelta(days=1), end=NOW, live_seconds=86400
    )
    assert all(len(trace.x) <= 400 for trace in accepted(chart).data)


@pytest.mark.parametrize("is_tall", [False, True])
def test_allocation_steps_with_names_at_the_ends(is_tall: bool):
    lines = [
        Line("team-a", "team-a", minutes((90, 4), (30, 8)), 0),
        Line("team-b", "team-b", minutes((20, 4)), 1),
    ]
    chart = allocation_chart(lines, theme="light", start=MINUTES[0], end=NOW, is_tall=is_tall)
    figure = accepted(chart)
    assert [trace.line.shape for trace in figure.data] == ["hv", "hv"]
    assert list(figure.data[0].customdata) == [4, 8, 8]
    assert [label.text for label in figure.layout.annotations] == ["team-a", "team-b"]
    assert chart.rows == (("team-a", 6.0, 6.0, 8), ("team-b", 1.33, 1.33, 4))
    assert chart.summary == "GPUs at the end of the range: team-a 8, team-b 4."


def test_lines_with_equal_values_stand_apart_but_keep_their_values():
    lines = [Line(name, name, minutes((30, 4)), index) for index, name in enumerate(("b", "c"))]
    first, second = accepted(allocation_chart(lines, theme="light", start=MINUTES[0], end=NOW)).data
    assert first.y[-1] > second.y[-1]
    assert first.customdata[-1] == second.customdata[-1] == 4


def test_live_points_find_their_line_and_their_label():
    figure = accepted(
        allocation_chart([Line("a", "a", minutes((30, 4)), 0)], theme="light", start=MINUTES[0], end=NOW)
    )
    assert figure.data[0].meta["key"] == figure.layout.annotations[0].name == "project:a"


def test_a_live_range_tells_how_it_moves():
    moving = allocation_chart([], theme="light", start=MINUTES[0], end=NOW, live_seconds=3600)
    assert {"span_seconds": 3600, "since": "2026-01-01T11:00:00Z"}.items() <= accepted(
        moving
    ).layout.meta.items()
    still = allocation_chart([], theme="light", start=MINUTES[0], end=NOW)
    assert accepted(still).layout.meta["span_seconds"] is None
    assert still.summary == "There is no project yet."


def test_a_range_without_changes_holds_what_was_before():
    assert carried(minutes((120, 3)), MINUTES[0], NOW) == [(MINUTES[0], 3), (NOW, 3)]
    assert carried((), MINUTES[0], NOW) == [(MINUTES[0], 0.0), (NOW, 0.0)]


def test_usage_is_the_area_under_the_steps():
    used = usage(carried(minutes((120, 2), (30, 6)), MINUTES[0], NOW))
    assert (used.gpu_hours, used.mean, used.peak) == (4.0, 4.0, 6)


def test_job_curves():
    chart = curve_chart(CURVES["accuracy"], [(1.0, 0.5), (2.0, 0.981)], theme="dark")
    assert list(accepted(chart).data[0].y) == [50.0, 98.1]
    assert chart.summary == "Accuracy is 98.1 %; lowest 50 %, highest 98.1 %."
    empty = curve_chart(CURVES["loss"], [], theme="dark")
    accepted(empty)
    assert empty.summary == "Loss: nothing has been recorded yet."


@pytest.mark.parametrize(
    ("value", "ceiling"), [(0, 1), (1, 1), (7, 8), (8, 8), (9, 10), (16, 20), (0.086, 0.1), (128, 150)]
)
def test_axes_end_on_round_numbers(value: float, ceiling: float):
    assert nice_ceiling(value) == pytest.approx(ceiling)
