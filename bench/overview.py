"""The first page of large clusters beside that of an empty instance, in a real browser and in turn.

The rows of a large cluster are written into the database of a running instance, as a cluster that its loop ignores:
this measures the page, not the scheduling of its jobs. Run: python -m bench.overview
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from bench.harness import Row, report
from bench.page import BROWSER_FLAGS, OBSERVE_PAINT, PASSWORD, expect
from tests import servers
from tests.waiting import wait_until

REPEATS, REFRESHES = 15, 20
VIEW: Any = {"width": 1440, "height": 960}
LARGE, HUGE = (
    (126, 2_000, 448),
    (1_248, 10_000, 6_000),
)  # nodes, jobs, of which running; every instance has 2 nodes more
MEASURE = """() => ({
  seconds: Math.max(...window.paints) / 1000,
  pixels: document.documentElement.scrollHeight,
  kilobytes: performance.getEntriesByType("navigation")[0].decodedBodySize / 1024,
})"""


@dataclass
class Site:
    """A running instance, the cookies of an admin, and the measurements of visits to it."""

    running: servers.ControlPlane
    cookies: Any = None
    visits: list[dict[str, float]] = field(default_factory=list)
    refreshes: list[float] = field(default_factory=list)  # CPU milliseconds

    def took(self, name: str) -> list[float]:
        return [visit[name] for visit in self.visits]


def main() -> int:
    """Measure and report. Return 0, also without a browser, which is then reported."""
    path = servers.chromium()
    if path is None:
        print("There is no Chromium: apt-get install chromium")
        return 0
    with ExitStack() as stack, sync_playwright() as playwright:
        empty, large, huge = (stack.enter_context(site(size)) for size in (None, LARGE, HUGE))
        browser = playwright.chromium.launch(executable_path=path, args=BROWSER_FLAGS)
        for one in (empty, large, huge):
            sign_in(browser, one)
        for number in range(REPEATS + 2):
            for one in (empty, large, huge):
                measured = visit(browser, one)
                if number >= 2:  # the first ones warm up
                    one.visits.append(measured)
        browser.close()
        for one in (empty, large, huge):
            one.refreshes = refreshes(one.running.state_dir)
    report("overview", rows(empty, large, huge))
    return 0


def rows(empty: Site, large: Site, huge: Site) -> list[Row]:
    some, many = "overview of 2,000 jobs on 128 nodes", "overview of 10,000 jobs on 1,250 nodes"
    painted, drawn = empty.took("seconds"), empty.refreshes
    return [
        Row(f"{some}, largest contentful paint", "<= 1.2x empty", "s", large.took("seconds"), peer_samples=painted,
            ratio_limit=1.2, peer="an empty instance"),
        Row(f"{some}, HTML", "<= 150 KB", "KB", large.took("kilobytes"), limit=150,
            peer_samples=empty.took("kilobytes"), peer="an empty instance"),
        Row(f"{some}, height at 1440 px", "<= 2,500 px", "px", large.took("pixels"), limit=2500,
            peer_samples=empty.took("pixels"), peer="an empty instance"),
        Row(f"{some}, CPU of a refresh", "-", "ms", large.refreshes, peer_samples=drawn, peer="an empty instance"),
        Row(f"{many}, largest contentful paint", "-", "s", huge.took("seconds"), peer_samples=painted,
            peer="an empty instance"),
        Row(f"{many}, HTML", "-", "KB", huge.took("kilobytes")),
        Row(f"{many}, height at 1440 px", "<= 2,500 px", "px", huge.took("pixels"), limit=2500),
        Row(f"{many}, CPU of a refresh", "-", "ms", huge.refreshes, peer_samples=drawn, peer="an empty instance"),
    ]  # fmt: skip


@contextmanager
def site(size: tuple[int, int, int] | None) -> Iterator[Site]:
    """Context manager with an instance that has an admin and, if `size` is given, a crowd of (nodes, jobs, running
    jobs)."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        with servers.control_plane(Path(directory)) as running:
            admin = {"username": "wall", "password": PASSWORD, "is_admin": True}
            expect(running.call("POST", "/api/v1/users", admin))
            if size is not None:
                alone("seed", running.state_dir, *map(str, size))
            yield Site(running)


def sign_in(browser: Browser, one: Site) -> None:
    """Sign in to the site as the admin and keep the cookies in it."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{one.running.url}/login")
    page.fill("#username", "wall")
    page.fill("#password", PASSWORD)
    page.press("#password", "Enter")
    page.wait_for_url(f"{one.running.url}/")
    one.cookies = context.storage_state()
    context.close()


def visit(browser: Browser, one: Site) -> dict[str, float]:
    """Open the site's overview with an empty cache. Return `seconds` to the largest paint, and the page's height
    in `pixels` and its HTML in `kilobytes`."""
    context = browser.new_context(viewport=VIEW, storage_state=one.cookies)
    page = context.new_page()
    page.add_init_script(OBSERVE_PAINT)
    page.goto(f"{one.running.url}/", wait_until="load")
    # not wait_for_function: it evaluates a string in the page, which the page's own policy forbids
    wait_until(lambda: page.evaluate("window.paints.length"), what="the first paint")
    page.wait_for_selector("#allocation-chart .main-svg", state="attached")
    measured: dict[str, float] = page.evaluate(MEASURE)
    context.close()
    return measured


def refreshes(state_dir: Path) -> list[float]:
    """Return the CPU milliseconds of rendering the page after an event, measured in a process of its own."""
    found: list[float] = json.loads(alone("refresh", state_dir))
    return found


def alone(work: str, state_dir: Path, *arguments: str) -> str:
    """Run one of WORKS on an instance's database in a process of its own. Return its output."""
    environment = os.environ | {"TRAINYARD_STATE_DIR": str(state_dir), "TRAINYARD_LOG_LEVEL": "error"}
    environment["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    command = [sys.executable, "-m", "bench.overview", work, *arguments]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def seed(nodes: str, jobs: str, running: str) -> None:
    """Write a crowd with these numbers of nodes, jobs and running jobs, in a cluster whose state makes the loop
    ignore it."""
    from django.db import transaction

    from controlplane.models import Cluster
    from tests.crowd import make_crowd

    with transaction.atomic():
        crowd = make_crowd(int(nodes), int(jobs), running=int(running))
        Cluster.objects.filter(pk=crowd.cluster.pk).update(state=Cluster.CHECKING)


def refresh() -> None:
    """Print the CPU milliseconds of REFRESHES renderings, each after an event, as JSON."""
    from django.conf import settings
    from django.test import Client

    from controlplane.models import Event, User

    settings.ALLOWED_HOSTS = ["*"]
    client = Client()
    client.force_login(User.objects.get(username="wall"))
    samples = []
    for number in range(REFRESHES + 2):
        seq = Event.objects.append([Event(kind="queue.changed")])
        began = time.process_time()
        assert client.get("/", headers={"X-Live-Seq": str(seq)}).status_code == 200
        if number >= 2:
            samples.append((time.process_time() - began) * 1000)
    print(json.dumps(samples))


WORKS: dict[str, Any] = {"seed": seed, "refresh": refresh}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        import django

        django.setup()
        WORKS[sys.argv[1]](*sys.argv[2:])
    else:
        sys.exit(main())
