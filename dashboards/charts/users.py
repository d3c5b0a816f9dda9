"""Bar chart of users' GPU hours."""

from collections.abc import Sequence

from dashboards.charts.figures import as_json, nice_ceiling
from dashboards.charts.palette import Theme, palette_for
from dashboards.charts.series import Chart
from dashboards.charts.templates import graph_objects, template_name

BARS_MOST = 15
NAME_LETTERS = 18
ROW_PIXELS, AROUND_PIXELS = 22, 52


def users_chart(hours: Sequence[tuple[str, float]], *, theme: Theme) -> Chart:
    """Return the figure of (user, GPU hours), largest first; users after the first 15 are in the table only."""
    plotly, palette = graph_objects(), palette_for(theme)
    # Reversed, because Plotly draws the first bar at the bottom.
    shown = list(reversed(hours[:BARS_MOST]))
    top = nice_ceiling(max((value for _name, value in shown), default=1.0))
    bars = plotly.Bar(
        orientation="h",
        x=[value for _name, value in shown],
        y=list(range(len(shown))),
        text=[f"{value:,.2f}" for _name, value in shown],
        textposition="outside",
        width=0.6,
        marker={"color": palette.accent},
        meta={"key": "hours"},
    )
    layout = {
        "template": template_name(theme),
        "height": AROUND_PIXELS + ROW_PIXELS * max(4, len(shown)),
        "margin": {"l": 130, "r": 60, "t": 8, "b": 40, "pad": 4},
        "xaxis": {"type": "linear", "range": [0, top], "title": {"text": "GPU hours"}, "tickformat": ",~g"},
        "yaxis": {
            "showgrid": False,
            "title": {"text": "User"},
            "range": [len(shown) - max(4, len(shown)) - 0.6, len(shown) - 0.4],
            "tickvals": list(range(len(shown))),
            "ticktext": [_short(name) for name, _value in shown],
        },
        "meta": {"unit": "GPU hours", "span_seconds": None},
    }
    rows = tuple((name, round(value, 2)) for name, value in hours)
    return Chart(as_json(plotly.Figure([bars], layout), theme), _summary(hours), ("User", "GPU hours"), rows)


def _short(name: str) -> str:
    return name if len(name) <= NAME_LETTERS else f"{name[: NAME_LETTERS - 1]}…"


def _summary(hours: Sequence[tuple[str, float]]) -> str:
    if not hours:
        return "No GPU was held in this range."
    whole = sum(value for _name, value in hours)
    name, most = hours[0]
    users = "1 user" if len(hours) == 1 else f"{len(hours):,} users"
    return f"{users} held GPUs for {whole:,.2f} hours in all; {name} the longest, {most:,.2f}."
