"""Live pages: the first frame changes nothing, changes arrive, what is lost is said, and the hands keep their place."""

import re
from typing import Any

import pytest
from playwright.sync_api import Route

from tests.browser.conftest import Open, Yard
from tests.browser.samples import AGES, DURATIONS, FIGURES, MEBIBYTES, NUMBERS, PERCENTS, PROGRESS
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

PARTS = (
    "#totals",
    "#devices",
    "#shares",
    "#running",
    "#queued",
    "#in-use",
    "#running-count",
    "#queued-count",
)
# times tick and scripts add a title and a place in the tab order; nothing else may differ
SHOWN = """(parts) => Object.fromEntries(parts.map((part) => {
  const copy = document.querySelector(part).cloneNode(true);
  for (const node of copy.querySelectorAll("*")) {
    if (!node.closest(".cell")) { node.removeAttribute("tabindex"); node.removeAttribute("title"); }
    if (node instanceof HTMLElement && node.className) node.className = [...node.classList].sort().join(" ");
  }
  for (const node of copy.querySelectorAll("time, [data-under=jobs_queued]")) {
    node.textContent = "";
    for (const name of node.getAttributeNames()) node.removeAttribute(name);
  }
  return [part, copy.innerHTML.replace(/\\s+/g, " ")];
}))"""

FILES = re.compile('(<section class="panel col-8" id="files"[^>]*)>')
FILES_AGAIN = r'\1 data-again="0.1"><p>being read</p>'
# before the scripts of the page run
MARK = """document.addEventListener("readystatechange", () => {
  if (document.readyState === "interactive") document.querySelector("#files")?.setAttribute("data-again", "0.1");
});"""

# a wheel scrolls in steps: the place counts once it stays
SCROLLED = """() => new Promise((done) => {
  let before = 0;
  const look = () => { if (scrollY > 0 && scrollY === before) done(true); before = scrollY; setTimeout(look, 200); };
  look();
})"""
WRITE = """async ([name, values]) => {
  const format = await import("/static/js/format.js");
  return values.map((value) => format[name](value));
}"""


def test_the_first_frame_changes_not_a_character(yard: Yard, open_as: Open):
    jobs = [
        yard.submit("whole", gpus=2),
        yard.submit("half", gpus=0.5, kind="interactive"),
        yard.submit("other-half", gpus=0.25, project="team-b"),
    ]
    for job in jobs:
        yard.wait_for(job, "running")
    waiting = yard.submit("too-big", gpus=8, workers=2)
    wait_until(
        lambda: yard.call("GET", f"/jobs/{waiting}")["status"]["reason"]["code"] == "gang_does_not_fit",
        20,
        "a reason",
    )
    plain = open_as("root", java_script_enabled=False)
    watched = open_as("root")

    def seen() -> tuple[Any, Any, Any]:
        """As the server draws it, as it is after the first frame, and as the server draws it then."""
        plain.go("/")
        before = plain.page.evaluate(SHOWN, list(PARTS))
        watched.go("/")
        watched.is_live()
        watched.page.wait_for_function("() => document.querySelector('.chart-plot.js-plotly-plot') !== null")
        after = watched.page.evaluate(SHOWN, list(PARTS))
        plain.go("/")
        return before, after, plain.page.evaluate(SHOWN, list(PARTS))

    # measured values may still move while the jobs settle: only a look at a still cluster says anything
    before, after, _again = wait_until(lambda: (look := seen())[0] == look[2] and look, 60, "a still cluster")
    for part in PARTS:
        assert after[part] == before[part], part


def test_a_new_job_and_its_end_come_by_themselves(yard: Yard, open_as: Open):
    watched = open_as("vera")
    watched.is_live()
    page = watched.page
    page.evaluate("window.samePage = true")
    job = yard.submit("comes", "sleep 300", gpus=3)
    row = page.locator(f"#running tr[data-key='{job}']")
    row.wait_for()
    assert row.locator("a.main").get_attribute("href") == f"/jobs/{job}"
    page.wait_for_function(
        "() => document.querySelector('#totals [data-field=gpus_allocated]').textContent === '3'"
    )
    wait_until(lambda: page.inner_text("#shares [data-key=team-a] b") == "3", what="the project's share")
    cells = page.locator(".cell g[data-project=team-a]")
    wait_until(lambda: cells.count() == 3, what="three cells of the project")
    yard.call("POST", f"/jobs/{job}/stop")
    row.wait_for(state="detached")
    page.wait_for_function("() => document.querySelectorAll('.cell g').length === 0")
    page.locator("#running-empty").wait_for()
    assert page.evaluate("window.samePage") is True


def test_a_queued_job_says_why(yard: Yard, open_as: Open):
    page = open_as("ana").page
    job = yard.submit("waits", gpus=8, workers=3)
    item = page.locator(f"#queued li[data-key='{job}']")
    item.wait_for()

    def is_said() -> bool:
        """Both are read again: the first reason may be replaced by a better one."""
        reason = yard.call("GET", f"/jobs/{job}")["status"]["reason"]["message"]
        return bool(reason) and item.get_by_text(reason).is_visible()

    wait_until(is_said, what="the reason on the page")


