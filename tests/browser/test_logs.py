"""The log viewer where a log is longer than a browser can draw, where output is missing, and on a narrow screen."""

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from controlplane.logstore.writer import LogWriter
from tests.browser.conftest import Open, Yard
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

LINES, MIDDLE, ROW = 1_300_000, 650_000, 20
# where the first row on screen stands in the whole log, in pixels; empty while it is still looked for
PLACE = """() => {
  const top = document.querySelector(".log-view").getBoundingClientRect().top + 1;
  const rows = [...document.querySelectorAll(".log-line:has(.text)")];
  const first = rows.find((row) => row.getBoundingClientRect().bottom > top);
  const number = Number(first?.querySelector(".n").textContent.replaceAll(",", ""));
  return first && number * 20 - first.getBoundingClientRect().top + top;
}"""
# the different pictures that the word "line", which all rows begin with, has in a picture of them all
PICTURES = """async ([picture, width, rows]) => {
  const bytes = Uint8Array.from(atob(picture), (each) => each.charCodeAt(0));
  const canvas = new OffscreenCanvas(width, rows * 20), pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(await createImageBitmap(new Blob([bytes])), 0, 0);
  return new Set(Array.from({ length: rows }, (_, row) => pen.getImageData(0, row * 20, width, 20).data.join())).size;
}"""


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 1.3 million lines."""
    path = tmp_path_factory.mktemp("logs") / "long.log"
    writer = LogWriter(str(path))
    for first in range(1, LINES, 50_000):
        writer.feed(b"o", b"".join(b"line %d\n" % n for n in range(first, first + 50_000)))
    writer.end("completed")
    writer.close()
    return path


def log_of(yard: Yard, job: str) -> Path:
    """Where the job's first attempt is written."""
    return yard.server.state_dir / "logs" / job / "1-0.log"


def ended(yard: Yard, name: str) -> str:
    """A job that has ended and printed nothing."""
    job = yard.submit(name, "true")
    yard.wait_for(job, "succeeded")
    return job


@pytest.fixture
def long_job(yard: Yard, long_log: Path) -> str:
    """An ended job that has printed the long log."""
    job = ended(yard, "endless")
    log_of(yard, job).unlink(missing_ok=True)
    os.link(long_log, log_of(yard, job))
    return job


def texts(page: Page) -> list[str]:
    """The rows on the page."""
    return [text for text in page.locator(".log-line:not(.is-event) .text").all_inner_texts() if text]


def place(page: Page) -> float:
    """Where the reader is, once the rows are there and stand still."""
    seen: list[Any] = []

    def is_still() -> bool:
        seen.append(page.evaluate(PLACE))
        return len(seen) > 8 and seen[-1] is not None and len(set(seen[-8:])) == 1

    wait_until(is_still, 10, "rows that stand still")
    return float(seen[-1])


def moved(page: Page, move: Callable[[], None]) -> float:
    """How far a movement takes the reader, in lines."""
    before = place(page)
    move()
    wait_until(lambda: page.evaluate(PLACE) not in (None, before), 5, "a movement")
    return (place(page) - before) / ROW


def test_rows_far_down_are_drawn_as_evenly_as_the_first(long_job: str, open_as: Open):
    page = open_as("ana", f"/jobs/{long_job}/logs").page
    for where in (LINES, 940_000):
        page.evaluate("(n) => { location.hash = `#L${n}`; }", where)
        page.locator(".log-line.is-target").get_by_text(f"line {where}").wait_for()
        place(page)
        page.mouse.move(5, 5)
        page.evaluate("document.querySelector('.is-target').classList.remove('is-target')")
        word = page.locator(".log-line .text", has_text=f"line {where - 4}").bounding_box()
        assert word is not None
        clip = {"x": word["x"], "y": word["y"], "width": 28, "height": 4 * ROW}
        picture = base64.b64encode(page.screenshot(clip=clip)).decode()
        assert page.evaluate(PICTURES, [picture, 28, 4]) == 1, f"rows differ at line {where}"


