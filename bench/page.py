"""The first page in a real browser: bytes on the wire before charts, and the time of the largest contentful paint.

A new Chromium with an empty cache opens the overview of a cluster with sixteen running jobs. The browser itself reports
the largest contentful paint. Run: python -m bench.page
"""

import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

from bench.harness import Row, report
from tests import servers
from tests.waiting import wait_until

REPEATS = 7
JOBS = 16
PASSWORD = "a long enough password"
BROWSER_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
]
OBSERVE_PAINT = """
window.paints = [];
new PerformanceObserver((list) => window.paints.push(...list.getEntries().map((entry) => entry.startTime)))
  .observe({type: "largest-contentful-paint", buffered: true});
"""
CHARTS = ("/static/vendor/", "/charts/")


def main() -> int:
    """Measure and report. Return 0, also without a browser, which is then reported."""
    path = servers.chromium()
    if path is None:
        print("There is no Chromium: apt-get install chromium")
        return 0
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        with servers.control_plane(Path(directory)) as running, sync_playwright() as playwright:
            fill(running)
            browser = playwright.chromium.launch(executable_path=path, args=BROWSER_FLAGS)
            visits = [visit(browser, running.url) for _ in range(REPEATS + 1)][1:]
            browser.close()
            running.stop_jobs()
    report("page", rows(visits))
    return 0


def rows(visits: list[tuple[float, float]]) -> list[Row]:
    kilobytes, paints = map(list, zip(*visits, strict=True))
    return [
        Row("overview, bytes on the wire before charts", "<= 120 KB", "KB", kilobytes, limit=120),
        Row("overview, largest contentful paint", "<= 1.0 s", "s", paints, limit=1.0),
    ]


def fill(running: servers.ControlPlane) -> None:
    """Create an admin to sign in as, and jobs that fill the cluster."""
    expect(
        running.call("POST", "/api/v1/users", {"username": "wall", "password": PASSWORD, "is_admin": True})
    )
    expect(running.call("POST", "/api/v1/projects", {"name": "bench", "gpu_quota": 16}))
    for number in range(JOBS):
        body = {"name": f"job-{number}", "kind": "train", "gpus": 1, "command": ["sleep", "600"]}
        expect(running.call("POST", "/api/v1/projects/bench/jobs", body))


def expect(answer: tuple[int, object]) -> None:
    if answer[0] != 201:
        raise RuntimeError(f"refused: {answer}")


def visit(browser: Browser, url: str) -> tuple[float, float]:
    """Sign in, disable the cache and open the overview at `url`. Return kilobytes without charts, and seconds to
    the largest paint."""
    context = browser.new_context(viewport={"width": 1600, "height": 1000})
    page = context.new_page()
    page.goto(f"{url}/login")
    page.fill("#username", "wall")
    page.fill("#password", PASSWORD)
    page.press("#password", "Enter")
    page.wait_for_url(f"{url}/")
    wire = count_bytes(page)
    page.add_init_script(OBSERVE_PAINT)
    page.goto(f"{url}/", wait_until="load")
    # not wait_for_function: it evaluates a string in the page, which the page's own policy forbids
    wait_until(lambda: page.evaluate("window.paints.length"), what="the first paint")
    seconds = page.evaluate("Math.max(...window.paints)") / 1000
    context.close()
    return sum(size for path, size in wire if not path.startswith(CHARTS)) / 1024, seconds


def count_bytes(page: Page) -> list[tuple[str, float]]:
    """Return a list that the browser's network log fills with (path, bytes received including headers)."""
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.setCacheDisabled", {"cacheDisabled": True})
    paths: dict[str, str] = {}
    wire: list[tuple[str, float]] = []
    session.on(
        "Network.responseReceived", lambda event: paths.update({event["requestId"]: event["response"]["url"]})
    )
    session.on(
        "Network.loadingFinished",
        lambda event: wire.append(
            (urlsplit(paths.get(event["requestId"], "")).path, event["encodedDataLength"])
        ),
    )
    return wire


if __name__ == "__main__":
    sys.exit(main())