def test_lists_and_job_pages_follow_too(yard: Yard, open_as: Open):
    listed, own = open_as("ana", "/jobs").page, None
    job = yard.submit("followed")
    row = listed.locator(f"tr[data-key='{job}']")
    row.locator(".badge[data-state=running]").wait_for()
    own = open_as("ana", f"/jobs/{job}").page
    own.locator("#job-title .badge[data-state=running]").wait_for()
    yard.call("POST", f"/jobs/{job}/stop")
    own.locator("#job-title .badge[data-state=stopped]").wait_for()
    own.locator("#job-actions >> text=Retry").wait_for()
    row.locator(".badge[data-state=stopped]").wait_for()


def test_focus_and_scroll_stay_over_live_updates(yard: Yard, open_as: Open):
    jobs = [yard.submit(f"row-{number}", gpus=0.25) for number in range(6)]
    for job in jobs:
        yard.wait_for(job, "running")
    page = open_as("ana", "/", viewport={"width": 1200, "height": 500}).page
    row = page.locator(f"#running tr[data-key='{jobs[0]}']")
    row.focus()
    page.mouse.wheel(0, 150)
    page.wait_for_function(SCROLLED)
    before = page.evaluate("scrollY")
    late = yard.submit("late", gpus=0.25)
    page.locator(f"#running tr[data-key='{late}']").wait_for()
    yard.call("POST", f"/jobs/{jobs[3]}/stop")
    page.locator(f"#running tr[data-key='{jobs[3]}']").wait_for(state="detached")
    assert page.evaluate("document.activeElement.dataset.key") == jobs[0]
    assert (
        abs(page.evaluate("scrollY") - before) < 120
    )  # rows above the eye come and go; the page itself stays


def test_a_lost_feed_is_said_and_comes_back_true(yard: Yard, open_as: Open):
    watched = open_as("ana")
    watched.is_live()
    page = watched.page
    yard.server.children()["web"].kill()
    page.wait_for_selector("#live[data-state=lost]")
    page.locator("#live[data-state=lost]").get_by_text("Offline since").wait_for()
    page.wait_for_selector("body[data-stale]")
    wait_until(yard.server.is_ready, 30, "the web server's return")
    job = yard.submit("meanwhile")
    watched.is_live()
    page.locator(f"#running tr[data-key='{job}']").wait_for()
    page.wait_for_selector("body:not([data-stale])")
    watched.troubles.clear()  # the browser itself logs refused connections


def test_server_and_browser_write_numbers_alike(open_as: Open):
    page = open_as("ana").page
    cases = {
        "number": NUMBERS, "percent": PERCENTS, "mebibytes": MEBIBYTES, "duration": DURATIONS, "figure": FIGURES,
        "ago": AGES, "fraction": PROGRESS,
    }  # fmt: skip
    for name, samples in cases.items():
        written = page.evaluate(WRITE, [name, [value for value, _text in samples]])
        assert written == [text for _value, text in samples], name


def test_reduced_motion_means_none(yard: Yard, open_as: Open):
    page = open_as("ana", reduced_motion="reduce").page
    job = yard.submit("still")
    row = page.locator(f"#running tr[data-key='{job}']")
    row.wait_for()
    assert page.evaluate("document.getAnimations().length") == 0


def test_nodes_that_are_cordoned_are_counted(yard: Yard, open_as: Open):
    page = open_as("root").page
    page.locator("[data-under=nodes] >> text=all ready").wait_for()
    node = yard.call("GET", "/nodes")["results"][0]["name"]
    yard.call("POST", f"/nodes/{node}/cordon")
    try:
        page.locator("[data-under=nodes] >> text=1 cordoned").wait_for()
    finally:
        yard.call("POST", f"/nodes/{node}/uncordon")
    page.locator("[data-under=nodes] >> text=all ready").wait_for()


def test_files_that_a_pod_reads_are_drawn_again_and_what_is_typed_beside_them_stays(
    yard: Yard, open_as: Open
):
    body = {"project": "team-a", "name": "typed", "size": "1Gi"}
    address = f"/volumes/{yard.call('POST', '/volumes', body)['id']}"
    watched, seen, is_typed = open_as("root"), 0, False

    def not_yet(route: Route) -> None:
        nonlocal seen
        if route.request.resource_type == "document":
            route.continue_()
            return
        answer, seen = route.fetch(), seen + 1
        text = answer.text() if is_typed else FILES.sub(FILES_AGAIN, answer.text())
        route.fulfill(response=answer, body=text)

    watched.page.route(f"**{address}", not_yet)
    watched.page.add_init_script(MARK)
    watched.go(address)
    watched.page.get_by_text("being read").wait_for()
    watched.page.fill("#v-size", "200Gi")
    is_typed = True
    watched.page.wait_for_function("() => document.querySelector('#files').dataset.again === undefined")
    assert watched.page.get_by_text("being read").count() == 0
    assert watched.page.input_value("#v-size") == "200Gi"
    assert seen > 1
