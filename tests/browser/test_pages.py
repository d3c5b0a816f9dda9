"""Pages of members in a real browser: nothing fails, nothing foreign, nothing spills; menu, theme, sign-in."""

import pytest

from tests.browser.conftest import Open, Yard, patient
from tests.browser.page_checks import REPEATED, SPILL

pytestmark = pytest.mark.browser

# What differs by the role in a project; tests/browser/every_page.py has all pages of the admin.
OF_TEAM_A = ("/", "/projects/team-a", "/jobs/JOB")
OF_MEMBERS = (*OF_TEAM_A, "/new/job", "/jobs/JOB/terminal")
SEEN = {"ana": (*OF_MEMBERS, "/projects/team-a/edit", "/users/ana"), "ben": OF_MEMBERS}


@pytest.mark.parametrize("person", SEEN)
def test_members_see_their_pages_whole(yard: Yard, open_as: Open, person: str):
    job = yard.submit("shown", "echo hello; sleep 300")
    yard.wait_for(job, "running")
    watched = open_as(person)
    for path in SEEN[person]:
        assert watched.go(path.replace("JOB", job)).status == 200, path
        watched.is_live()
        found = [finding for check in (SPILL, REPEATED) for finding in watched.page.evaluate(check)]
        assert found == [], path


def test_a_stranger_finds_nothing_there(yard: Yard, open_as: Open):
    job = yard.submit("secret-work")
    watched = open_as("chi")
    for path in (f"/jobs/{job}", "/projects/team-a", "/users/ana", f"/jobs/{job}/logs"):
        assert watched.go(path).status == 404
        assert "Not found" in watched.page.inner_text("main")
    watched.troubles.clear()  # the browser itself logs a 404
    watched.go("/")
    watched.is_live()
    assert "secret-work" not in watched.page.content()


def test_a_viewer_sees_no_buttons_that_change_anything(yard: Yard, open_as: Open):
    job = yard.submit("looked-at")
    yard.wait_for(job, "running")
    page = open_as("vera", f"/jobs/{job}").page
    assert page.locator(".actions button, .actions form").count() == 0
    page.goto(f"{yard.server.url}/projects/team-a")
    assert page.locator("main form, main .actions button").count() == 0


def test_the_menu_of_a_narrow_screen(open_as: Open):
    page = open_as("ana", viewport={"width": 390, "height": 800}).page
    assert not page.locator("#nav").is_visible()
    page.click(".nav-toggle")
    page.click("#nav >> text=Projects")
    page.wait_for_url("**/projects")


def test_a_lineage_that_is_wider_than_the_window_shows_what_it_is_about(yard: Yard, open_as: Open):
    page = open_as(
        "ana", f"/lineage/job/{yard.submit('far-right')}", viewport={"width": 390, "height": 800}
    ).page
    whole, start = page.locator(".lineage").bounding_box(), page.locator(".lineage .start").bounding_box()
    assert whole
    assert start
    assert start["x"] + start["width"] <= whole["x"] + whole["width"] + 1


def test_a_lineage_that_is_wider_than_the_window_can_be_fitted_to_it(yard: Yard, open_as: Open):
    path, narrow = f"/lineage/job/{yard.submit('fitted')}", {"width": 390, "height": 800}
    page = open_as("ana", path, viewport=narrow).page
    button, width = page.get_by_role("button", name="Fit to width"), "e => e.scrollWidth - e.clientWidth"
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert page.eval_on_selector(".lineage", width) <= 1
    button.click()
    assert page.eval_on_selector(".lineage", width) > 50
    assert page.evaluate(SPILL) == []
    assert (
        not open_as("ana", path, viewport={"width": 1600, "height": 800})
        .page.locator("[data-lineage-fit]")
        .is_visible()
    )


def test_right_to_left_mirrors_without_spilling(open_as: Open):
    page = open_as("ana").page
    page.evaluate("document.documentElement.dir = 'rtl'")
    nav, main = page.locator("#nav").bounding_box(), page.locator("#page").bounding_box()
    assert nav is not None
    assert main is not None
    assert nav["x"] > main["x"]
    assert page.evaluate(SPILL) == []


def test_the_theme_is_there_before_the_page_is_painted(open_as: Open):
    page = open_as("ana", color_scheme="light").page
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.click(".avatar")
    page.click("button[data-theme-choice=dark]")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.add_init_script("""new MutationObserver((_, observer) => {
        if (document.body) { window.atBody = document.documentElement.dataset.theme; observer.disconnect(); }
      }).observe(document, {childList: true, subtree: true});""")
    page.reload()
    assert page.evaluate("window.atBody") == "dark"
    assert page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor") == "rgb(15, 18, 22)"
    page.click(".avatar")
    page.click("button[data-theme-choice=system]")
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function("(scheme) => document.documentElement.dataset.theme === scheme", arg=scheme)


def test_the_sign_in_page_works_without_scripts(browser, yard: Yard):
    context = patient(browser.new_context(java_script_enabled=False))
    page = context.new_page()
    page.goto(f"{yard.server.url}/jobs")
    page.fill("#username", "ana")
    page.fill("#password", "correct horse battery")
    page.click("button.primary")
    page.wait_for_url(f"{yard.server.url}/jobs")
    context.close()
