"""Fixtures: one running control plane with four users, and one Chromium, for all browser tests."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Playwright,
    Request,
    Response,
    ViewportSize,
    expect,
    sync_playwright,
)

from tests import servers
from tests.waiting import patience, wait_until

PASSWORD = "correct horse battery"
PEOPLE = {"root": None, "ana": "owner", "ben": "member", "vera": "viewer", "chi": None}
PATIENCE_MS = 30_000  # of Playwright, on a quiet machine
DESKTOP: ViewportSize = {"width": 1440, "height": 960}
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Pages of one person share a process: to start one and to compile the scripts anew takes half of a page's CPU time.
    "--renderer-process-limit=1",
]
OF_A_PAGE = {
    "viewport",
    "color_scheme",
    "reduced_motion",
}  # settings that Playwright can give to a page by itself
SESSION = "yard_session"
MAKE_SESSIONS = """
import json, sys
import django
django.setup()
from django.contrib.auth import login
from django.contrib.sessions.backends.db import SessionStore
from django.http import HttpRequest
from controlplane.models import User
keys = {}
for user in User.objects.filter(username__in=sys.argv[1:]):
    request = HttpRequest()
    request.session = SessionStore()
    login(request, user)
    request.session.save()
    keys[user.username] = request.session.session_key
print(json.dumps(keys))
"""
# xterm adds style elements, which the policy refuses; our own sheets stand in.
INLINE_STYLES, ADD_STYLES = "Applying inline style violates", "/xterm.js"
# xterm says so of a busy machine, whatever the page does.
HARMLESS = "task queue exceeded allotted deadline"


@dataclass
class Yard:
    """The control plane and its users: root is the site's admin; in team-a ana is owner, ben member and vera
    viewer."""

    server: servers.ControlPlane
    jobs: list[str] = field(default_factory=list)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call the REST API as the admin and return the decoded answer. Asserts that it succeeds."""
        status, answer = self.server.call(method, f"/api/v1{path}", body)
        assert status < 300, (method, path, status, answer)
        return answer

    def submit(self, name: str, script: str = "sleep 300", project: str = "team-a", **fields: Any) -> str:
        """Submit a job that runs a shell script; return its id. `clear` deletes the job. `fields`: further fields
        of the request."""
        body = {
            "name": name,
            "kind": "train",
            "image": "ubuntu",
            "gpus": 1,
            "command": ["sh", "-c", script],
        } | fields
        job: str = self.call("POST", f"/projects/{project}/jobs", body)["id"]
        self.jobs.append(job)
        return job

    def state(self, job: str) -> str:
        state: str = self.call("GET", f"/jobs/{job}")["status"]["state"]
        return state

    def wait_for(self, job: str, *states: str) -> None:
        """Wait, at most 30 s, until the job is in one of these states."""
        wait_until(lambda: self.state(job) in states, 30, f"{shlex.join(states)} of {job}")

    def clear(self) -> None:
        """Delete the jobs that `submit` created and wait until they are gone."""
        for job in self.jobs:
            self.server.call("DELETE", f"/api/v1/jobs/{job}")
        for job in self.jobs:
            wait_until(
                lambda job=job: self.server.call("GET", f"/api/v1/jobs/{job}")[0] == 404,
                30,
                "the end of a job",
            )
        self.jobs.clear()


