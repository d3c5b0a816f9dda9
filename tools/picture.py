"""`make picture`: take the README's picture of the overview. Starts an instance with the demo and removes it.

The demo's jobs run for some minutes first (`--minutes N`, default 2), so that there is a history to draw. After a third
of that time team-d, which owns half of the cluster, submits more jobs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import servers  # noqa: E402  needs the path above
from tests.waiting import wait_until  # noqa: E402  needs the path above

TARGET = ROOT / "docs" / "img" / "overview.png"
PASSWORD = "only for this picture"


def main(minutes: float) -> int:
    """Take the picture after the demo has run for `minutes`. Return 0, or 1 without a browser."""
    browser = servers.chromium()
    if browser is None:
        print("There is no Chromium: apt-get install chromium")
        return 1
    with tempfile.TemporaryDirectory(prefix="trainyard-picture-") as directory:
        with servers.control_plane(Path(directory)) as running:
            wait_until(lambda: running.call("GET", "/api/v1/nodes")[1]["results"], what="the nodes")
            environment = {**os.environ, **running.environment}
            subprocess.run([sys.executable, "manage.py", "demo"], cwd=ROOT, env=environment, check=True)
            body = {"username": "sam", "password": PASSWORD, "is_admin": True}
            status, answer = running.call("POST", "/api/v1/users", body)
            assert status == 201, answer
            time.sleep(minutes * 20)  # a history is made of time
            submit(running, "lm-eval", 4, minutes * 60)
            time.sleep(minutes * 40)
            take(browser, running.url)
            running.stop_jobs()
    print(TARGET.relative_to(ROOT))
    return 0


def submit(running: servers.ControlPlane, name: str, gpus: int, seconds: float) -> None:
    """Submit a job of team-d with `gpus` GPUs that replays a recorded run over `seconds`."""
    work = {"image": "replay", "env": {"DURATION_SECONDS": str(round(seconds))}}
    body = {"name": name, "kind": "train", "gpus": gpus, **work}
    status, answer = running.call("POST", "/api/v1/projects/team-d/jobs", body)
    assert status == 201, answer


def take(browser: str, url: str) -> None:
    """Sign in to the control plane at `url` with the browser and save a picture of the overview as TARGET."""
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(viewport={"width": 1600, "height": 1000}, color_scheme="light")
        page.goto(f"{url}/login")
        page.fill("#username", "sam")
        page.fill("#password", PASSWORD)
        page.press("#password", "Enter")
        page.wait_for_url(f"{url}/")
        page.wait_for_selector(".js-plotly-plot .main-svg")
        # Until the next update of the live feed.
        page.wait_for_timeout(3000)
        page.screenshot(path=TARGET)
        chromium.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    sys.exit(main(parser.parse_args().minutes))
