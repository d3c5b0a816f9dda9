"""Scaling reports: speed-up, efficiency, and figures that Plotly accepts."""

import plotly.graph_objects
import pytest

from dashboards.charts.palette import Theme
from dashboards.charts.scaling import CHARTS, Measured, scaled

# 12 h 45 min with one GPU, 4 h 30 min with three
ONE, THREE = Measured(1, 3.56, None, 0.9, 700), Measured(3, 3.56 * 12.75 / 4.5, 0.05, 0.8, 710)


def test_speed_up_and_efficiency_are_beside_the_smallest_run():
    one, three = scaled([THREE, ONE])
    assert (one.speed_up, one.efficiency) == (1, 1)
    assert (round(three.speed_up, 2), round(three.efficiency, 3)) == (2.83, 0.944)
    two, four = scaled([Measured(2, 10.0), Measured(4, 15.0)])
    assert (two.speed_up, two.efficiency) == (2, 1)
    assert (four.speed_up, four.efficiency) == (3, 0.75)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_is_one_that_plotly_accepts_also_without_runs(name: str, theme: Theme):
    for runs in ((), (ONE,), (ONE, THREE)):
        chart = CHARTS[name](runs, theme)
        plotly.graph_objects.Figure(chart.figure)
        assert chart.summary


def test_the_figures_are_true_to_the_runs():
    throughput = CHARTS["throughput"]((ONE, THREE), "light")
    assert throughput.rows == ((1, 3.56, 3.56), (3, 10.09, 10.68))
    assert throughput.summary == "With 3 workers: 2.83 times as fast as one."
    assert CHARTS["efficiency"]((ONE, THREE), "light").rows == ((1, 1.0, 100.0), (3, 2.833, 94.44))
    assert CHARTS["allreduce"]((ONE, THREE), "light").rows == ((3, 5.0),)
