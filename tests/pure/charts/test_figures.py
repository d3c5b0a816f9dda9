"""Every figure is one that Plotly accepts, says the same in words and as a table, and is true to its rows."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import plotly.graph_objects
import pytest

from dashboards.charts.allocation import allocation_chart, carried, quota_chart, usage
from dashboards.charts.curves import CURVES, Run, curve_chart, joined
from dashboards.charts.figures import Axes, Mark, Stroke, line_figure, nice_ceiling
from dashboards.charts.palette import Theme
from dashboards.charts.series import MOST_POINTS, Chart, Line, with_gaps
from dashboards.charts.templates import template_json
from dashboards.charts.users import users_chart
from dashboards.charts.utilisation import device_chart, job_use_chart, utilisation_chart
from dashboards.charts.waiting import Waited, waiting_chart

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTES = [NOW - timedelta(minutes=60 - minute) for minute in range(61)]


def minutes(*pairs: tuple[int, float]) -> tuple[tuple[datetime, float], ...]:
    return tuple((NOW - timedelta(minutes=before), value) for before, value in pairs)


def accepted(chart: Chart) -> plotly.graph_objects.Figure:
    return plotly.graph_objects.Figure(chart.figure)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_utilisation_in_percent_with_both_labels(theme: Theme):
    gpu, memory = [(at, 0.5) for at in MINUTES], [(at, 0.25) for at in MINUTES]
    chart = utilisation_chart(
        [*gpu[:-1], (NOW, 0.97)], memory, theme=theme, start=MINUTES[0], end=NOW, live_seconds=3600
    )
    figure = accepted(chart)
    assert figure.data[0].y[-1] == 97
    assert [label.text for label in figure.layout.annotations] == ["GPU 97 %", "memory 25 %"]
    assert chart.summary == "GPU utilisation is 97\u00a0% now, 51\u00a0% on average; memory is 25\u00a0%."
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


def test_allocation_steps_with_names_at_the_ends():
    lines = [
        Line("team-a", "team-a", minutes((90, 4), (30, 8)), 0),
        Line("team-b", "team-b", minutes((20, 4)), 1),
    ]
    chart = allocation_chart(lines, theme="light", start=MINUTES[0], end=NOW)
    figure = accepted(chart)
    assert [trace.line.shape for trace in figure.data] == ["hv", "hv"]
    assert list(figure.data[0].customdata) == [4, 8, 8]
    assert [label.text for label in figure.layout.annotations] == ["team-a", "team-b"]
    assert chart.rows == (("team-a", 6.0, 6.0, 8), ("team-b", 1.33, 1.33, 4))
    assert chart.summary == "GPUs at the end of the range: team-a 8, team-b 4."


def test_capacity_and_the_sum_of_all_projects():
    lines = [
        Line(name, name, minutes((90, 4), (30, gpus)), at)
        for at, (name, gpus) in enumerate([("a", 8), ("b", 2)])
    ]
    chart = allocation_chart(lines, theme="dark", start=MINUTES[0], end=NOW, capacity=minutes((40, 16)))
    by_name = {trace.name: trace for trace in accepted(chart).data}
    assert list(by_name["all projects"].y) == [8, 10, 10]
    assert list(by_name["capacity"].y) == [16, 16, 16]  # also before it was first recorded
    assert accepted(chart).layout.yaxis.range[1] > 16
    assert len(chart.rows) == 2


def test_deleted_projects_rank_after_the_living_and_are_muted():
    lines = [
        Line("old", "old (deleted)", minutes((90, 9)), None, is_gone=True),
        Line("new", "new", minutes((90, 1)), 0),
    ]
    chart = allocation_chart(lines, theme="light", start=MINUTES[0], end=NOW)
    figure = accepted(chart)
    assert [row[0] for row in chart.rows] == ["new", "old (deleted)"]
    assert [trace.name for trace in figure.data] == ["new", "old (deleted)"]
    assert (figure.data[1].opacity, figure.data[1].line.dash) == (0.55, "dot")
    assert figure.data[1].line.color == "#68717f"


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
    run = Run(1, ((1.0, 0.5), (2.0, 0.981)))
    chart = curve_chart(CURVES["accuracy"], [run], theme="dark")
    figure = accepted(chart)
    assert list(figure.data[0].y) == [50.0, 98.1]
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("Step", "Accuracy, %")
    assert chart.summary == "Accuracy is 98.1 %; lowest 50 %, highest 98.1 %."
    assert len(figure.layout.shapes) == 0
    empty = curve_chart(CURVES["loss"], [], theme="dark")
    accepted(empty)
    assert empty.summary == "Loss: nothing has been recorded yet."


def test_attempts_are_one_curve_with_marks():
    first = Run(1, tuple((float(step), 5.0 - step) for step in range(1, 5)))
    second = Run(2, ((3.0, 1.5), (4.0, 1.2), (5.0, 1.0)))
    figure = accepted(curve_chart(CURVES["loss"], [first, second], theme="light"))
    assert list(figure.data[0].x) == [1, 2, 3, 4, 5]
    assert list(figure.data[0].y) == [4, 3, 1.5, 1.2, 1]
    assert list(figure.data[1].y) == [2, 1]  # what the first attempt had reached is not hidden
    assert [label.text for label in figure.layout.annotations] == ["attempt 2"]
    assert figure.layout.shapes[0].x0 == 3


@pytest.mark.parametrize(
    ("steps", "labels"),
    [
        ((10, 50), ["10 right", "50 right"]),
        ((10, 15, 50), ["15 right", "50 right"]),
        # The last one's label is on the left of its line.
        ((75, 92), ["92 left"]),
        ((50, 92), ["50 right", "92 left"]),
        ((20, 90, 95, 98), ["20 right", "98 left"]),
    ],
)
def test_labels_of_marks_do_not_overlap(steps: tuple[int, ...], labels: list[str]):
    stroke = Stroke("a", "a", [(0.0, 1.0), (100.0, 1.0)], "#000000")
    axes = Axes("Step", "y", (0.0, 1.0), x_range=(0.0, 100.0))
    figure = line_figure(
        [stroke], axes, theme="light", marks=[Mark(float(step), str(step)) for step in steps]
    )
    texts = [one for one in figure["layout"]["annotations"] if one.get("yref") == "paper" and one["y"] == 1]
    sides = {"left": "right", "right": "left"}
    assert [f"{one['text']} {sides[one['xanchor']]}" for one in texts] == labels


def test_an_attempt_without_reports_hides_nothing():
    first = Run(1, ((1.0, 4.0), (2.0, 3.0)))
    assert joined([first, Run(2, ())]) == joined([first])
    assert joined([Run(1, ()), Run(2, ((1.0, 4.0),))]).marks[0].text == "attempt 2"


def test_what_is_redone_more_than_once_stays_apart():
    runs = [Run(number, tuple((float(step), float(number)) for step in range(1, 4))) for number in (1, 2, 3)]
    whole = joined(runs)
    assert [value for _step, value in whole.points] == [3, 3, 3]
    assert [value for _step, value in whole.redone] == [1, 1, 1, None, 2, 2, 2]


def test_devices_of_a_node():
    whole = Line("node", "dgx1-1", tuple((at, 0.5) for at in MINUTES))
    devices = [Line(f"device:{n}", f"GPU {n}", tuple((at, n / 10) for at in MINUTES)) for n in range(8)]
    chart = device_chart("utilisation", whole, devices, theme="light", start=MINUTES[0], end=NOW)
    assert len(accepted(chart).data) == 9
    assert chart.columns[:3] == ("Time", "dgx1-1 %", "GPU 0 %")
    assert chart.summary == (
        "Utilisation of dgx1-1 is 50\u00a0% now, 50\u00a0% on average; from 0\u00a0% on GPU 0 to 70\u00a0% on GPU 7."
    )
    empty = Line("node", "dgx1-1", ())
    said = device_chart("memory", empty, [], theme="light", start=MINUTES[0], end=NOW).summary
    assert said == "No memory of dgx1-1 has been recorded in this range yet."


def test_a_quota_that_changed():
    chart = quota_chart(
        "a", 0, minutes((50, 6)), minutes((90, 4), (30, 8)), theme="light", start=MINUTES[0], end=NOW
    )
    used, quota = accepted(chart).data
    assert (list(used.y), list(quota.y)) == ([0, 6, 6], [4, 8, 8])
    assert chart.summary == "a holds 6 GPUs, its quota is 8; it held 6 at most in this range."
    assert [row[1:] for row in chart.rows] == [(6, 8), (6, 4), (0, 4)]


def test_what_a_job_uses_is_interrupted_between_attempts():
    points = [(NOW - timedelta(seconds=seconds), 0.5) for seconds in (3000, 2990, 100, 90)]
    chart = job_use_chart(
        "GPU use", "gpu_utilization", points, [Mark(NOW - timedelta(seconds=100), "attempt 2")], theme="dark",
        unit="%", scale=100, top=100, longest_gap=timedelta(seconds=30), span=(MINUTES[0], NOW), live_seconds=None,
    )  # fmt: skip
    assert list(accepted(chart).data[0].y) == [50, 50, None, 50, 50]
    assert chart.summary == "GPU use is 50 %; lowest 50 %, highest 50 %."


def test_waiting():
    spans = [Waited(MINUTES[0], 30, 60, 2), Waited(MINUTES[30], 600, 1200, 1)]
    chart = waiting_chart(spans, 60, theme="light", start=MINUTES[0], end=NOW)
    figure = accepted(chart)
    assert figure.layout.yaxis.title.text == "Wait, min"
    assert list(figure.data[1].y) == [1, 20]
    assert chart.summary == "3 jobs started and waited 3.67 min on average (bars) and 20 min at most (lines)."
    assert chart.rows[0][1:] == (1, 10, 20)
    none = waiting_chart([], 60, theme="light", start=MINUTES[0], end=NOW)
    assert none.summary == "No job started in this range."


def test_gpu_hours_of_users():
    chart = users_chart([(f"user-{n}", 100.0 - n) for n in range(20)], theme="light")
    (bars,) = accepted(chart).data
    assert (len(bars.x), bars.x[-1], bars.text[-1]) == (15, 100, "100.00")
    assert len(chart.rows) == 20
    assert chart.summary == "20 users held GPUs for 1,810.00 hours in all; user-0 the longest, 100.00."
    assert users_chart([], theme="dark").summary == "No GPU was held in this range."


def test_plotly_is_imported_with_the_first_figure_only():
    modules = ["allocation", "curves", "utilisation", "users", "waiting"]
    lines = [
        *(f"import dashboards.charts.{name}" for name in modules),
        "import sys; print('plotly' in sys.modules)",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figures_name_their_template_and_carry_none(theme: Theme):
    chart = allocation_chart([], theme=theme, start=MINUTES[0], end=NOW)
    assert chart.figure["layout"]["template"] == f"trainyard-{theme}"
    assert accepted(chart).layout.template.layout.font.size == 12
    assert template_json(theme)["layout"]["hovermode"] is False


def test_a_gap_keeps_a_line_within_its_points():
    points = [(NOW + timedelta(hours=hours), 1.0) for hours in range(399)]
    chart = job_use_chart(
        "GPU use", "gpu_utilization", points, [], theme="dark", unit="%", scale=100, top=100,
        longest_gap=timedelta(minutes=1), span=(NOW, NOW), live_seconds=None,
    )  # fmt: skip
    assert len(with_gaps(points, timedelta(minutes=1))) > MOST_POINTS
    assert len(accepted(chart).data[0].x) <= MOST_POINTS


@pytest.mark.parametrize(
    ("value", "ceiling"), [(0, 1), (1, 1), (7, 8), (8, 8), (9, 10), (16, 20), (0.086, 0.1), (128, 150)]
)
def test_axes_end_on_round_numbers(value: float, ceiling: float):
    assert nice_ceiling(value) == pytest.approx(ceiling)
