"""Commands side by side: each prints into a file of its own, which is shown whole when it has ended.

So many run at once; those that come first in the list begin first.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
POLL_SECONDS = 0.1
SECONDS_TO_END = 60
TALLY = re.compile(r"(\d+) (passed|failed|error|skipped)")
CLOSING_LINE = re.compile(r"^\d+ \w+.* in [\d.]+s\b")
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Lane:
    """A command of this Python. `needs_still_network`: it sees no interface but loopback, and so none that comes or
    goes; where we may not make such a network, nobody else makes interfaces either. It begins when the lane named
    `after` has ended."""

    name: str
    arguments: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    needs_still_network: bool = False
    after: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a lane ended, and how often it said `passed` and the like in its last line."""

    name: str
    code: int
    seconds: float
    cpu_seconds: float
    tally: Counter[str]


def run(lanes: Iterable[Lane], *, at_once: int) -> int:
    """Run them all and print a summary, whose last line tells everything. Exit code 0 when all did well.

    SIGINT and SIGTERM end them all, each once, so that their tests put away what they made.
    """
    began = time.monotonic()
    ended: list[Ended] = []
    try:
        with _interruptible():
            for one in _side_by_side(list(lanes), at_once):
                ended.append(one)
    except KeyboardInterrupt:
        print("\ninterrupted", flush=True)
        return INTERRUPTED
    print("\n== summary", flush=True)
    for one in ended:
        outcome = "FAILED" if one.code else "passed"
        print(f"{outcome} in {one.seconds:5.1f} s, {one.cpu_seconds:5.1f} s of a core: {one.name}")
    print(summary(ended, time.monotonic() - began), flush=True)
    return int(any(one.code for one in ended))


def summary(ended: Sequence[Ended], seconds: float) -> str:
    """One line, as pytest ends with: `1 failed, 80 passed in 12.30s (0:00:12); failed: app`."""
    tally = sum((one.tally for one in ended), Counter[str]())
    counted = ", ".join(
        f"{tally[word]} {word}" for word in ("failed", "error", "passed", "skipped") if tally[word]
    )
    minutes, rest = divmod(int(seconds), 60)
    failed = ", ".join(one.name for one in ended if one.code)
    line = f"{counted or 'nothing counted'} in {seconds:.2f}s (0:{minutes:02}:{rest:02})"
    return f"{line}; failed: {failed}" if failed else line


def tally_of(text: str) -> Counter[str]:
    """What pytest's closing line counts, also where a thread logged something after it; empty where there is none."""
    lines = [line for line in text.splitlines() if CLOSING_LINE.search(line)]
    return Counter({word: int(number) for number, word in TALLY.findall(lines[-1])}) if lines else Counter()


class _Running:
    """A lane's process, the file that it prints into, and the state directory that it may use."""

    def __init__(self, lane: Lane) -> None:
        self.lane, self.began = lane, time.monotonic()
        self._own = tempfile.TemporaryDirectory(prefix="trainyard-check-", ignore_cleanup_errors=True)
        self._log = Path(self._own.name, "log")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*(_own_network() if lane.needs_still_network else ()), sys.executable, *lane.arguments],
                cwd=ROOT,
                env={
                    **_clean_environment(),
                    "TRAINYARD_STATE_DIR": f"{self._own.name}/state",
                    **lane.variables,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C reaches it through us, once: a second one would cut its cleaning up short
            )

    def has_ended(self) -> bool:
        """Whether it has, while it is still there to be asked what it took."""
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end(self) -> Ended:
        """Show what it said. It has ended."""
        seconds, before = time.monotonic() - self.began, _cpu_seconds()
        code = self.process.wait()
        cpu_seconds = _cpu_seconds() - before
        text = self._log.read_text(errors="replace")
        self._own.cleanup()
        print(f"\n== {self.lane.name}\n{text.rstrip()}", flush=True)
        print(f"{self.lane.name}: {f'FAILED ({code})' if code else 'passed'} in {seconds:.1f} s", flush=True)
        return Ended(self.lane.name, code, seconds, cpu_seconds, tally_of(text))


@contextmanager
def _interruptible() -> Iterator[None]:
    """Either signal raises KeyboardInterrupt. In the background of a script SIGINT is ignored, also by all children."""
    before = [
        (number, signal.signal(number, signal.default_int_handler))
        for number in (signal.SIGINT, signal.SIGTERM)
    ]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _side_by_side(waiting: list[Lane], at_once: int) -> Iterator[Ended]:
    with _all_ended_at_the_end([]) as running:
        while waiting or running:
            while len(running) < at_once and (lane := _next(waiting, running)):
                waiting.remove(lane)
                running.append(_Running(lane))
                print(f"-- {lane.name}", flush=True)
            for one in [one for one in running if one.has_ended()]:
                running.remove(one)
                yield one.end()
            time.sleep(POLL_SECONDS)


def _next(waiting: Sequence[Lane], running: Sequence[_Running]) -> Lane | None:
    """The first that waits for no lane which has yet to end."""
    awaited = {lane.name for lane in waiting} | {one.lane.name for one in running}
    return next((lane for lane in waiting if lane.after not in awaited), None)


@contextmanager
def _all_ended_at_the_end(running: list[_Running]) -> Iterator[list[_Running]]:
    """Whoever is still there then is asked to end, and killed if it does not, or if we are asked a second time."""
    try:
        yield running
    finally:
        try:
            for one in running:
                one.process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + SECONDS_TO_END
            for one in running:
                with suppress(subprocess.TimeoutExpired):
                    one.process.wait(max(0, deadline - time.monotonic()))
        finally:
            for one in running:
                one.process.kill()
                one.end()


def _own_network() -> Sequence[str]:
    """What begins a command in a network of its own; nothing where that is not allowed."""
    apart = ["unshare", "--net"]
    loopback = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    try:
        tried = subprocess.run([*apart, *loopback, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return ()
    return () if tried.returncode else (*apart, *loopback)


def _cpu_seconds() -> float:
    """Of all processes that have ended below us and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _clean_environment() -> dict[str, str]:
    """Without the variables of an instance that this shell may be set up for."""
    ours = ("TRAINYARD_", "DATABASE_URL", "DJANGO_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}
