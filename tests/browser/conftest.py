"""One running control plane and one Chromium for all browser tests: real processes, real sockets, four people."""

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
HARMLESS = (
    # Plotly and xterm set style attributes and add style elements, which the policy refuses; our own sheets stand in
    "Applying inline style violates",
    # xterm says so of a busy machine, whatever the page does
    "task queue exceeded allotted deadline",
)


@dataclass
class Yard:
    """The control plane with its cast: root is admin; ana, ben and vera own, work in and look at team-a."""

    server: servers.ControlPlane
    jobs: list[str] = field(default_factory=list)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """An API call as the admin that must succeed."""
        status, answer = self.server.call(method, f"/api/v1{path}", body)
        assert status < 300, (method, path, status, answer)
        return answer

    def submit(self, name: str, script: str = "sleep 300", project: str = "team-a", **fields: Any) -> str:
        """Submit a job that runs a shell line; returns its id."""
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
        """The job's state now."""
        state: str = self.call("GET", f"/jobs/{job}")["status"]["state"]
        return state

    def wait_for(self, job: str, *states: str) -> None:
        """Wait until the job is in one of these states."""
        wait_until(lambda: self.state(job) in states, 30, f"{shlex.join(states)} of {job}")

    def clear(self) -> None:
        """Delete the jobs of a test and wait until they are gone."""
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
    """A page and everything suspicious that happened on it."""

    page: Page
    url: str
    troubles: list[str] = field(default_factory=list)

    def watch(self) -> "Watched":
        """Listen for what must not happen."""
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.troubles.append(f"script error: {error}"))
        self.page.on("request", self._request)
        self.page.on("response", self._response)
        return self

    def go(self, path: str) -> Response:
        """Open a page of ours."""
        response = self.page.goto(f"{self.url}{path}")
        assert response is not None
        return response

    def is_live(self) -> None:
        """Wait until the live dot says so."""
        self.page.wait_for_selector("#live[data-state=live]")

    def new_troubles(self) -> list[str]:
        """What happened since the last call: one page's trouble is not counted against the next."""
        seen = self.troubles[:]
        self.troubles.clear()
        return seen

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(HARMLESS):
            self.troubles.append(f"console: {message.location['url']}: {message.text}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.troubles.append(f"foreign request: {request.url}")

    def _response(self, response: Response) -> None:
        if response.status >= 500:
            self.troubles.append(f"{response.status}: {response.url}")


Open = Callable[..., Watched]


@pytest.fixture(scope="session")
def browser_path() -> str:
    """The machine's Chromium."""
    path = servers.chromium()
    if path is None:
        pytest.skip("There is no Chromium: apt-get install chromium")
    return path


@pytest.fixture(scope="session")
def running(browser_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """A started control plane with its people and projects."""
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
    """The control plane; the jobs of the test are taken away after it."""
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
    """Everybody's cookies: ana's, got at the sign-in page, and those of sessions of the others."""
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
    """Sessions of all people but ana, as a sign-in makes them. Without the hash of a password, which takes a third of a
    second of a core each time."""
    names = [name for name in PEOPLE if name != "ana"]
    environment = server.environment | {"DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    command = [sys.executable, "-c", MAKE_SESSIONS, *names]
    made = subprocess.run(command, cwd=servers.CHECKOUT, env=environment, check=True, stdout=subprocess.PIPE)
    keys: dict[str, str] = json.loads(made.stdout)
    return keys


def patient(context: BrowserContext) -> BrowserContext:
    """Let what is waited for in it take as long as this machine needs now."""
    context.set_default_timeout(patience(PATIENCE_MS))
    return context


@pytest.fixture(scope="session")
def kept(browser: Browser, sessions: dict[str, Any], running: Yard) -> Iterator["Kept"]:
    """A context for each person, for the pages of all tests."""
    kept = Kept(browser, sessions, running.server.url)
    yield kept
    kept.close()


class Kept:
    """Contexts that tests share. An idle page keeps the process of each, so that a test's page needs no new one."""

    def __init__(self, browser: Browser, sessions: dict[str, Any], url: str) -> None:
        self._browser, self._sessions, self._url = browser, sessions, url
        self._idle: dict[str, Page] = {}

    def page_of(self, name: str, viewport: ViewportSize = DESKTOP, **media: Any) -> Page:
        """A new page of this person."""
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
        """Close what a test has opened and forget what its pages have stored."""
        for name, idle in self._idle.items():
            opened = [page for page in idle.context.pages if page is not idle]
            for page in opened:
                page.close()
            if opened:
                idle.evaluate("localStorage.clear()")
                idle.context.clear_cookies()
                idle.context.add_cookies(self._sessions[name]["cookies"])

    def close(self) -> None:
        """Close all contexts."""
        for idle in self._idle.values():
            idle.context.close()


@pytest.fixture
def open_as(browser: Browser, sessions: dict[str, Any], kept: Kept, yard: Yard) -> Iterator[Open]:
    """Open a page as somebody, optionally with other settings of the browser; nothing may go wrong on any of them."""
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
