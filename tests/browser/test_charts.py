"""Charts in the browser: nothing offers a foreign service, one line and one list of values under the pointer."""

from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Open, Yard
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

DRAWN = "(id) => document.querySelector(`${id} .js-plotly-plot .main-svg`) !== null"
CLOUD = (
    "showSendToCloud",
    "plotlyServerURL",
    "displaylogo",
    "watermark",
    "editable",
    "showEditInChartStudio",
)
# where the line of each chart stands, as a share of the width of its plot area
LINES = """() => Object.fromEntries([...document.querySelectorAll(".chart")].map((root) => {
  const plot = root.querySelector(".chart-plot"), line = root.querySelector(".chart-line");
  const axis = plot._fullLayout.xaxis, left = (node) => node.getBoundingClientRect().left;
  return [root.id, line && (left(line) - left(plot) - axis._offset) / axis._length];
}))"""


def drawn(page: Page, *charts: str) -> None:
    """Wait until these charts are drawn."""
    for chart in charts:
        page.wait_for_function(DRAWN, arg=chart)


def point_at(page: Page, chart: str, share: float) -> None:
    """Move the pointer over a chart, at a share of its plot area's width."""
    where: dict[str, Any] = page.evaluate(
        """([chart, share]) => {
          const plot = document.querySelector(`${chart} .chart-plot`), { xaxis, yaxis } = plot._fullLayout;
          plot.scrollIntoView({ block: "center" });
          const box = plot.getBoundingClientRect();
          return { x: box.left + xaxis._offset + xaxis._length * share, y: box.top + yaxis._offset + 20 };
        }""",
        [chart, share],
    )
    page.mouse.move(where["x"] - 5, where["y"])
    page.mouse.move(where["x"], where["y"])


def opacity(page: Page, kind: str, project: str) -> float:
    """How visible the line or the label of a project is in the allocation chart; -1 while it is drawn anew."""
    selector = f"#allocation-chart .{kind}[data-project='{project}']"
    seen = "(one) => { const node = document.querySelector(one); return node ? getComputedStyle(node).opacity : -1; }"
    return float(page.evaluate(seen, selector))


def is_dim(page: Page, kind: str, project: str) -> bool:
    return 0 <= opacity(page, kind, project) < 0.5


def test_no_chart_offers_a_foreign_service(open_as: Open):
    page = open_as("ana").page
    drawn(page, "#utilisation-chart", "#allocation-chart")
    page.hover("#allocation-chart .chart-plot")
    context = page.evaluate("document.querySelector('#allocation-chart .chart-plot')._context")
    assert {name: context.get(name) for name in CLOUD if context.get(name)} == {}
    assert page.locator("[data-title*=hare], [data-title*=loud], .modebar-btn--logo, .modebar").count() == 0
    assert page.locator(".chart a[href^=http]").count() == 0
    assert "plotly.com" not in page.content()


def test_the_line_under_the_pointer_runs_through_charts_of_the_same_time_axis(yard: Yard, open_as: Open):
    yard.wait_for(yard.submit("lined", gpus=2), "running")
    page = open_as("ana").page
    drawn(page, "#utilisation-chart", "#allocation-chart")
    point_at(page, "#allocation-chart", 0.6)
    page.wait_for_selector("#utilisation-chart .chart-line")
    lines = page.evaluate(LINES)
    assert lines["allocation-chart"] == pytest.approx(0.6, abs=0.01)
    assert lines["utilisation-chart"] == pytest.approx(0.6, abs=0.1)  # the ranges end a moment apart
    page.mouse.move(5, 5)
    page.wait_for_selector("#utilisation-chart .chart-line", state="detached")


def test_the_list_under_the_pointer_has_every_project(yard: Yard, open_as: Open):
    yard.wait_for(yard.submit("first", gpus=2), "running")
    yard.wait_for(yard.submit("second", gpus=1, project="team-b"), "running")
    page = open_as("ana").page
    drawn(page, "#allocation-chart")
    held = "() => document.querySelector('#allocation-chart .chart-plot').data.map((trace) => trace.customdata.at(-1))"
    wait_until(lambda: page.evaluate(held) == [2, 1], what="both projects in the chart")
    point_at(page, "#allocation-chart", 0.995)
    tip = page.locator("#allocation-chart .chart-tip")
    tip.wait_for()
    shown = tip.locator("li").all_inner_texts
    wait_until(lambda: shown() == ["team-a\n2 GPUs", "team-b\n1 GPU"], what="both projects in the list")
    yard.submit("third", gpus=3)
    wait_until(
        lambda: shown() == ["team-a\n5 GPUs", "team-b\n1 GPU"],
        what="the new job, without a move of the pointer",
    )


