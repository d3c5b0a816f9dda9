"""Everything by keyboard and by form: palette, shortcuts, tables, submit, stop, members, tokens."""

import re

import pytest

from tests.browser.conftest import Open, Yard
from tests.waiting import wait_until

pytestmark = pytest.mark.browser


def test_the_palette_finds_a_job_and_goes_there(yard: Yard, open_as: Open):
    job = yard.submit("needle")
    page = open_as("ana").page
    page.keyboard.press("Control+k")
    page.locator("dialog.palette").wait_for()
    page.keyboard.type("needl")
    page.get_by_role("option", name="needle").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{job}")
    page.keyboard.press("Control+k")
    page.keyboard.press("Escape")
    assert not page.locator("dialog.palette").is_visible()


def test_a_stranger_cannot_find_it(yard: Yard, open_as: Open):
    yard.submit("needle")
    page = open_as("chi").page
    page.keyboard.press("Control+k")
    page.keyboard.type("needl")
    page.get_by_text("Nothing has that name.").wait_for()


def test_shortcuts(open_as: Open):
    page = open_as("ana").page

    def press(keys: str) -> None:
        """Both keys at once: the second counts only soon after the first."""
        page.evaluate(
            """(keys) => [...keys].forEach((key) => document.activeElement.dispatchEvent(
              new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })))""",
            keys,
        )

    for keys, place in (
        ("gj", "/jobs"),
        ("gp", "/projects"),
        ("gn", "/nodes"),
        ("ga", "/analytics"),
        ("go", "/"),
    ):
        press(keys)
        page.wait_for_url(f"**{place}")
    page.keyboard.press("?")
    page.get_by_role("dialog").get_by_text("overview").wait_for()
    page.keyboard.press("Escape")
    press("gj")
    page.wait_for_url("**/jobs")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    page.keyboard.type("gp")  # letters in a field are letters
    assert page.input_value("input[name=q]") == "gp"


def test_rows_by_arrows_and_enter(yard: Yard, open_as: Open):
    first, second = yard.submit("first"), yard.submit("second")
    page = open_as("ana", "/jobs").page
    page.locator(f"tr[data-key='{second}']").focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.key") == first
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.dataset.key") == second
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{first}")


def test_rows_are_entered_with_nothing_in_hand(yard: Yard, open_as: Open):
    first, second = yard.submit("first"), yard.submit("second")
    page = open_as("ana", "/jobs").page
    focused = "document.activeElement.dataset.key"
    for key, row in (("ArrowDown", second), ("j", first), ("k", second)):
        page.keyboard.press(key)
        assert page.evaluate(focused) == row
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused) == second


def test_the_number_of_jobs_beside_the_navigation_is_live(yard: Yard, open_as: Open):
    page = open_as("ana", "/tokens")
    page.is_live()
    shown = page.page.locator("[data-nav-count=jobs]")
    before = int(shown.inner_text())
    yard.submit("counted")
    wait_until(lambda: int(shown.inner_text()) == before + 1, what="the number that follows")


def test_the_first_tab_stop_skips_to_the_page(open_as: Open):
    page = open_as("ana").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.wait_for_url("**/*#page")


def test_the_terminal_is_left_by_the_key_that_it_names(yard: Yard, open_as: Open):
    job = yard.submit("shelled")
    yard.wait_for(job, "running")
    page = open_as("ana", f"/jobs/{job}/terminal").page
    page.locator(".xterm-screen").wait_for()
    page.locator(".xterm-helper-textarea").focus()
    page.keyboard.press("Tab")
    focused = "document.activeElement.className || document.activeElement.dataset.copy"
    assert page.evaluate(focused) == "xterm-helper-textarea"
    described = page.get_attribute(".xterm-helper-textarea", "aria-describedby")
    assert "Shift F6 leaves the terminal." in page.inner_text(f"#{described}")
    page.keyboard.press("Shift+F6")
    assert page.evaluate("document.activeElement.dataset.copy") == "bash-command"


