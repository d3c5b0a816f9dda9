"""Charts, the log viewer and the terminal, drawn by the browser from the running program."""

import re
import shlex

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Open, Yard
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

EVIL = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"
DRAWN = "(id) => document.querySelector(`${id} .js-plotly-plot .main-svg`) !== null"


def lines(page: Page) -> list[str]:
    """The log lines that exist as elements."""
    return [text for text in page.locator(".log-line:not(.is-event) .text").all_inner_texts() if text]


def test_log_text_stays_text(yard: Yard, open_as: Open):
    job = yard.submit(
        "evil", f"printf '%s\\n' {shlex.quote(EVIL)}; printf '\\033[31mred\\033[0m plain\\n'; sleep 300"
    )
    watched = open_as("vera", f"/jobs/{job}/logs")
    page = watched.page
    page.locator(".log-line .text").get_by_text("document.title").wait_for()
    assert EVIL.split("'")[0] in lines(page)[0]
    assert page.locator(".log-view script, .log-view img").count() == 0
    assert "owned" not in page.title()
    red = page.locator(".log-line .a-31")
    red.wait_for()
    assert red.inner_text() == "red"


def test_a_long_log_follows_stops_and_fills_gaps(yard: Yard, open_as: Open):
    job = yard.submit("long", "seq -f 'line %g of many' 1 30000; sleep 300")
    page = open_as("ana", f"/jobs/{job}/logs").page
    page.locator(".log-line").get_by_text("line 30000 of many").wait_for()
    assert page.locator(".log-line").count() < 120  # only what is on screen exists
    view = page.locator(".log-view")
    view.evaluate("(node) => { node.scrollTop = node.scrollHeight / 2; }")
    page.locator(".log-line").get_by_text(re.compile("line 1[45][0-9]{3} of many")).first.wait_for()
    assert page.get_attribute("[data-log-follow]", "aria-pressed") == "false"
    view.evaluate("(node) => { node.scrollTop = 0; }")
    page.locator(".log-line").get_by_text("line 1 of many", exact=True).wait_for()
    page.click("[data-log-follow]")
    page.locator(".log-line").get_by_text("line 30000 of many").wait_for()


def test_a_log_is_followed_as_it_is_written(yard: Yard, open_as: Open):
    job = yard.submit("ticking", "i=0; while true; do i=$((i+1)); echo tick $i; sleep 0.2; done")
    page = open_as("vera", f"/jobs/{job}/logs").page

    def newest() -> int:
        return int((lines(page) or ["tick 0"])[-1].removeprefix("tick "))

    seen = wait_until(newest, what="the first line")
    wait_until(lambda: newest() > seen + 5, what="more lines")
    numbers = [int(text.removeprefix("tick ")) for text in lines(page)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))  # none missing, none twice


def test_search_and_links_to_lines(yard: Yard, open_as: Open):
    job = yard.submit("searched", "seq -f 'line %g here' 1 5000; sleep 300")
    page = open_as("ana", f"/jobs/{job}/logs#L2500").page
    page.locator(".log-line.is-target").get_by_text("line 2500 here").wait_for()
    page.fill("[data-log-search]", "line 499")
    page.get_by_text("11 matching lines").wait_for()
    assert page.locator(".log-line mark").first.inner_text() == "line 499"
    page.fill("[data-log-search]", "")
    page.get_by_text("5,000 lines").wait_for()
    page.locator(".log-line.is-target").get_by_text("line 2500 here").wait_for()  # where it was before


def test_the_log_file_is_never_a_page(yard: Yard, open_as: Open):
    job = yard.submit("file", f"printf '%s\\n' {shlex.quote(EVIL)}")
    yard.wait_for(job, "succeeded")
    page = open_as("ana", f"/jobs/{job}/logs").page
    with page.expect_download() as download:
        page.click("text=Download")
    assert download.value.suggested_filename == "file-1-0.log"