@dataclass
class Watched:
    """A page, and the `troubles` on it: script errors, error messages of the console, and bad requests."""

    page: Page
    url: str
    troubles: list[str] = field(default_factory=list)

    def watch(self) -> "Watched":
        """Begin to record troubles; return the object."""
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.troubles.append(f"script error: {error}"))
        self.page.on("request", self._request)
        self.page.on("response", self._response)
        return self

    def go(self, path: str) -> Response:
        """Open a path of the control plane and return the response."""
        response = self.page.goto(f"{self.url}{path}")
        assert response is not None
        return response

    def is_live(self) -> None:
        """Wait until the page shows that its live feed is connected."""
        self.page.wait_for_selector("#live[data-state=live]")

    def new_troubles(self) -> list[str]:
        """Return the troubles since the last call."""
        seen = self.troubles[:]
        self.troubles.clear()
        return seen

    def _console(self, message: ConsoleMessage) -> None:
        source, text = message.location["url"], message.text
        is_known = text.startswith(HARMLESS) or (
            text.startswith(INLINE_STYLES) and source.partition("?")[0].endswith(ADD_STYLES)
        )
        if message.type in ("error", "warning") and not is_known:
            self.troubles.append(f"console: {source}: {text}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.troubles.append(f"foreign request: {request.url}")

    def _response(self, response: Response) -> None:
        if response.status >= 500:
            self.troubles.append(f"{response.status}: {response.url}")


Open = Callable[..., Watched]


@pytest.fixture(scope="session")
def browser_path() -> str:
    """Fixture: the path of this machine's Chromium. Skips the test without one."""
    path = servers.chromium()
    if path is None:
        pytest.skip("There is no Chromium: apt-get install chromium")
    return path


@pytest.fixture(scope="session")
def running(browser_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """Fixture: a started control plane with its users and projects."""
    with servers.control_plane(tmp_path_factory.mktemp("browser")) as server:
        yard = Yard(server)
        for name in PEOPLE:
            password = {"password": PASSWORD} if name == "ana" else {}
            yard.call("POST", "/users", {"username": name, "is_admin": name == "root", **password})
        members = [{"user": name, "role": role} for name, role in PEOPLE.items() if role]
        yard.call("POST", "/projects", {"name": "team-a", "gpu_quota": 4, "members": members})
        yard.call("POST", "/projects", {"name": "team-b", "gpu_quota": 2})
        yield yard


@pytest.fixture
def yard(running: Yard) -> Iterator[Yard]:
    """Fixture: the control plane; jobs that the test submitted are deleted afterwards."""
    yield running
    running.clear()


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    expect.set_options(timeout=patience(PATIENCE_MS))
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def browser(playwright: Playwright, browser_path: str) -> Iterator[Browser]:
    started = playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
    yield started
    started.close()


@pytest.fixture(scope="session")
def sessions(browser: Browser, running: Yard) -> dict[str, Any]:
    """Fixture: the browser storage state by user name. ana signs in at the page, the others get a session
    directly."""
    context = patient(browser.new_context())
    page = context.new_page()
    page.goto(f"{running.server.url}/login?next=/tokens")
    page.fill("#username", "ana")
    page.fill("#password", PASSWORD)
    page.click("button.primary")
    page.wait_for_url("**/tokens")
    kept: dict[str, Any] = {"ana": context.storage_state()}
    context.close()
    for name, key in session_keys(running.server).items():
        cookies = [
            cookie | {"value": key} if cookie["name"] == SESSION else cookie
            for cookie in kept["ana"]["cookies"]
        ]
        kept[name] = {"cookies": cookies, "origins": []}
    return kept


def session_keys(server: servers.ControlPlane) -> dict[str, str]:
    """Return session keys by name of all users except ana, created in the database. This skips the password's
    hash, which takes a third of a second of CPU each time."""
    names = [name for name in PEOPLE if name != "ana"]
    environment = server.environment | {"DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    command = [sys.executable, "-c", MAKE_SESSIONS, *names]
    made = subprocess.run(command, cwd=servers.CHECKOUT, env=environment, check=True, stdout=subprocess.PIPE)
    keys: dict[str, str] = json.loads(made.stdout)
    return keys


def patient(context: BrowserContext) -> BrowserContext:
    """Set the context's time limit to what this machine needs under its present load; return the context."""
    context.set_default_timeout(patience(PATIENCE_MS))
    return context


@pytest.fixture(scope="session")
def kept(browser: Browser, sessions: dict[str, Any], running: Yard) -> Iterator["Kept"]:
    """Fixture: one browser context per user, shared by all tests."""
    kept = Kept(browser, sessions, running.server.url)
    yield kept
    kept.close()


class Kept:
    """Browser contexts by user that tests share. An idle page in each keeps its process, so that a new page needs
    no new one."""

    def __init__(self, browser: Browser, sessions: dict[str, Any], url: str) -> None:
        self._browser, self._sessions, self._url = browser, sessions, url
        self._idle: dict[str, Page] = {}

    def page_of(self, name: str, viewport: ViewportSize = DESKTOP, **media: Any) -> Page:
        """Return a new page in the user's context. `media`: arguments of Playwright's `emulate_media`."""
        if name not in self._idle:
            context = self._browser.new_context(storage_state=self._sessions[name], viewport=DESKTOP)
            self._idle[name] = patient(context).new_page()
            self._idle[name].goto(f"{self._url}/healthz")
        page = self._idle[name].context.new_page()
        if viewport != DESKTOP:
            page.set_viewport_size(viewport)
        if media:
            page.emulate_media(**media)
        return page

    def clear(self) -> None:
        """Close the pages that a test opened, and restore the cookies and storage."""
        for name, idle in self._idle.items():
            opened = [page for page in idle.context.pages if page is not idle]
            for page in opened:
                page.close()
            if opened:
                idle.evaluate("localStorage.clear()")
                idle.context.clear_cookies()
                idle.context.add_cookies(self._sessions[name]["cookies"])

    def close(self) -> None:
        for idle in self._idle.values():
            idle.context.close()


@pytest.fixture
def open_as(browser: Browser, sessions: dict[str, Any], kept: Kept, yard: Yard) -> Iterator[Open]:
    """Fixture: a function that opens a page as a user, optionally with other settings of the browser. The test
    fails if there is any trouble on one of the pages."""
    contexts: list[BrowserContext] = []
    pages: list[Watched] = []

    def new_page(name: str, settings: dict[str, Any]) -> Page:
        if settings.keys() <= OF_A_PAGE:
            return kept.page_of(name, **settings)
        contexts.append(browser.new_context(storage_state=sessions[name], **{"viewport": DESKTOP} | settings))
        return patient(contexts[-1]).new_page()

    def open_page(name: str, path: str = "/", **settings: Any) -> Watched:
        watched = Watched(new_page(name, settings), yard.server.url).watch()
        pages.append(watched)
        watched.go(path)
        return watched

    yield open_page
    for context in contexts:
        context.close()
    kept.clear()
    assert [trouble for watched in pages for trouble in watched.troubles] == []