def test_submit_from_the_form(yard: Yard, open_as: Open):
    page = open_as("ben", "/new/job").page
    page.fill("[name=name]", "From Form")
    page.locator("[data-error=name]").get_by_text("lower-case").wait_for()
    page.fill("[name=name]", "from-form")
    page.locator("[data-error=name]").wait_for(state="hidden")
    page.fill("[name=image]", "ubuntu")
    page.fill("[name=command]", "sh -c 'echo from the form; sleep 300'")
    page.fill("[name=gpus]", "0.5")
    page.get_by_text("It should start at once").wait_for()
    line = "yard submit from-form -p team-a -i ubuntu -g 0.5 -- sh -c 'echo from the form; sleep 300'"
    wait_until(lambda: page.inner_text("#job-command") == line, what="the command line")
    page.click("button:text('Submit')")
    page.wait_for_url(re.compile(r"/jobs/[0-9a-f-]{36}$"))
    job = page.url.rpartition("/")[2]
    yard.jobs.append(job)
    page.locator(".badge[data-state=running]").wait_for()
    page.locator(".log-line .text").get_by_text("from the form").wait_for()


def test_stop_says_what_it_will_do_and_can_be_left(yard: Yard, open_as: Open):
    job = yard.submit("stopped-by-hand")
    yard.wait_for(job, "running")
    page = open_as("ana", f"/jobs/{job}").page
    page.click("button:text('Stop…')")
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("one worker: dgx1-1").wait_for()
    wait_until(lambda: "1 GPU" in dialog.inner_text(), what="the GPUs that it gives back")
    page.keyboard.press("Escape")
    assert yard.state(job) == "running"
    page.click("button:text('Stop…')")
    page.click("button:text('Stop the job')")
    page.locator(".badge[data-state=stopped]").wait_for()
    page.click("button:text('Delete…')")
    page.click("button:text('Delete the job')")
    page.wait_for_url("**/jobs")
    page.locator(f"tr[data-key='{job}']").wait_for(state="detached")


def test_a_role_is_set_as_soon_as_it_is_chosen(yard: Yard, open_as: Open):
    page = open_as("ana", "/projects/team-a").page
    for role in ("member", "viewer"):
        with page.expect_navigation():  # the form is sent, and the page comes back with what is true now
            page.select_option("select[aria-label='Role of vera']", role)
        page.locator("main").get_by_text(f"vera is {role} now.").wait_for()
        # A screen reader speaks what changes after the page was loaded.
        page.locator("#spoken").get_by_text(f"vera is {role} now.").wait_for(state="attached")
        assert {"user": "vera", "role": role} in yard.call("GET", "/projects/team-a")["members"]


def test_a_token_made_by_hand_works_and_is_shown_once(yard: Yard, open_as: Open):
    page = open_as("ben", "/tokens").page
    page.fill("#token-name", "by hand")
    page.click("button:text('Make the token')")
    secret = page.inner_text("#token-secret")
    assert secret.startswith("yard_")
    page.goto(f"{yard.server.url}/tokens")
    assert secret not in page.content()
    page.click("a[aria-label='Revoke by hand']")
    page.get_by_role("dialog").get_by_text("It was never used.").wait_for()
    page.click("button:text('Revoke the token')")
    page.locator("main").get_by_text("The token is revoked").wait_for()


def test_hovering_a_project_dims_the_others(yard: Yard, open_as: Open):
    for name, project in (("a", "team-a"), ("b", "team-b")):
        yard.wait_for(yard.submit(name, project=project), "running")
    page = open_as("root").page
    page.hover("#shares [data-key=team-a] .chip")
    dim = """(name) => {
      const row = document.querySelector(`#running tr[data-project=${name}]`);
      return row ? getComputedStyle(row).opacity : "";
    }"""
    wait_until(lambda: float(page.evaluate(dim, "team-b") or 1) < 0.5, what="the others to dim")
    wait_until(lambda: page.evaluate(dim, "team-a") == "1", what="the project's own row")
    page.mouse.move(5, 400)
    wait_until(lambda: page.evaluate(dim, "team-b") == "1", what="the others to come back")
