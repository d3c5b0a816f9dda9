"""Every page, light and dark, wide and narrow: axe-core and what it does not know find nothing."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.conftest import Yard
from tests.browser.every_page import ADDRESSES, NOT_PAGES, PAGES, WHEN_SIGNED_OUT, fill, routes
from tools.install import AXE

pytestmark = pytest.mark.browser

WIDE, NARROW = {"width": 1440, "height": 2400}, {"width": 400, "height": 2400}  # tall: every chart is drawn
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
READY = """() => (!document.getElementById("live") || document.querySelector("#live[data-state=live]"))
  && [...document.querySelectorAll(".chart-plot, [data-shell]")]
    .every((drawn) => !drawn.checkVisibility() || drawn.querySelector(".main-svg, .xterm-screen"))"""
AUDIT = """async (tags) => (await axe.run({runOnly: tags, resultTypes: ["violations"], iframes: false})).violations
  .flatMap(({id, nodes}) => nodes.map((node) => `${id}: ${node.html.slice(0, 160)} ${node.failureSummary}`))"""
SPILL = """() => document.documentElement.scrollWidth <= document.documentElement.clientWidth ? [] :
  [...document.querySelectorAll("body *")].filter((node) => node.getBoundingClientRect().right > innerWidth + 1)
  .map((node) => `too wide: ${node.outerHTML.slice(0, 120)}`).slice(0, 5)"""

HEADINGS = """() => {
  const shown = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter((node) => node.checkVisibility());
  const levels = shown.map((node) => Number(node.tagName[1]));
  return shown.filter((node, at) => (at ? levels[at] === 1 || levels[at] > levels[at - 1] + 1 : levels[0] !== 1))
    .map((node) => `heading out of order: ${node.outerHTML.slice(0, 120)}`);
}"""
# A field is seen by its edge; WCAG 1.4.11 asks for 3:1 with what is around it.
EDGES = """() => {
  const channel = (value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [red, green, blue] = colour.match(/[\\d.]+/g).map(Number);
    return 0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
  };
  const behind = (node) => {
    const colour = getComputedStyle(node).backgroundColor;
    return /, 0\\)$/.test(colour) ? behind(node.parentElement) : colour;
  };
  const contrast = (node) => {
    const edge = light(getComputedStyle(node).borderTopColor), around = light(behind(node.parentElement));
    return (Math.max(edge, around) + 0.05) / (Math.min(edge, around) + 0.05);
  };
  return [...document.querySelectorAll("input, select, textarea")]
    .filter((node) => node.checkVisibility() && !["checkbox", "radio", "hidden", "file"].includes(node.type))
    .filter((node) => !node.closest(".xterm") && contrast(node) < 3)
    .map((node) => `edge of ${contrast(node).toFixed(2)}:1: ${node.outerHTML.slice(0, 120)}`);
}"""
# Words of neighbouring columns stand apart.
TOUCHING = """() => {
  const edge = (node) => node.getBoundingClientRect().right - parseFloat(getComputedStyle(node).paddingRight);
  const words = (cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    const inner = range.getBoundingClientRect();
    const cut = [cell, ...cell.querySelectorAll("*")].filter((node) => getComputedStyle(node).overflowX === "hidden");
    return inner.width ? [inner.left, Math.min(inner.right, ...cut.map(edge))] : null;
  };
  const found = [];
  for (const row of document.querySelectorAll("tr")) {
    const shown = [...row.cells].filter((cell) => cell.checkVisibility());
    const cells = shown.map((cell) => [cell, words(cell)]).filter(([, at]) => at);
    for (let at = 1; at < cells.length; at += 1) {
      const gap = cells[at][1][0] - cells[at - 1][1][1];
      if (gap < 15) found.push(`columns ${gap.toFixed(0)} px apart: ${cells[at][0].outerHTML.slice(0, 120)}`);
    }
  }
  return found.slice(0, 5);
}"""
CHECKS = (SPILL, HEADINGS, EDGES, TOUCHING)


@pytest.fixture(scope="module")
def filled(running: Yard) -> Iterator[dict[str, str]]:
    """The ids of the jobs in every state."""
    yard = Yard(running.server)
    yield fill(yard)
    yard.call("POST", "/nodes/dgx1-2/uncordon")
    yard.clear()


Pages = dict[str, Page]


@pytest.fixture(scope="module")
def pages(browser: Browser, sessions: dict[str, Any]) -> Iterator[Pages]:
    """A page for each of some people, for all addresses in turn; without motion, so that no colour is half-way."""
    people = {name for name, _address in ADDRESSES}
    contexts = {
        name: browser.new_context(storage_state=sessions.get(name), viewport=WIDE, reduced_motion="reduce")
        for name in people
    }
    yield {name: context.new_page() for name, context in contexts.items()}
    for context in contexts.values():
        context.close()


def test_every_route_is_listed():
    names = {route.name for route in routes()}
    assert not names - PAGES.keys() - WHEN_SIGNED_OUT.keys() - NOT_PAGES


@pytest.mark.parametrize(("person", "address"), ADDRESSES)
def test_nothing_is_found(pages: Pages, running: Yard, filled: dict[str, str], person: str, address: str):
    page = pages[person]
    page.set_viewport_size(WIDE)
    page.goto(f"{running.server.url}{address.format(**filled)}")
    page.wait_for_function(READY)
    if page.locator(".log-view").count():
        page.wait_for_load_state("networkidle")
    page.evaluate(AXE.read_text())
    found = [f"{name}: {finding}" for name in looks(page) for finding in findings(page)]
    assert not found, "\n".join(found)


def findings(page: Page) -> list[str]:
    """Everything wrong with the page as it is now."""
    return page.evaluate(AUDIT, TAGS) + [finding for check in CHECKS for finding in page.evaluate(check)]


def looks(page: Page) -> Iterator[str]:
    """The page as it is light, dark and narrow, one after the other."""
    for name, scheme, size in (("light", "light", WIDE), ("dark", "dark", WIDE), ("narrow", "light", NARROW)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(size)
        page.wait_for_function("(theme) => document.documentElement.dataset.theme === theme", arg=scheme)
        page.wait_for_function(READY)
        yield name
