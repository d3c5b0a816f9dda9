"""Time from `yard submit --code` to the running process, with 2,000 files of which none or one changed, beside a submit
without code. The three are measured in turn, each in a process of its own. Run: python -m bench.code"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.harness import Row, report
from tests import servers
from tests.waiting import wait_until

FILES, FOLDERS, FILE_BYTES = 2000, 40, 5000
REPEATS, WARM_UP = 15, 2
CHECKOUT = Path(__file__).resolve().parents[1]
START = (
    f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); "
    "from controlplane.cli.__main__ import main; sys.exit(main())"
)


def main() -> None:
    """Measure a submit without code, with code that did not change, and with one file changed."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        home = Path(directory)
        repository, stamps = home / "repository", home / "stamps"
        stamps.mkdir()
        make_repository(repository)
        with servers.control_plane(home / "state") as running:
            running.call("POST", "/api/v1/projects", {"name": "bench", "gpu_quota": 16})
            kept = {name: value for name, value in os.environ.items() if not name.startswith("TRAINYARD_")}
            environment = kept | {
                "TRAINYARD_URL": running.url,
                "TRAINYARD_TOKEN": running.token,
                "TRAINYARD_PROJECT": "bench",
                "XDG_CACHE_HOME": str(home / "cache"),
            }
            take = submitter(environment, stamps)
            report("code", rows(*samples(take, repository)))


def rows(without: list[float], unchanged: list[float], changed: list[float]) -> list[Row]:
    """Return rows for the two goals, each relative to the submits without code of the same run. All lists are
    milliseconds."""
    peer = "the same submit without code"
    work = f"`yard submit --code`, {FILES:,} files"
    return [
        Row(f"{work}, nothing changed", "<= 1.3x", "ms", unchanged, None, False, 0.5, peer, without, 1.3),
        Row(f"{work}, one file changed", "<= 1.5x", "ms", changed, None, False, 0.5, peer, without, 1.5),
    ]


def samples(
    take: Callable[[str, list[str]], float], repository: Path
) -> tuple[list[float], list[float], list[float]]:
    """Return the milliseconds of jobs without code, with the unchanged code in `repository`, and with one of its
    files changed: three lists. `take` submits a job with a name and options, and returns its milliseconds (see
    `submitter`)."""
    code = ["--code", str(repository)]
    taken: tuple[list[float], list[float], list[float]] = ([], [], [])
    for number in range(WARM_UP + REPEATS):
        found = [take(f"without-{number}", []), take(f"same-{number}", code)]
        (repository / "folder-0" / "file-0.py").write_bytes(os.urandom(FILE_BYTES))
        found.append(take(f"changed-{number}", code))
        if number >= WARM_UP:
            for kind, sample in zip(taken, found, strict=True):
                kind.append(sample)
    return taken


def submitter(environment: dict[str, str], stamps: Path) -> Callable[[str, list[str]], float]:
    """Return a function that gets a job's name and options of `yard submit`. It submits a job that writes the
    time to a file in `stamps`, waits for the file, and returns the milliseconds from the start of `yard`.
    `environment`: that of `yard`."""

    def take(name: str, options: list[str]) -> float:
        stamp = stamps / name
        script = f"date +%s.%N > {stamp}.part && mv {stamp}.part {stamp}"
        command = [sys.executable, "-I", "-c", START, "submit", name, *options, "--", "/bin/sh", "-c", script]
        began = time.time()
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
        wait_until(stamp.exists, timeout=60, what=f"{name} to run")
        return 1000 * (float(stamp.read_text()) - began)

    return take


def make_repository(root: Path) -> None:
    """Commit FILES random files to a new git repository. They are an hour old: git reads all files that are as new as
    its index again."""
    an_hour_ago = time.time() - 3600
    for number in range(FILES):
        folder = root / f"folder-{number % FOLDERS}"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"file-{number}.py"
        file.write_bytes(os.urandom(FILE_BYTES))
        os.utime(file, (an_hour_ago, an_hour_ago))
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@example.org")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "files")):
        subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)


if __name__ == "__main__":
    main()
