"""What the log viewer makes of lines: progress spelled out, events between them, several attempts; wrapped or raw."""

import json
import shlex
from itertools import pairwise

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Open, Yard
from tests.browser.samples import PROGRESS_LINES
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

SPELL = """async (texts) => {
  const { spelled } = await import(new URL("progressline.js", document.querySelector("script[src*='js/app']").src));
  return texts.map(spelled);
}"""
TARGET_TOP = """(view) => view.querySelector(".is-target")?.getBoundingClientRect().top
  - view.getBoundingClientRect().top - view.clientTop"""
REPORT = {"trainyard": 1, "epoch": 1, "epochs": 2, "step": 5, "total_steps": 10, "loss": 0.40218}
SPELLED = "epoch 1/2  step 5/10  loss 0.4022"
PRINT = f"echo {shlex.quote(json.dumps(REPORT))}; echo {'long ' * 100}end; sleep 300"


def texts(page: Page) -> list[str]:
    """The rows on the page."""
    return [text.strip() for text in page.locator(".log-line .text").all_inner_texts() if text.strip()]


def texts_before_target(page: Page) -> list[str]:
    """The rows above the line that the address names, read at one moment: rows come and go while a log loads."""
    rows = "rows => rows.map(row => [row.matches('.is-target'), row.querySelector('.text')?.innerText.trim() ?? ''])"
    shown = page.locator(".log-line").evaluate_all(rows)
    at = next((index for index, (is_target, _) in enumerate(shown) if is_target), 0)
    return [text for _, text in shown[:at]]


def numbers(page: Page) -> list[str]:
    return page.locator(".log-line .n").all_inner_texts()


@pytest.fixture
def resumed(yard: Yard) -> str:
    """A job that was suspended and resumed, and prints the same in both attempts."""
    job = yard.submit("twice", PRINT)
    log = yard.server.state_dir / "logs" / job / "1-0.log"
    wait_until(lambda: log.exists() and log.read_bytes().count(b"\n") >= 2, 30, "the first attempt's lines")
    yard.wait_for(job, "running")
    yard.call("POST", f"/jobs/{job}/suspend")
    yard.wait_for(job, "suspended")
    yard.call("POST", f"/jobs/{job}/resume")
    yard.wait_for(job, "running")
    return job


def test_server_and_browser_spell_progress_lines_alike(open_as: Open):
    written = open_as("ana").page.evaluate(SPELL, [text for text, _spelled in PROGRESS_LINES])
    assert written == [spelled for _text, spelled in PROGRESS_LINES]


def test_all_attempts_are_one_log_with_what_happened_between_the_lines(resumed: str, open_as: Open):
    page = open_as("ana", f"/jobs/{resumed}/logs").page
    wait_until(lambda: texts(page).count(SPELLED) == 2, 30, "the lines of both attempts")
    wait_until(lambda: texts(page).count("Running.") == 2, 30, "both starts")
    quick = (SPELLED, "Running.")  # the one may come before the other
    told = [text for text in texts(page) if not text.startswith("long ") and text not in quick]
    assert told == [
        "Attempt 1",
        "Submitted by bootstrap.",
        "Scheduled on dgx1-1. Started inside the quota of team-a (4).",
        "Suspended by bootstrap; resume it to queue it again.",
        "Resumed by bootstrap.",
        "Attempt 2",
        "Scheduled on dgx1-1. Started inside the quota of team-a (4).",
    ]
    shown = ["1", "2", "1", "2"]
    wait_until(
        lambda: [number for number in numbers(page) if number] == shown, 30, "both lines of both attempts"
    )
    page.locator(".log-foot").get_by_text("4 lines").wait_for()


def test_one_attempt_can_be_chosen_and_its_lines_have_addresses(yard: Yard, resumed: str, open_as: Open):
    page = open_as("ana", f"/jobs/{resumed}/logs").page
    page.locator(".log-line.attempt").nth(1).wait_for()
    page.select_option("[data-log-attempt]", "1")
    page.locator(".log-foot").get_by_text("2 lines").wait_for()
    wait_until(lambda: "Attempt 2" not in texts(page), 10, "the first attempt alone")
    assert "attempt=1" in (page.get_attribute("[data-log-download]", "href") or "")
    page.locator(".log-line a.n").first.click()
    page.wait_for_function("location.hash === '#L1:1'")
    page.goto(f"{yard.server.url}/jobs/{resumed}/logs#L2:2")
    page.locator(".log-line.is-target").wait_for()
    wait_until(
        lambda: "Attempt 2" in texts_before_target(page), what="the second attempt's head above the line"
    )