def test_every_line_of_a_long_log_can_be_reached_by_its_own_steps(long_job: str, open_as: Open):
    page = open_as("ana", f"/jobs/{long_job}/logs#L{MIDDLE}").page
    view = page.locator(".log-view")
    view.focus()
    assert place(page) == (MIDDLE - 5) * ROW  # five rows above the line that was asked for
    view.hover()
    assert moved(page, lambda: page.mouse.wheel(0, 300)) == 15
    assert moved(page, lambda: page.mouse.wheel(0, -100)) == -5
    assert moved(page, lambda: page.keyboard.press("ArrowDown")) == 2
    assert 10 < moved(page, lambda: page.keyboard.press("PageDown")) * ROW < view.bounding_box()["height"]
    page.keyboard.press("End")
    page.locator(".log-line").get_by_text(f"line {LINES}").wait_for()
    assert page.get_attribute("[data-log-follow]", "aria-pressed") == "true"
    assert moved(page, lambda: page.keyboard.press("ArrowUp")) == -2
    assert page.get_attribute("[data-log-follow]", "aria-pressed") == "false"
    page.keyboard.press("Home")
    page.locator(".log-line").get_by_text("line 1", exact=True).wait_for()
    assert place(page) == ROW
    page.click("[data-log-follow]")
    page.locator(".log-line").get_by_text(f"line {LINES}").wait_for()
    at_end = "(node) => node.scrollTop + node.clientHeight >= node.scrollHeight - 1"
    wait_until(lambda: view.evaluate(at_end), 10, "the end of the log")


def test_the_scrollbar_stands_for_the_share_of_a_long_log(long_job: str, open_as: Open):
    page = open_as("ana", f"/jobs/{long_job}/logs").page
    page.locator(".log-line").get_by_text(f"line {LINES}").wait_for()
    page.eval_on_selector(".log-view", "(node) => { node.scrollTop = node.scrollHeight / 4; }")
    assert place(page) / ROW == pytest.approx(LINES / 4, rel=0.05)


def test_all_gaps_of_a_line_are_shown_in_order_also_those_before_the_first(yard: Yard, open_as: Open):
    job = ended(yard, "holes")
    log_of(yard, job).unlink(missing_ok=True)
    writer = LogWriter(str(log_of(yard, job)))
    writer.gap("output may be missing before 2026-01-01T12:00:00.000Z: nobody listened")
    writer.gap("the disk was full")
    writer.feed(b"o", b"one\ntwo\n")
    writer.gap("first")
    writer.gap("second")
    writer.feed(b"o", b"three\n")
    writer.end("completed")
    writer.close()
    page = open_as("ana", f"/jobs/{job}/logs#L2").page
    page.locator(".log-line.is-target").get_by_text("two").wait_for()
    expected = [
        "output may be missing before 2026-01-01T12:00:00.000Z: nobody listened",
        "output is missing here: the disk was full",
        *("one", "two"),
        *("output is missing here: first", "output is missing here: second"),
        "three",
    ]
    wait_until(lambda: texts(page) == expected, 10, "all gaps in order")
    numbers = page.locator(".log-line:not(.is-event) .n").all_inner_texts
    wait_until(lambda: numbers() == ["", "", "1", "2", "", "", "3"], 10, "the numbers of the lines")


def test_a_gap_that_comes_later_stands_behind_the_one_before(yard: Yard, open_as: Open):
    job = yard.submit("losing", "echo one; sleep 300")
    page = open_as("ana", f"/jobs/{job}/logs").page
    page.locator(".log-line .text").get_by_text("one").wait_for()
    writer = LogWriter(str(log_of(yard, job)))
    expected = ["one"]
    for loss in ("first", "second"):
        writer.gap(loss)
        expected.append(f"output is missing here: {loss}")
        wait_until(lambda: texts(page) == expected, 10, f"the {loss} gap")
    writer.feed(b"o", b"two\n")
    writer.close()
    wait_until(lambda: texts(page) == [*expected, "two"], 10, "the line after the gaps")


def test_a_narrow_log_keeps_its_controls_in_two_rows_and_says_that_nothing_was_printed(
    yard: Yard, open_as: Open
):
    job = ended(yard, "silent")
    page = open_as("ana", f"/jobs/{job}/logs", viewport={"width": 390, "height": 800}).page
    page.get_by_text("It printed nothing.").wait_for()
    assert not page.is_visible("text=No output yet.")
    names = ("h2", "select", "input", "[data-log-wrap]", "[data-log-follow]", "a.button")
    title, *boxes = (box for name in names if (box := page.locator(f".log {name}").bounding_box()))
    middles = [box["y"] + box["height"] / 2 for box in boxes]
    assert max(middles[:2]) - min(middles[:2]) <= 1
    assert max(middles[2:]) - min(middles[2:]) <= 1
    assert title["y"] + title["height"] <= boxes[0]["y"] < boxes[2]["y"]
    assert abs(title["x"] - boxes[0]["x"]) <= 1
