"""Every page, light and dark, wide and narrow: axe-core and what it does not know find nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
from django.template.loader import render_to_string
from playwright.sync_api import Browser, Page, Response, ViewportSize

from tests.browser.conftest import Watched, Yard, patient
from tests.browser.every_page import (
    ADDRESSES,
    IN_EVERY_LOOK,
    NOT_PAGES,
    OPENERS,
    PAGES,
    SIGNED_OUT,
    WHEN_SIGNED_OUT,
    fill,
    routes,
)
from tests.browser.page_checks import AGED, ASIDE, EDGES, EVERYWHERE, HANGING, SPILL, STRETCHED, TOUCHING
from tools.install import AXE

pytestmark = pytest.mark.browser

# Tall, so that every chart is drawn; low where charts are drawn already and nothing depends on the height.
TALL, LOW = 2400, 600
WIDE, NARROW = ({"width": width, "height": TALL} for width in (1440, 390))
WIDEST, TABLET, NARROWEST = ({"width": width, "height": LOW} for width in (2560, 768, 320))
TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
CONTRAST = ("color-contrast",)
READY = """(theme) => document.documentElement.dataset.theme === theme
  && (!document.getElementById("live") || document.querySelector("#live[data-state=live]"))
  && [...document.querySelectorAll(".chart-plot, [data-shell]")]
    .every((drawn) => !drawn.checkVisibility() || drawn.querySelector(".main-svg, .xterm-screen"))"""
AUDIT = """async ([tags, preload, without]) => (
    await axe.run({
      runOnly: tags, resultTypes: ["violations"], iframes: false, preload,
      rules: Object.fromEntries(without.map((rule) => [rule, {enabled: false}])),
    })
  ).violations
  .flatMap(({id, nodes}) => nodes.map((node) => `${id}: ${node.html.slice(0, 160)} ${node.failureSummary}`))"""
# For the one rule that reads style sheets axe-core fetches and parses them anew, a sixth of an audit.
OF_STYLE_SHEETS = ("css-orientation-lock",)
WITH_ALL_SHEETS = ("/", "/jobs/{running}/terminal")
TURN = """(direction) => {
  if ((document.documentElement.dir || "ltr") !== direction) document.documentElement.dir = direction;
}"""

# The letters of WCAG 1.4.12 and the longest state of the feed, for the narrowest screen of WCAG 1.4.10.
SPREAD = """() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync("* { letter-spacing: 0.12em !important; word-spacing: 0.16em !important; }");
  document.adoptedStyleSheets = [sheet];
  const feed = document.querySelector("#live");
  if (feed) [feed.dataset.state, feed.firstElementChild.textContent] = ["lost", "Offline since 12:34:56"];
}"""


@dataclass(frozen=True)
class Look:
    """The page in one theme, width and direction, and what is asked of it there: `audit` are rules or tags of axe,
    `without` rules of these tags that another look asks for."""

    name: str
    size: ViewportSize
    theme: Literal["light", "dark"] = "light"
    direction: str = "ltr"
    audit: tuple[str, ...] = ()
    checks: tuple[str, ...] = EVERYWHERE
    without: tuple[str, ...] = ()

    def findings(self, page: Page) -> Iterator[str]:
        """Bring the page into this look and return what is wrong with it."""
        self.apply(page)
        page.evaluate(TURN, self.direction)
        page.wait_for_function(READY, arg=self.theme)
        found = audited(page, self.audit, self.without) if self.audit else []
        for finding in [*found, *(finding for check in self.checks for finding in page.evaluate(check))]:
            yield f"{self.name}: {finding}"

    def apply(self, page: Page) -> None:
        """Set the theme and the width; one that stays the same draws no chart anew."""
        page.emulate_media(color_scheme=self.theme)
        if page.viewport_size != self.size:
            page.set_viewport_size(self.size)


# Each differs little from the one before it: what charts draw anew for every width is most of the time. The theme
# changes nothing but colours, so that wide and dark asks for contrast alone, and narrow, dark as well, for the rest.
LOOKS = (
    Look("light", WIDE, audit=TAGS),
    Look("right to left", WIDE, direction="rtl", checks=(SPILL,)),
    Look("dark", WIDE, "dark", audit=CONTRAST, checks=(EDGES,)),
    Look("narrow", NARROW, "dark", audit=TAGS, checks=(*EVERYWHERE, ASIDE), without=CONTRAST),
    Look("narrow, right to left", NARROW, "dark", direction="rtl", checks=(SPILL,)),
    Look("tablet", TABLET, "dark", checks=(SPILL, TOUCHING, ASIDE)),
    Look("widest", WIDEST, "dark", checks=(SPILL, HANGING, STRETCHED)),
)
LIGHT_AND_NARROW = tuple(replace(look, without=()) for look in LOOKS if look.audit == TAGS)
# What a narrow screen changes for axe in a page, rather than in the bars around it. What it hides is in those bars, in
# lists and in charts: of the pages without any, none is seen wide and dark.
HIDES_WHEN_NARROW = ".list, [data-chart]"
OF_WIDTH = (*CONTRAST, "target-size", "scrollable-region-focusable")
NARROW_AND_DARK = Look("narrow", NARROW, "dark", audit=OF_WIDTH, checks=(*EVERYWHERE, ASIDE))
WITHOUT_LISTS = (*LOOKS[:2], NARROW_AND_DARK, *LOOKS[4:])
# Of another page of a template that was seen in every look: what depends on its contents and on the width.
LIKE_ANOTHER = (LOOKS[0], NARROW_AND_DARK)


@pytest.fixture(scope="module")
def filled(running: Yard) -> Iterator[dict[str, str]]:
    """The ids of the jobs in every state."""
    yard = Yard(running.server)
    yield fill(yard)
    yard.call("POST", "/nodes/dgx1-2/uncordon")
    yard.clear()


Pages = dict[str, Watched]


@pytest.fixture(scope="module")
def pages(browser: Browser, sessions: dict[str, Any], running: Yard) -> Iterator[Pages]:
    """A page for each of some people, for all addresses in turn; without motion, so that no colour is half-way."""
    people = {name for name, _address in ADDRESSES}
    contexts = {
        name: patient(
            browser.new_context(storage_state=sessions.get(name), viewport=WIDE, reduced_motion="reduce")
        )
        for name in people
    }
    yield {
        name: Watched(context.new_page(), running.server.url).watch() for name, context in contexts.items()
    }
    for context in contexts.values():
        context.close()


def test_every_route_is_listed():
    listed = {*PAGES, *WHEN_SIGNED_OUT, *NOT_PAGES}
    assert [route.name for route in routes() if route.name not in listed] == []


@pytest.mark.parametrize(("person", "address"), ADDRESSES)
def test_nothing_is_found(pages: Pages, filled: dict[str, str], person: str, address: str):
    watched = pages[person]
    answer = opened(watched, address.format(**filled))
    expect_nothing(watched.page, looks_at(watched, person, address))
    troubles = watched.new_troubles()
    # the browser itself logs the status of a page that is missing
    assert answer.status == 404 or troubles == []


@pytest.mark.parametrize(("address", "opener"), OPENERS)
def test_nothing_is_found_in_what_opens(pages: Pages, filled: dict[str, str], address: str, opener: str):
    watched = pages["root"]
    opened(watched, address.format(**filled))
    watched.page.wait_for_function(READY, arg=LOOKS[0].theme)
    watched.page.click(opener)
    # the page below is looked at in every look by `test_nothing_is_found`
    expect_nothing(watched.page, LIGHT_AND_NARROW)
    assert watched.new_troubles() == []


@pytest.mark.parametrize("errors", [{}, dict.fromkeys(("username", "password", "again"), "This is refused.")])
def test_nothing_is_found_on_the_page_of_the_first_admin(pages: Pages, errors: dict[str, str]):
    # no running instance shows it twice: the template goes out in place of the answer for a used link
    page, address = pages[SIGNED_OUT].page, WHEN_SIGNED_OUT["setup"]
    markup = render_to_string("dashboards/setup.html", {"username": "admin", "errors": errors})
    page.route(f"**{address}", lambda route: route.fulfill(body=markup, content_type="text/html"))
    opened(pages[SIGNED_OUT], address)
    page.locator("#again").wait_for()
    expect_nothing(page)
    page.unroute_all()


@pytest.mark.parametrize(
    "address",
    [
        *("/jobs", "/nodes", "/projects", "/volumes", "/datasets", "/cache-locations", "/clusters", "/audit"),
        *("/datasets/{dataset}", "/volumes/{volume}"),
    ],
)
def test_lists_fit_every_width_between_a_tablet_and_a_desktop(
    pages: Pages, filled: dict[str, str], address: str
):
    page = pages["root"].page
    opened(pages["root"], address.format(**filled))
    for width in (900, 901, 980, 981, 1024, 1060, 1061, 1100, 1101, 1200, 1201, 1300, 1301, 1420, 1421, 1440):
        page.set_viewport_size({"width": width, "height": LOW})
        page.evaluate(AGED)
        assert [f"{width}: {found}" for check in (SPILL, ASIDE) for found in page.evaluate(check)] == []
        asides = page.locator(".list td.aside")
        shown = asides.evaluate_all("all => all.filter((one) => one.checkVisibility()).length")
        gone = page.locator(".list td.spare").count() if 1060 < width <= 1300 else 0
        gone += page.locator(".list td.minor").count() if 980 < width <= 1100 else 0
        assert shown == (asides.count() - gone if width > 900 else 0), width


def test_no_style_sheet_locks_the_orientation(pages: Pages, filled: dict[str, str]):
    watched = pages["root"]
    for address in WITH_ALL_SHEETS:
        watched.go(address.format(**filled))
        watched.page.evaluate(AXE.read_text())
        assert audited(watched.page, OF_STYLE_SHEETS, with_sheets=True) == []


def looks_at(watched: Watched, person: str, address: str) -> Sequence[Look]:
    """The looks that may show something on this page which no other page shows."""
    if (person, address) not in IN_EVERY_LOOK:
        return LIKE_ANOTHER
    return LOOKS if watched.page.locator(HIDES_WHEN_NARROW).count() else WITHOUT_LISTS


def audited(
    page: Page, rules: Sequence[str], without: Sequence[str] = (), *, with_sheets: bool = False
) -> list[str]:
    """What axe-core finds by these rules or tags, but for the rules in `without`."""
    found: list[str] = page.evaluate(AUDIT, [rules, with_sheets, without])
    return found


def opened(watched: Watched, address: str) -> Response:
    """Open a page as the first look has it: its charts are drawn once for it, not first as the last page was left.

    In between is a page without any. It is one of the same site, since Chromium starts a process for another.
    """
    watched.go("/healthz")
    LOOKS[0].apply(watched.page)
    return watched.go(address)


def expect_nothing(page: Page, looks: Sequence[Look] = LOOKS) -> None:
    """Fail with everything that is wrong with an opened page, in these looks."""
    page.wait_for_function(READY, arg=looks[0].theme)
    if page.locator(".log-view").count():
        page.wait_for_load_state("networkidle")
    page.evaluate(AXE.read_text())
    found = [finding for look in looks for finding in look.findings(page)]
    page.set_viewport_size(NARROWEST)
    page.evaluate(SPREAD)
    found += [f"narrowest: {finding}" for finding in page.evaluate(SPILL)]
    assert not found, "\n".join(found)
