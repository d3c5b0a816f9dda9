"""One registered Plotly template per theme: no box, faint horizontal grid lines, one text size. Figures
contain its name; the browser fetches it once."""

import functools
from typing import Any

from dashboards.charts.palette import Palette, Theme, palette_for

FONT = 'Inter, system-ui, -apple-system, "Segoe UI", sans-serif'
CLEAR = "rgba(0,0,0,0)"


def theme_of(name: object) -> Theme:
    """Return "dark" or "light"; "light" for any other value than "dark"."""
    return "dark" if name == "dark" else "light"


def template_name(theme: Theme) -> str:
    """Return the name under which the template of a theme is registered."""
    return f"trainyard-{theme}"


@functools.cache
def graph_objects() -> Any:
    """Return the module plotly.graph_objects; registers the templates on first use."""
    # Imported late: it takes 38 MB and half a second on a busy machine, which is avoided until a chart is
    # opened.
    from plotly import graph_objects as found
    from plotly import io

    for theme in ("light", "dark"):
        io.templates[f"trainyard-{theme}"] = _template(found, palette_for(theme))
    return found


@functools.cache
def template_json(theme: Theme) -> dict[str, Any]:
    """Return the template of a theme in the form that Plotly's JavaScript takes."""
    graph_objects()
    from plotly import io

    found: dict[str, Any] = io.templates[template_name(theme)].to_plotly_json()
    return found


def _template(plotly: Any, palette: Palette) -> Any:
    axis = {
        "showgrid": False,
        "zeroline": False,
        "showline": False,
        "ticks": "",
        "tickfont": {"color": palette.third, "size": 11},
        "tickangle": 0,
        "title": {"font": {"color": palette.third, "size": 11}, "standoff": 6},
        "automargin": False,
    }
    layout = {
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": {"family": FONT, "size": 12, "color": palette.second},
        "showlegend": False,
        # static/js/chart-hover.js draws the hover line and list: Plotly's own omits lines without a point at
        # exactly this x, as most step lines.
        "hovermode": False,
        "dragmode": "zoom",
        "xaxis": axis | {"nticks": 6},
        "yaxis": axis
        | {
            "showgrid": True,
            "gridcolor": palette.line,
            "fixedrange": True,
            "nticks": 5,
            "tickformat": ",~g",
        },
        "annotationdefaults": {"showarrow": False, "font": {"size": 11, "color": palette.third}},
        "shapedefaults": {"line": {"color": palette.third, "width": 1}},
    }
    data = {
        "scatter": [plotly.Scatter(mode="lines", hoverinfo="skip", line={"width": 1.8})],
        "bar": [
            plotly.Bar(hoverinfo="skip", textfont={"color": palette.second, "size": 11}, cliponaxis=False)
        ],
    }
    return plotly.layout.Template(layout=layout, data=data)
