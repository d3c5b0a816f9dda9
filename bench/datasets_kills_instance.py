"""The effect of kill -9 on the processes of a running control plane during ingest, fill, snapshot and restore.

Every kind of process, and all at once, is killed ten times. Each kill is at a moment of the work, as its files show
it: after a part of them, when all are there, or when the result has its name and is not recorded yet. A kill that
came too late is repeated. Then the work ends, by itself or, for a sync, by the same command. What is there afterwards
is compared with that of works that were not killed.

Run: python -m bench.datasets_kills_instance [--only web] [--kills 4] [--lake s3] [--directory DIR]
`--lake s3`: the content is on an S3 server; ingest and fill only.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle
from pathlib import Path

import psutil

from bench.datasets import YARD
from bench.datasets_kills import is_same, make_tree
from bench.datasets_kills_works import (
    NAMED,
    PREFIX,
    PROJECT,
    RECORDED,
    UNFINISHED,
    WHOLE,
    Fill,
    Ingest,
    Place,
    Restore,
    TakeSnapshot,
    Work,
)
from tests.s3_server import S3Server, s3_server
from tests.servers import CHECKOUT, control_plane, descendants, words_of
from tests.waiting import patience, wait_until

# From 2,000 contents on, processes write the files of a fill.
FILES = 2400
KILLS, TRIES = 10, 8
# How long the processes work between two looks at what they have done.
SLICE_SECONDS = 0.002
MOMENTS = (0.01, 0.25, 0.5, 0.75, 0.95, WHOLE, NAMED)
SERVERS = ("web", "tasks", "worker", "redis")
KINDS = ("yard", "reader", "writer", *SERVERS, "supervisor", "all")
MARKS = {"reader": "datasets.ingest.worker", "writer": "datasets.storage.tree_writer"}
# The works in which a kind of process exists; the others exist in all.
ONLY_IN = {"reader": ("ingest",), "writer": ("fill",)}


class Campaign:
    """A control plane under kill -9. `lines`: what was found wrong; `errors`: how many `yard` commands ended with an
    error."""

    def __init__(self, place: Place, home: Path) -> None:
        self._place = place
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TRAINYARD_")}
        running = place.running
        self._environment = kept | {
            "TRAINYARD_URL": running.url,
            "TRAINYARD_TOKEN": running.token,
            "XDG_CONFIG_HOME": str(home / "yard"),
        }
        self._expected: dict[str, dict[str, object]] = {}
        self.lines: list[str] = []
        self.errors = 0

    def prepare(self) -> list[Work]:
        """Do each work once without a kill; return them."""
        key = self._place.create_project(PROJECT)
        self._place.send("POST", f"projects/{PROJECT}/datasets", {"name": "d"})
        self._yard("-p", PROJECT, "dataset", "sync", str(self._place.tree), "--name", "d")
        for volume in ("v", "u"):
            self._yard("-p", PROJECT, "volume", "create", volume, "--size", "1Gi", "--wait")
        for path in self._place.home.glob(f"volumes/*/{key}/volumes/*"):
            shutil.copytree(self._place.tree, path, dirs_exist_ok=True)
        self._yard("-p", PROJECT, "snapshot", "create", "u", "--wait")
        works: list[Work] = [Ingest(self._place), Fill(self._place)]
        works += [] if self._place.s3 else [TakeSnapshot(self._place), Restore(self._place)]
        for work in works:
            work.begin()
            self._yard(*work.words)
            self._place.be_idle()
            self._expected[work.name] = work.found()
            work.forget()
        return works

    def _yard(self, *words: str) -> None:
        subprocess.run([YARD, *words], env=self._environment, check=True, capture_output=True)

    def kill(self, kind: str, work: Work, moment: float) -> bool:
        """Do a work and kill processes of a kind at a moment of it. Return whether the work was unfinished then.
        Adds to `lines` what is wrong afterwards."""
        work.begin()
        with subprocess.Popen(
            [YARD, *work.words],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as yard:
            stopped = self._stopped_at(work, yard, moment, kind)
            if stopped:
                _kill(self._victims(kind, yard))
                _send(stopped, signal.SIGCONT)
            self._start_again(kind if stopped else "")
            code = yard.wait(patience(120))
        self.errors += code != 0
        self._end(work, code)
        found = work.found()
        for name, value in self._expected[work.name].items():
            if not is_same(found[name], value):
                self.lines.append(
                    f"{kind} at {moment:g} of {work.name}: {name} is {found[name]}, not {value}"
                )
        work.forget()
        return bool(stopped)

    def _stopped_at(
        self, work: Work, yard: subprocess.Popen[bytes], moment: float, kind: str
    ) -> list[psutil.Process]:
        """Wait until the work has come to the moment, and a process of the kind is there. Return the processes that
        do the work, stopped; none if it ended before."""
        while yard.poll() is None:
            # Stopped while its files are looked at, so that a busy machine sees each of its steps.
            stopped = self._stop(yard)
            come = work.come()
            if moment <= come < RECORDED and self._victims(kind, yard):
                return stopped
            _send(stopped, signal.SIGCONT)
            if come >= RECORDED:
                return []
            time.sleep(SLICE_SECONDS)
        return []

    def _stop(self, yard: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """Stop `yard`, the worker of long commands, and the processes below them; return them."""
        stopped: list[psutil.Process] = []
        above = [psutil.Process(yard.pid), *self._victims("tasks", yard)]
        # The parents first, so that they start no more.
        for process in above:
            stopped += _send([process], signal.SIGSTOP)
        return stopped + _send([one for process in above for one in descendants(process.pid)], signal.SIGSTOP)

    def _victims(self, kind: str, yard: subprocess.Popen[bytes]) -> Sequence[psutil.Process]:
        running = self._place.running
        if kind == "supervisor":
            return [psutil.Process(running.process.pid)]
        if kind == "yard":
            return [psutil.Process(yard.pid)]
        if kind in MARKS:
            below = [*descendants(yard.pid), *descendants(running.process.pid)]
            return [process for process in below if MARKS[kind] in words_of(process)][:1]
        if kind in SERVERS:
            return [process for name, process in running.children().items() if name == kind]
        pids = (running.process.pid, yard.pid)
        return [*map(psutil.Process, pids), *(process for pid in pids for process in descendants(pid))]

    def _start_again(self, kind: str) -> None:
        """Start the control plane again if its supervisor was killed, and wait until it is ready. `kind`: what was
        killed."""
        running = self._place.running
        if kind in ("supervisor", "all"):
            running.process.wait()
        while running.process.poll() is not None:
            # Until the servers of the killed one have ended, it says that the address is in use.
            with (self._place.home / "console.log").open("ab") as console:
                command = [sys.executable, "-m", "controlplane.supervisor"]
                running.process = subprocess.Popen(
                    command, cwd=CHECKOUT, env=running.environment, stdout=console, stderr=console
                )
            wait_until(lambda: running.process.poll() is not None or running.is_ready(), 120, "the start")
        wait_until(running.is_ready, 120, "readiness")

    def _end(self, work: Work, code: int) -> None:
        """Wait for the end of a work, for a sync by repeating its command; `code`: what `yard` ended with."""
        if isinstance(work, Ingest):
            if code:
                self._yard(*work.words)
        else:
            wait_until(lambda: work.come() >= RECORDED, 120, f"the end of the {work.name}")
        wait_until(lambda: not self._place.rows(UNFINISHED), 120, "the end of all commands")


def _kill(victims: Sequence[psutil.Process]) -> None:
    # Stopped first: otherwise some would notice the ends of others.
    _send(victims, signal.SIGSTOP)
    _send(victims, signal.SIGKILL)


def _send(processes: Sequence[psutil.Process], number: int) -> list[psutil.Process]:
    """Send a signal to processes; return those that were there."""
    sent = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
            sent.append(process)
    return sent


def main() -> None:
    """Print a line for each kind of process; exit with 1 if anything was lost or is there twice."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--lake", choices=("folder", "s3"), default="folder")
    parser.add_argument("--directory")
    parser.add_argument("--kills", type=int, default=KILLS)
    arguments = parser.parse_args()
    with place(arguments.lake == "s3", arguments.directory) as (there, home):
        campaign = Campaign(there, home)
        works = campaign.prepare()
        for kind in KINDS:
            # From a bucket, threads of the worker write the files.
            if arguments.only in (None, kind) and not (there.s3 and kind == "writer"):
                kill_all(campaign, kind, works, arguments.kills)
        print("\n".join(campaign.lines) or "Nothing was lost, and nothing is there twice.", flush=True)
    sys.exit(bool(campaign.lines))