def test_charts_are_drawn_late_in_place_and_have_a_table(yard: Yard, open_as: Open):
    yard.wait_for(yard.submit("drawn", gpus=2), "running")
    page = open_as("ana").page
    for chart in ("#utilisation-chart", "#allocation-chart"):
        page.wait_for_function(DRAWN, arg=chart)
    page.evaluate("window.drawing = document.querySelector('#allocation-chart .main-svg')")
    lines = "() => document.querySelector('#allocation-chart .js-plotly-plot').data.map((line) => line.name)"
    assert {"team-a", "team-b"} <= set(page.evaluate(lines))
    drawn = page.locator("#allocation-chart .scatterlayer .trace")
    wait_until(lambda: drawn.count() == len(page.evaluate(lines)), what="a drawn line for each project")
    summary = page.locator("#allocation-chart .chart-summary")
    wait_until(lambda: "team-a 2" in summary.inner_text(), what="the sentence about two GPUs")
    page.focus("[data-chart-twin=allocation-chart]")
    page.keyboard.press("Enter")
    table = page.locator("#allocation-chart .chart-table")
    table.wait_for()
    assert "team-a" in table.inner_text()
    last = "() => document.querySelector('#allocation-chart .js-plotly-plot').data[0]?.customdata?.at(-1)"
    wait_until(lambda: page.evaluate(last) == 2, what="the point of two GPUs")
    yard.submit("more", gpus=1)
    wait_until(lambda: page.evaluate(last) == 3, what="the live point")
    assert page.evaluate("window.drawing.isConnected")
    wait_until(lambda: "team-a 3" in summary.inner_text(), what="the sentence that follows")
    peak = table.locator("tr", has_text="team-a").locator("td").nth(3)
    # 3 where this test is the first to use the instance; an earlier one may have held more in the same hour. The column
    # has as many decimals as its most precise number, which may be that of another project.
    held = "document.querySelector('#allocation-chart .js-plotly-plot').data[0]?.customdata"
    highest = f"() => Math.max(...({held} ?? [0]))"
    wait_until(lambda: float(peak.inner_text()) == page.evaluate(highest), what="the table that follows")
    page.click("[data-chart-span=overview] button[data-span='86400']")
    span = "() => document.querySelector('#utilisation-chart .js-plotly-plot')?.layout?.meta?.span_seconds"
    wait_until(lambda: page.evaluate(span) == 86400, what="the longer range")


def test_charts_change_with_the_theme(open_as: Open):
    page = open_as("ana", "/analytics", color_scheme="light").page
    colour = "() => document.querySelector('.js-plotly-plot')?.data?.[0]?.line?.color"
    wait_until(lambda: page.evaluate(colour) == "#2b6cb0", what="the light figure")
    page.emulate_media(color_scheme="dark")
    wait_until(lambda: page.evaluate(colour) == "#5b9bd8", what="the dark figure")


def test_the_curves_of_a_job(yard: Yard, open_as: Open):
    report = '{"trainyard": 1, "step": %g, "total_steps": 100, "loss": 0.5, "accuracy": 0.9}'
    job = yard.submit("curves", f"seq -f '{report}' 1 40; sleep 300")
    page = open_as("vera", f"/jobs/{job}").page
    page.locator("#job-figures").get_by_text("Accuracy").wait_for()
    points = "() => document.querySelector('[data-chart*=loss] .js-plotly-plot')?.data?.[0]?.x?.length"
    page.reload()
    wait_until(lambda: page.evaluate(points) == 40, what="forty points")
    wait_until(lambda: "40" in page.inner_text("#job-figures"), what="the step beside the curves")


def test_curves_grow_while_the_job_reports(yard: Yard, open_as: Open):
    report = '{"trainyard": 1, "step": \'$i\', "total_steps": 500, "loss": \'$i\'}'
    job = yard.submit("grown", f"i=0; while true; do i=$((i+1)); echo '{report}'; sleep 0.5; done")
    page = open_as("vera", f"/jobs/{job}").page
    last = "() => document.querySelector('[data-chart*=loss] .js-plotly-plot')?.data?.[0]?.x?.at(-1) ?? 0"
    wait_until(lambda: page.evaluate(last) > 0, 30, "a first point")
    first = page.evaluate(last)
    wait_until(lambda: page.evaluate(last) > first + 2, 30, "later points")
    figure = page.locator("[data-chart*=loss]")
    said = figure.locator(".chart-summary").inner_text
    wait_until(lambda: f"Loss is {page.evaluate(last)}; lowest 1, highest " in said(), 10, "its words")
    page.locator(".panel", has=figure).locator("[data-chart-twin]").click()
    newest = figure.locator(".chart-table tbody tr td").first
    shown = int(newest.inner_text())
    wait_until(lambda: int(newest.inner_text()) > shown, 10, "a row that comes by itself")


def test_a_terminal_in_the_running_pod(yard: Yard, open_as: Open):
    job = yard.submit("shell")
    yard.wait_for(job, "running")
    page = open_as("ben", f"/jobs/{job}/terminal").page
    page.locator(".xterm-rows").wait_for()
    page.locator(".xterm-rows").get_by_text("#").first.wait_for()
    page.click(".shell-view")
    page.keyboard.type("echo answer-$((40+2))\n")
    page.locator(".xterm-rows").get_by_text("answer-42").wait_for()
    page.keyboard.type("exit 3\n")
    page.get_by_text("The shell ended with code 3.").wait_for()
