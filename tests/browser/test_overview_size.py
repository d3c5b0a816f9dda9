"""The overview of a large cluster in a real browser: how tall it is, that it fits, and that it stays live."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests import servers
from tests.browser.conftest import DESKTOP, PASSWORD, Watched, patient
from tests.browser.page_checks import SPILL
from tests.waiting import wait_until

pytestmark = pytest.mark.browser
JOBS = 2000
HEIGHT = "document.documentElement.scrollHeight"


@pytest.fixture(scope="module")
def large(browser_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.ControlPlane]:
    """A control plane with 2,000 jobs on 128 nodes beside its own two."""
    with servers.control_plane(tmp_path_factory.mktemp("large")) as server:
        root = {"username": "root", "password": PASSWORD, "is_admin": True}
        assert server.call("POST", "/api/v1/users", root)[0] == 201
        assert server.call("POST", "/api/v1/projects", {"name": "team-a", "gpu_quota": 4})[0] == 201
        environment = os.environ | {"TRAINYARD_STATE_DIR": str(server.state_dir)}
        environment["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
        command = [sys.executable, "-m", "bench.overview", "seed", "128", str(JOBS), "448"]
        subprocess.run(command, env=environment, check=True, cwd=servers.CHECKOUT)
        yield server


@pytest.fixture(scope="module")
def session(browser: Browser, large: servers.ControlPlane) -> Any:
    """The admin's cookies."""
    context = patient(browser.new_context())
    page = context.new_page()
    page.goto(f"{large.url}/login?next=/tokens")
    page.fill("#username", "root")
    page.fill("#password", PASSWORD)
    page.click("button.primary")
    page.wait_for_url("**/tokens")
    kept = context.storage_state()
    context.close()
    return kept


@pytest.fixture
def watched(browser: Browser, large: servers.ControlPlane, session: Any) -> Iterator[Watched]:
    """The overview, as its admin sees it."""
    context = patient(browser.new_context(viewport=DESKTOP, storage_state=session))
    watched = Watched(context.new_page(), large.url).watch()
    watched.go("/")
    watched.is_live()
    yield watched
    context.close()
    assert watched.troubles == []


def figure(page: Page, name: str) -> int:
    return int(page.inner_text(f"#totals [data-field={name}]").replace(",", ""))


def test_it_is_small_and_fits_every_width(watched: Watched):
    page = watched.page
    # Charts follow a change of the width a moment later.
    wait_until(lambda: page.evaluate(HEIGHT) <= 2500, what="a short page")
    assert page.evaluate("document.querySelectorAll('*').length") < 2500
    for width in (1440, 400, 2560):
        page.set_viewport_size({"width": width, "height": 960})
        wait_until(lambda: page.evaluate(SPILL) == [], what=f"a page that fits {width} pixels")
    over = "() => { const map = document.querySelector('.heat-map'); return map.scrollHeight - map.clientHeight; }"
    assert page.evaluate(over) <= 0


def test_a_long_name_pushes_nothing_off_the_table(watched: Watched):
    wide = "() => [...document.querySelectorAll('.table-wrap')].map((wrap) => wrap.scrollWidth - wrap.clientWidth)"
    for width in (1440, 1200, 400):
        watched.page.set_viewport_size({"width": width, "height": 960})
        wait_until(lambda: max(watched.page.evaluate(wide)) <= 0, what=f"tables that fit {width} pixels")


def test_a_new_job_appears_by_itself_however_many_there_are(watched: Watched, large: servers.ControlPlane):
    page = watched.page
    queued = figure(page, "jobs_queued")
    spec = {
        "name": "latest",
        "kind": "train",
        "image": "ubuntu",
        "command": ["sleep", "300"],
        "gpus": 8,
        "workers": 3,
    }
    job = large.call("POST", "/api/v1/projects/team-a/jobs", spec)[1]["id"]
    page.locator(f"#queued li[data-key='{job}']").wait_for()
    wait_until(lambda: figure(page, "jobs_queued") == queued + 1, what="the count that follows")
    assert large.call("DELETE", f"/api/v1/jobs/{job}")[0] < 300


def wait_for_cards(page: Page) -> None:
    """Wait until the script of the map, which is loaded once there is one, answers the pointer and the keys."""
    page.locator(".heat-card").wait_for(state="attached")


def test_the_card_of_a_node_names_and_links_its_jobs(watched: Watched):
    page = watched.page
    wait_for_cards(page)
    page.locator(".heat-map svg").hover(position={"x": 6, "y": 6})
    link = page.locator(".heat-card a[href^='/jobs/']").first
    link.wait_for()
    page.mouse.move(5, 600)
    page.locator(".heat-card").wait_for(state="hidden")
    page.focus(".heat-map")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.locator(".heat-card").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url("**/nodes/crowd-0001")


def test_cells_become_a_map_while_the_page_is_open(watched: Watched, large: servers.ControlPlane):
    page = watched.page
    page.evaluate("document.querySelector('.heat-map').outerHTML = '<div id=devices class=nodes-many></div>'")
    assert large.call("POST", "/api/v1/nodes/dgx1-1/cordon")[0] < 300
    wait_for_cards(page)
    page.locator(".heat-map").focus()
    page.keyboard.press("ArrowRight")
    page.locator(".heat-card").wait_for()
    assert large.call("POST", "/api/v1/nodes/dgx1-1/uncordon")[0] < 300


def test_a_phone_scrolls_through_three_screens_and_a_half(watched: Watched):
    page = watched.page
    page.set_viewport_size({"width": 400, "height": 860})
    wait_until(lambda: page.evaluate(HEIGHT) <= 3000, what="three screens and a half")
    page.locator("#running-panel a.link", has_text="see all").wait_for()
    page.locator("#queued-panel a.link", has_text="see all").wait_for()
