"""Wall time of `yard` from start to exit, beside an empty Python and a program with click and httpx.

Run: python -m bench.cli
"""

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from bench.harness import Row, report, time_ms
from tests.cli.conftest import job
from tests.cli.scripted import page, scripted_server

REPEATS = 21
YARD = Path(sys.executable).parent / "yard"
EMPTY = [sys.executable, "-I", "-c", "pass"]
PEER = [sys.executable, "-I", "-c", "import click, httpx; httpx.Client().close()"]


def main() -> None:
    """Run our commands, the empty interpreter and the peer in turn, so that all run under the same load; report."""
    rows = [job(f"job-{number}") for number in range(50)]
    with scripted_server() as server, tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        server.on("GET", "projects/team-a/jobs", page(*rows))
        settings = {"TRAINYARD_URL": server.url, "TRAINYARD_TOKEN": "t", "TRAINYARD_PROJECT": "team-a"}
        environment = {**os.environ, **settings, "TRAINYARD_CONFIG": f"{directory}/config.json"}
        commands = {
            "version": [str(YARD), "version"],
            "list": [str(YARD), "list", "jobs"],
            "empty": EMPTY,
            "peer": PEER,
        }
        samples = measure(commands, environment)
    report(
        "cli",
        [
            Row(
                "`yard version`",
                "<= 100 ms",
                "ms",
                samples["version"],
                limit=100,
                peer="python -I -c pass",
                peer_samples=samples["empty"],
            ),
            Row(
                "`yard list jobs`, 50 rows over HTTP",
                "<= 300 ms, <= 0.5x peer",
                "ms",
                samples["list"],
                limit=300,
                peer="import click, httpx alone",
                peer_samples=samples["peer"],
                ratio_limit=0.5,
            ),
        ],
    )


def measure(commands: dict[str, list[str]], environment: dict[str, str]) -> dict[str, list[float]]:
    """Return the wall milliseconds of each command by name, REPEATS of each; every round runs each command once."""
    samples: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(REPEATS):
        for name, command in commands.items():
            samples[name] += time_ms(partial(run, command, environment), repeats=1, warm_up=0)
    return samples


def run(command: list[str], environment: dict[str, str]) -> None:
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