def test_the_mode_bar_is_ours_and_one_tab_stop(open_as: Open):
    page = open_as("ana").page
    drawn(page, "#utilisation-chart", "#allocation-chart")
    bar = page.locator(".panel", has=page.locator("#allocation-chart")).locator(".chart-tools")
    opacity = "(bar) => getComputedStyle(bar).opacity"
    page.mouse.move(5, 5)
    wait_until(lambda: bar.evaluate(opacity) == "0", what="a hidden bar")
    page.hover("#allocation-chart .chart-plot")
    wait_until(lambda: bar.evaluate(opacity) == "1", what="a visible bar")
    page.mouse.move(5, 5)
    stops = "(bar) => [...bar.querySelectorAll('button')].filter((one) => one.tabIndex >= 0).length"
    assert bar.evaluate(stops) == 1
    page.focus("#utilisation-chart >> xpath=ancestor::section >> [data-chart-twin]")
    bar.locator("button[tabindex='0']").focus()
    wait_until(lambda: bar.evaluate(opacity) == "1", what="a bar that is visible while it has the focus")
    before = page.evaluate("document.querySelector('#allocation-chart .chart-plot')._fullLayout.xaxis.range")
    page.keyboard.press("Enter")
    span = "() => document.querySelector('#allocation-chart .chart-plot')._fullLayout.xaxis.range"
    wait_until(lambda: page.evaluate(span) != before, what="a shorter range")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.tool") == "out"


def test_the_mode_bar_is_not_over_the_lines_on_touch(open_as: Open):
    page = open_as("ana", viewport={"width": 400, "height": 800}, has_touch=True, is_mobile=True).page
    page.evaluate("document.querySelector('#allocation-chart').scrollIntoView()")
    drawn(page, "#allocation-chart")
    tools = page.locator(".panel", has=page.locator("#allocation-chart")).locator(".chart-tools")
    # At one moment: what is loaded meanwhile moves both.
    above = """(bar) => bar.getBoundingClientRect().bottom
      <= document.querySelector("#allocation-chart .chart-plot").getBoundingClientRect().top + 1"""
    assert tools.evaluate(above)
    assert tools.evaluate("(bar) => getComputedStyle(bar).opacity") == "1"  # a finger does not hover
    assert (
        page.evaluate("document.querySelector('#allocation-chart .chart-plot')._fullLayout.dragmode") is False
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_a_project_under_the_pointer_dims_the_other_lines(yard: Yard, open_as: Open):
    yard.wait_for(yard.submit("dimmed", gpus=2), "running")
    page = open_as("ana").page
    drawn(page, "#allocation-chart")
    page.wait_for_selector("#allocation-chart .annotation[data-project=team-a]")
    page.hover("#shares [data-key=team-a]")
    wait_until(lambda: is_dim(page, "trace", "team-b"), what="a dimmed line")
    wait_until(lambda: opacity(page, "trace", "team-a") == 1, what="the project's own line")
    wait_until(lambda: is_dim(page, "annotation", "team-b"), what="a dimmed label")
    page.hover("h2")
    wait_until(lambda: opacity(page, "trace", "team-b") == 1, what="the line as it was")
    page.hover("#allocation-chart .annotation[data-project=team-a]")
    wait_until(lambda: is_dim(page, "trace", "team-b"), what="a label that dims the others")
    page.locator("#shares [data-key=team-a].is-hovered").wait_for()


def test_a_long_name_at_a_lines_end_gets_an_ellipsis(yard: Yard, open_as: Open):
    name = "a-team-with-quite-a-long-name-indeed"
    yard.call("POST", "/projects", {"name": name, "gpu_quota": 1})
    try:
        page = open_as("ana").page
        drawn(page, "#allocation-chart")
        label = page.locator(f"#allocation-chart .annotation[data-project={name}]")
        label.wait_for()
        cut = label.locator("text").filter(has_text="…")
        cut.wait_for()
        assert (cut.text_content() or "").endswith("…")
        assert label.locator("title").text_content() == name
        right = "(node) => node.getBoundingClientRect().right"
        inside = f"(label) => ({right})(label) <= ({right})(label.closest('.chart-plot'))"
        assert label.evaluate(inside)
    finally:
        yard.call("DELETE", f"/projects/{name}")


def test_axes_have_titles_with_units(open_as: Open):
    page = open_as("ana").page
    drawn(page, "#utilisation-chart", "#allocation-chart")
    title = "(axis) => [...document.querySelectorAll('.chart-plot')].map((plot) => plot._fullLayout[axis].title.text)"
    assert page.evaluate(title, "yaxis") == ["Share, %", "GPUs"]
    assert all(text.startswith("Time, ") for text in page.evaluate(title, "xaxis"))
    # The heading of the allocation has the unit already.
    assert page.locator("#utilisation-chart .g-ytitle").is_visible()
    assert not page.locator("#allocation-chart .g-ytitle").is_visible()
