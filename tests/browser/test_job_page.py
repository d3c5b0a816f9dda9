"""A job's page from its submission to its end: steps from the first second, no jumps, live costs of a stop."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route

from tests.browser.conftest import Open, Yard
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

MOST_SHIFT = (
    0.02  # of Google's layout-shift score, over the whole life of a job; 0.1 counts as good for a page
)
SIZES = ({"width": 400, "height": 800}, {"width": 1440, "height": 960}, {"width": 2560, "height": 1440})
WATCH_SHIFTS = """() => {
  window.shifts = [];
  const keep = ({ value, hadRecentInput, sources }) => {
    if (!hadRecentInput) shifts.push([value, sources.map(({ node }) => node?.id || node?.className || node?.nodeName)]);
  };
  new PerformanceObserver((list) => list.getEntries().forEach(keep)).observe({ type: "layout-shift", buffered: true });
}"""
REPORT = (
    '{\\"trainyard\\": 1, \\"step\\": $i, \\"total_steps\\": 8, \\"loss\\": 0.5, \\"accuracy\\": 0.5, '
    '\\"eta_seconds\\": 3, \\"checkpoint_at\\": 1767225600}'
)
WORK = f'sleep 1; echo loading; for i in 1 2 3 4 5 6 7 8; do echo "{REPORT}"; sleep 0.4; done'


def shifts(page: Page) -> list[Any]:
    found: list[Any] = page.evaluate("shifts")
    return found


def shift(page: Page) -> float:
    return sum(value for value, _sources in shifts(page))


def test_nothing_jumps_while_a_job_waits_starts_runs_logs_and_ends(yard: Yard, open_as: Open, tmp_path: Path):
    seen = tmp_path / "seen"
    blocker = yard.submit("in-the-way", gpus=8, workers=2)
    yard.wait_for(blocker, "running")
    job = yard.submit("steady", f"{WORK}; until [ -e {seen} ]; do sleep 0.2; done", gpus=8)
    pages = []
    for size in SIZES:
        for tab in ("", "/logs"):
            watched = open_as("ana", "/healthz", viewport=size)
            watched.page.add_init_script(f"({WATCH_SHIFTS})()")
            watched.go(f"/jobs/{job}{tab}")
            watched.is_live()
            pages.append(watched.page)
    yard.call("POST", f"/jobs/{blocker}/stop")
    for page in pages:
        page.locator(".badge[data-state=running]").wait_for()
        page.locator(".log-line").get_by_text("step 8/8").wait_for()
    seen.touch()
    for page in pages:
        page.locator(".badge[data-state=succeeded]").wait_for()
        page.locator(".log-line").get_by_text("Completed.").wait_for()
    assert [(page.viewport_size, shifts(page)) for page in pages if shift(page) > MOST_SHIFT] == []


def test_what_happened_pushes_no_line_down_that_is_shown_already(yard: Yard, open_as: Open):
    blocker = yard.submit("before-the-lines", gpus=8, workers=2)
    yard.wait_for(blocker, "running")
    job = yard.submit("with-lines", f"{WORK}; sleep 300", gpus=8)
    watched, held, is_held = open_as("ana", "/healthz", viewport=SIZES[0]), list[Route](), True
    page = watched.page
    page.add_init_script(f"({WATCH_SHIFTS})()")
    watched.go(f"/jobs/{job}/logs")
    watched.is_live()
    page.locator(".log-line").get_by_text("Submitted by").wait_for()
    page.route("**/log-index.json*", lambda route: held.append(route) if is_held else route.continue_())
    yard.call("POST", f"/jobs/{blocker}/stop")
    wait_until(lambda: len(yard.call("GET", f"/jobs/{job}/logs")["lines"]) > 3, 60, "some lines")
    wait_until(lambda: held or page.wait_for_timeout(50), what="the request for what happened")
    is_held = False
    for route in held:
        route.continue_()
    page.locator(".log-line").get_by_text("step 8/8").wait_for()
    lines = page.locator(".log-line .text").all_inner_texts()
    assert [text.partition(" ")[0] for text in lines[:4]] == ["Submitted", "Scheduled", "Running.", "loading"]
    moved = [sources for _value, sources in shifts(page)]
    assert "log-line" not in [name for sources in moved for name in sources]


def test_why_a_job_waits_is_shown_whole(yard: Yard, open_as: Open):
    yard.wait_for(yard.submit("before-it", gpus=8, workers=2), "running")
    job = yard.submit("waits-for-all", gpus=8, workers=2, ports=[{"port": 8888}])
    for size in SIZES:
        page = open_as("ana", f"/jobs/{job}", viewport=size).page
        page.locator("#job-outlook").get_by_text("being estimated").wait_for(state="detached")
        page.locator("#job-why").get_by_text("Who holds them").wait_for()
        hidden = "node => node.scrollHeight - node.clientHeight"
        assert page.locator("#job-why").evaluate(hidden) <= 0, size
        assert page.locator("#job-facts").evaluate(hidden) <= 0, size


def test_every_step_of_a_start_is_seen_live(yard: Yard, open_as: Open, tmp_path: Path):
    seen = tmp_path / "seen"
    job = yard.submit("importing", f"until [ -e {seen} ]; do sleep 0.2; done; echo ready; sleep 300")
    page = open_as("vera", f"/jobs/{job}").page
    page.locator(".log-line.is-event").get_by_text("Submitted by").wait_for()
    page.locator(".steps .is-now").get_by_text("First output").wait_for()
    page.locator(".steps .is-now .under").get_by_text("none for").wait_for()
    seen.touch()
    page.locator(".steps .is-done").get_by_text("First output").wait_for()  # no event says so: the log does
    done = page.locator(".steps .is-done")
    wait_until(lambda: done.count() == 4, what="four steps that are done")
    assert [step.split("\n")[0] for step in page.locator(".steps li").all_inner_texts()] == [
        "Queued",
        "Scheduled",
        "Started",
        "First output",
    ]


def test_output_that_comes_while_the_page_reads_the_log_is_a_step_too(yard: Yard, open_as: Open):
    job = yard.submit("importing-slowly", "sleep 3; echo ready; sleep 300")
    watched = open_as("vera", "/jobs")

    def when_it_has_printed(route: Route) -> None:
        wait_until(lambda: yard.call("GET", f"/jobs/{job}/logs")["lines"], 120, "the first line")
        route.continue_()

    watched.page.route("**/api/v1/jobs/*/logs?*", when_it_has_printed)
    watched.go(f"/jobs/{job}")
    watched.page.locator(".steps .is-done").get_by_text("First output").wait_for()


def test_the_page_of_a_resumed_job_shows_what_the_first_attempt_reached(yard: Yard, open_as: Open):
    job = yard.submit("resumed", f"[ -e again ] && sleep 300; touch again; {WORK}; sleep 300")
    page = open_as("vera", f"/jobs/{job}").page
    page.locator("#job-figures").get_by_text("step 8 of 8").wait_for()
    yard.call("POST", f"/jobs/{job}/suspend")
    yard.wait_for(job, "suspended")
    yard.call("POST", f"/jobs/{job}/resume")
    page.locator(".timeline").get_by_text("attempt 2").wait_for()
    page.locator("#job-figures").get_by_text("reached in attempt 1").wait_for()
    page.locator(".timeline").get_by_text("suspended at step 8").wait_for()
    page.wait_for_selector("#curve-loss:not([data-empty])")
    page.reload()
    page.wait_for_selector("#curve-loss:not([data-empty])")


def test_what_a_stop_costs_is_live_while_the_dialog_is_open(yard: Yard, open_as: Open):
    job = yard.submit("stoppable", f"{WORK}; sleep 300", gpus=8, workers=2)
    yard.wait_for(job, "running")
    page = open_as("ana", f"/jobs/{job}").page
    page.locator("#job-figures").get_by_text("step 8 of 8").wait_for()
    page.click("button:text('Stop…')")
    cost = page.locator("#stop-cost")
    cost.get_by_text("2 workers: dgx1-1, dgx1-2").wait_for()
    wait_until(lambda: "16 GPUs" in cost.inner_text(), what="the GPUs that it gives back")
    cost.get_by_text("since its last checkpoint").wait_for()
    cost.get_by_text("no other job").wait_for()
    yard.submit("next", gpus=1)
    cost.get_by_text("one job:").wait_for()
    wait_until(lambda: "next of team-a" in cost.inner_text(), what="the job that would start")


def test_focus_on_an_action_survives_live_updates(yard: Yard, open_as: Open):
    job = yard.submit("held-on-to", f"sleep 1; {WORK}; sleep 300")
    page = open_as("ana", f"/jobs/{job}").page
    page.locator(".actions button", has_text="Stop…").focus()
    page.locator("#job-figures").get_by_text("step 8 of 8").wait_for()
    wait_until(
        lambda: page.locator(".actions a", has_text="Terminal").count() == 1, 10, "the terminal's button"
    )
    assert page.evaluate("document.activeElement.textContent") == "Stop…"