def kill_all(campaign: Campaign, kind: str, works: Sequence[Work], kills: int) -> None:
    """Kill processes of a kind until `kills` of them were in the middle of a work; print how many were."""
    possible = [work for work in works if work.name in ONLY_IN.get(kind, (work.name,))]
    hits: Counter[str] = Counter()
    errors = campaign.errors
    turns = cycle(possible)
    # Readers and writers have ended when the result has its name.
    pool = MOMENTS[:-2] if kind in ONLY_IN else MOMENTS
    # Each kind begins with another moment, so that every work is interrupted at all of them.
    first = KINDS.index(kind) % len(pool)
    moments = cycle(pool[first:] + pool[:first])
    for _ in range(kills):
        work, moment = next(turns), next(moments)
        for _ in range(TRIES):
            if campaign.kill(kind, work, moment):
                hits[work.name] += 1
                break
        else:
            campaign.lines.append(f"{kind}: {work.name} always ended before {moment:g}")
    shown = ", ".join(f"{name} {count}" for name, count in hits.items())
    print(
        f"{kind}: {hits.total()} of {kills} kills in the middle of a work: {shown};"
        f" {campaign.errors - errors} commands ended with an error",
        flush=True,
    )


@contextmanager
def place(is_s3: bool, directory: str | None) -> Iterator[tuple[Place, Path]]:
    """Context manager with a control plane, its S3 server if it has one, a tree of files, and a directory."""
    with ExitStack() as stack:
        home = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="trainyard-bench-", dir=directory))
        )
        make_tree(home / "tree", FILES)
        s3 = stack.enter_context(s3_server()) if is_s3 else None
        running = stack.enter_context(control_plane(home / "state", _settings(s3) if s3 else {}))
        yield Place(running, home / "tree", s3), home


def _settings(s3: S3Server) -> dict[str, str]:
    config = s3.config(PREFIX)
    return {
        "TRAINYARD_LAKE": f"s3://{config.bucket}/{PREFIX}",
        "TRAINYARD_S3_ENDPOINT": s3.endpoint,
        "TRAINYARD_S3_ALLOW_PRIVATE": "yes",
        "AWS_ACCESS_KEY_ID": config.access_key,
        "AWS_SECRET_ACCESS_KEY": config.secret_key,
    }


if __name__ == "__main__":
    main()