def test_a_new_attempt_comes_by_itself(yard: Yard, open_as: Open):
    job = yard.submit("again", PRINT)
    page = open_as("ana", f"/jobs/{job}/logs").page
    wait_until(lambda: SPELLED in texts(page), 30, "the first line")
    options = page.locator("[data-log-attempt] option").all_inner_texts
    wait_until(lambda: options() == ["all attempts", "attempt 1"], 30, "the choice of one attempt")
    yard.call("POST", f"/jobs/{job}/suspend")
    page.locator(".log-line.is-event").get_by_text("Suspended by bootstrap").wait_for()
    yard.wait_for(job, "suspended")
    yard.call("POST", f"/jobs/{job}/resume")
    wait_until(lambda: texts(page).count(SPELLED) == 2, 30, "the second attempt's line")
    wait_until(
        lambda: options() == ["all attempts", "attempt 2", "attempt 1"], 30, "the choice of both attempts"
    )


def test_progress_lines_can_be_seen_raw_and_long_lines_wrapped_and_both_are_kept(yard: Yard, open_as: Open):
    job = yard.submit("wide", PRINT)
    page = open_as("ana", f"/jobs/{job}/logs").page
    wait_until(lambda: len(texts(page)) == 5, 30, "the lines")
    view = page.locator(".log-view")
    assert view.evaluate("(node) => node.scrollWidth > node.clientWidth")
    page.click("[data-log-wrap]")
    page.click("[data-log-raw]")
    wait_until(lambda: json.dumps(REPORT) in texts(page), 10, "the raw line")
    wait_until(lambda: view.evaluate("(node) => node.scrollWidth <= node.clientWidth"), 10, "wrapped lines")
    page.reload()
    wait_until(lambda: json.dumps(REPORT) in texts(page), 10, "the raw line after a reload")
    assert page.get_attribute("[data-log-wrap]", "aria-pressed") == "true"
    page.click("[data-log-raw]")
    wait_until(lambda: SPELLED in texts(page), 10, "the line spelled out again")


def test_wrapped_lines_keep_their_place(yard: Yard, open_as: Open):
    job = yard.submit("wraps", "for i in $(seq 400); do echo line $i $(seq 80); done; sleep 300")
    page = open_as("ana", f"/jobs/{job}/logs", viewport={"width": 900, "height": 800}).page
    page.click("[data-log-wrap]")
    page.locator(".log-line").get_by_text("line 400 ").wait_for()
    view = page.locator(".log-view")
    wait_until(
        lambda: view.evaluate("(node) => node.scrollTop + node.clientHeight >= node.scrollHeight - 1"), 10
    )
    heights = page.locator(".log-line").evaluate_all("(rows) => rows.map((row) => row.offsetHeight)")
    assert max(heights) > 20
    assert {height % 20 for height in heights} == {0}
    page.evaluate("location.hash = '#L200'")
    page.locator(".log-line.is-target").get_by_text("line 200 ").wait_for()
    rows = page.locator(".log-line").evaluate_all(
        "(rows) => rows.map((row) => [row.getBoundingClientRect().top, row.getBoundingClientRect().bottom])"
    )
    assert all(below[0] == above[1] for above, below in pairwise(rows))
    wait_until(
        lambda: view.evaluate(TARGET_TOP) == 100,
        10,
        "five rows above the line, however many rows the lines above it take",
    )


def test_a_search_finds_lines_as_they_are_shown(yard: Yard, open_as: Open):
    job = yard.submit("searching", PRINT)
    page = open_as("ana", f"/jobs/{job}/logs").page
    wait_until(lambda: SPELLED in texts(page), 30, "the line")
    page.fill("[data-log-search]", "step 5/10")
    page.get_by_text("1 matching lines").wait_for()
    assert page.locator(".log-line mark").inner_text() == "step 5/10"


def test_tab_passes_the_lines_and_focus_survives_new_ones(yard: Yard, open_as: Open):
    job = yard.submit("focus", "i=0; while true; do i=$((i+1)); echo tick $i; sleep 0.5; done")
    page = open_as("ana", f"/jobs/{job}/logs").page
    page.locator(".log-line .text").get_by_text("tick ").first.wait_for()
    page.locator(".log-view").focus()
    page.keyboard.press("Tab")
    assert not page.evaluate("document.querySelector('.log').contains(document.activeElement)")
    page.locator(".log-line a.n").first.focus()
    focused = "document.activeElement.closest('.log-line')?.querySelector('.text').textContent"
    before = page.evaluate(focused)
    assert before
    count = len(texts(page))
    wait_until(lambda: len(texts(page)) > count + 2, 30, "more lines")
    assert page.evaluate(focused) == before
