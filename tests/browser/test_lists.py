"""Lists in a real browser: filters and heads act in place, selected rows stay selected, questions come as dialogs."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open, Yard
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

ROWS = "() => [...document.querySelectorAll('#jobs-table tbody a.main')].map((link) => link.textContent)"


def shown(page: Page) -> list[str]:
    names: list[str] = page.evaluate(ROWS)
    return names


def fill_list(yard: Yard) -> dict[str, str]:
    """Three jobs: two of team-a, one of them waiting, and one of team-b."""
    jobs = {
        "alpha": yard.submit("alpha", gpus=2),
        "beta": yard.submit("beta", gpus=8, workers=2),
        "gamma": yard.submit("gamma", project="team-b"),
    }
    for name in ("alpha", "gamma"):
        yard.wait_for(jobs[name], "running")
    return jobs


def test_filters_act_at_once_and_stay_in_the_address(yard: Yard, open_as: Open):
    fill_list(yard)
    page = open_as("root", "/jobs").page
    page.evaluate("window.samePage = true")
    page.select_option("select[name=state]", "running")
    wait_until(lambda: sorted(shown(page)) == ["alpha", "gamma"], what="the filtered rows")
    assert page.url.endswith("/jobs?state=running")
    summary = "2 jobs, GPUs: 3 asked for, 3 held"
    wait_until(lambda: page.inner_text("#jobs-summary").startswith(summary), what="the sum of the rows")
    page.locator("input[name=q]").press_sequentially("alp")
    # where the keys come slowly, "al" acts first and shows the same rows
    page.wait_for_url("**/jobs?q=alp&state=running")
    wait_until(lambda: shown(page) == ["alpha"], what="the typed filter")
    assert page.evaluate("document.activeElement.name") == "q"
    page.reload()
    assert shown(page) == ["alpha"]
    assert page.input_value("select[name=state]") == "running"
    page.click("text=Clear the filters")
    wait_until(lambda: len(shown(page)) == 3, what="all rows")


def test_heads_sort_in_place_and_back_goes_back(yard: Yard, open_as: Open):
    fill_list(yard)
    page = open_as("root", "/jobs").page
    page.evaluate("window.samePage = true")
    page.click("th >> text=GPUs")
    wait_until(lambda: shown(page) == ["beta", "alpha", "gamma"], what="the largest first")
    page.click("th >> text=GPUs")
    wait_until(lambda: shown(page) == ["gamma", "alpha", "beta"], what="the smallest first")
    page.wait_for_selector("th[aria-sort=ascending]:has-text('GPUs')")
    page.select_option("select[name=project]", "team-a")
    wait_until(lambda: shown(page) == ["alpha", "beta"], what="a filter that keeps the order")
    page.go_back()
    wait_until(lambda: shown(page) == ["beta", "alpha", "gamma"], what="the way back")
    assert page.evaluate("window.samePage")


def test_the_list_works_without_scripts(yard: Yard, open_as: Open):
    jobs = fill_list(yard)
    page = open_as("root", "/jobs", java_script_enabled=False).page
    page.select_option("select[name=state]", "running")
    page.click("button:text('Filter')")
    page.wait_for_url("**state=running**")
    page.click("th >> text=Job")
    page.wait_for_url("**sort=name**")
    expect(page.locator("#jobs-table tbody a.main")).to_have_text(["alpha", "gamma"])
    page.check("[aria-label='Select alpha']")
    page.click("button:text('Stop…')")
    expect(page.locator("h1")).to_contain_text("Stop 1 job?")
    page.click("button:text('Stop the job')")
    page.wait_for_url("**state=running*&sort=name")
    expect(page.locator("main")).to_contain_text("1 job is stopping.")
    yard.wait_for(jobs["alpha"], "stopped")


def test_what_is_selected_is_said_and_survives_live_updates(yard: Yard, open_as: Open):
    jobs = fill_list(yard)
    watched = open_as("root", "/jobs")
    watched.is_live()
    page = watched.page
    said = page.locator("[data-picked-count]")
    expect(said).to_have_text("0 of 3 on this page selected")
    assert page.is_disabled("button:text('Stop…')")
    page.check("[aria-label='Select alpha']")
    page.check("[aria-label='Select beta']")
    expect(said).to_have_text("2 of 3 on this page selected")
    page.locator(f"tr[data-key='{jobs['alpha']}']").focus()
    late = yard.submit("late")
    page.locator(f"tr[data-key='{late}']").wait_for()
    yard.call("DELETE", f"/jobs/{jobs['gamma']}")
    page.locator(f"tr[data-key='{jobs['gamma']}']").wait_for(state="detached")
    expect(said).to_have_text("2 of 3 on this page selected")
    assert page.is_checked("[aria-label='Select beta']")
    assert page.evaluate("document.activeElement.dataset.key") == jobs["alpha"]
    page.keyboard.press("Space")
    expect(said).to_have_text("1 of 3 on this page selected")
    page.check("[aria-label='Select all on this page']")
    expect(said).to_have_text("3 of 3 on this page selected")


def test_selected_jobs_are_stopped_after_one_question(yard: Yard, open_as: Open):
    jobs = fill_list(yard)
    page = open_as("ana", "/jobs?state=unfinished").page
    for name in ("alpha", "beta"):
        page.check(f"[aria-label='Select {name}']")
    page.click("button:text('Stop…')")
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Stop 2 jobs?").wait_for()
    wait_until(lambda: "2 GPUs" in dialog.inner_text(), what="the GPUs that they give back")
    page.keyboard.press("Escape")
    assert page.is_checked("[aria-label='Select alpha']")
    page.click("button:text('Stop…')")
    dialog.get_by_role("button", name="Stop 2 jobs").click()
    page.locator("main").get_by_text("2 jobs are stopping.").wait_for()
    assert page.url.endswith("/jobs?state=unfinished")
    for name in ("alpha", "beta"):
        yard.wait_for(jobs[name], "stopped")


def test_removing_a_member_and_revoking_ask_in_a_dialog(yard: Yard, open_as: Open):
    yard.call("POST", "/users", {"username": "dora-the-temporary", "password": "correct horse battery"})
    page = open_as("ana", "/projects/team-a").page
    page.locator("[data-suggest]").press_sequentially("dora")
    option: Any = "() => document.querySelector('#user-names option')?.value"
    wait_until(lambda: page.evaluate(option) == "dora-the-temporary", what="the suggested name")
    page.fill("[data-suggest]", "dora-the-temporary")
    page.click("button:text('Add')")
    page.locator("main").get_by_text("dora-the-temporary is member now.").wait_for()
    page.click("[aria-label='Remove dora-the-temporary']")
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Remove dora-the-temporary from team-a?").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Cancel"
    page.keyboard.press("Enter")
    dialog.wait_for(state="detached")
    assert page.locator("a:text-is('dora-the-temporary')").count() == 1
    page.click("[aria-label='Remove dora-the-temporary']")
    dialog.get_by_role("button", name="Remove dora-the-temporary").click()
    page.locator("main").get_by_text("is no longer a member.").wait_for()
    assert page.locator("a:text-is('dora-the-temporary')").count() == 0


def test_a_refused_field_has_the_focus(yard: Yard, open_as: Open):
    watched = open_as("ana", "/projects/team-a")
    page = watched.page
    page.fill("[data-suggest]", "nobody-of-that-name")
    page.click("button:text('Add')")
    page.get_by_text("no active user named nobody-of-that-name").wait_for()
    assert page.evaluate("document.activeElement.name") == "user"
    assert page.input_value("[data-suggest]") == "nobody-of-that-name"
    page.goto(f"{yard.server.url}/new/job")
    page.fill("[name=name]", "fine")
    page.fill("[name=env]", "A=1\nB")
    page.click("button:text('Submit')")
    page.locator("[data-error=env]").get_by_text("Line 2, B:").wait_for()
    assert page.evaluate("document.activeElement.name") == "env"
    # the browser itself logs both answers
    assert [trouble[-17:] for trouble in watched.new_troubles()] == ["400 (Bad Request)"] * 2


def test_counts_beside_the_navigation_say_what_they_count(yard: Yard, open_as: Open):
    page = open_as("ana").page
    link = page.locator("#nav a", has_text="Jobs")
    assert "unfinished" in link.inner_text()
    assert link.locator(".count").get_attribute("title") == "unfinished jobs that you may see"
