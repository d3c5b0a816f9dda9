"""Every page, light and dark, wide and narrow: no violation of any axe-core rule, and nothing wider than the screen."""

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
    assert names == PAGES.keys() | WHEN_SIGNED_OUT.keys() | NOT_PAGES


@pytest.mark.parametrize(("person", "address"), ADDRESSES)
def test_axe_finds_nothing_and_nothing_spills(
    pages: Pages, running: Yard, filled: dict[str, str], person: str, address: str
):
    page = pages[person]
    page.set_viewport_size(WIDE)
    page.goto(f"{running.server.url}{address.format(**filled)}")
    page.wait_for_function(READY)
    if page.locator(".log-view").count():
        page.wait_for_load_state("networkidle")
    page.evaluate(AXE.read_text())
    found = [
        f"{name}: {finding}"
        for name in looks(page)
        for finding in [*page.evaluate(AUDIT, TAGS), *page.evaluate(SPILL)]
    ]
    assert not found, "\n".join(found)


def looks(page: Page) -> Iterator[str]:
    """The page as it is light, dark and narrow, one after the other."""
    for name, scheme, size in (("light", "light", WIDE), ("dark", "dark", WIDE), ("narrow", "light", NARROW)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(size)
        page.wait_for_function("(theme) => document.documentElement.dataset.theme === theme", arg=scheme)
        page.wait_for_function(READY)
        yield name
