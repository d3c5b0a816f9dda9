"""Run commands ("checks") concurrently. Each prints into its own file, which is shown as a whole when it has
ended.

At most `at_once` run at a time, started in the order of the list.
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
class Check:
    """A command for this Python. `variables`: added to its environment. `needs_still_network`: it runs in a network
    with only a loopback interface, so that none appears or disappears; where that is not permitted, no other check
    can create interfaces either. `after`: the name of a check that must end first, "" for none."""

    name: str
    arguments: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    needs_still_network: bool = False
    after: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a check ended: its exit code, duration and CPU time, and the counts (`passed` and others) of its last line
    (`tally`)."""

    name: str
    code: int
    seconds: float
    cpu_seconds: float
    tally: Counter[str]


def run(checks: Iterable[Check], *, at_once: int) -> int:
    """Run all checks, at most `at_once` at a time, and print a summary, whose last line has the total. Return 0 if
    all succeeded, 1 if not, INTERRUPTED after a signal.

    SIGINT and SIGTERM end all checks, with one signal each, so that their tests can clean up.
    """
    began = time.monotonic()
    ended: list[Ended] = []
    try:
        with _interruptible():
            for one in _side_by_side(list(checks), at_once):
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
    """Return one line in the form of pytest's: `1 failed, 80 passed in 12.30s (0:00:12); failed: app`."""
    tally = sum((one.tally for one in ended), Counter[str]())
    counted = ", ".join(
        f"{tally[word]} {word}" for word in ("failed", "error", "passed", "skipped") if tally[word]
    )
    minutes, rest = divmod(int(seconds), 60)
    failed = ", ".join(one.name for one in ended if one.code)
    line = f"{counted or 'nothing counted'} in {seconds:.2f}s (0:{minutes:02}:{rest:02})"
    return f"{line}; failed: {failed}" if failed else line


def tally_of(text: str) -> Counter[str]:
    """Return the counts of pytest's closing line, such as {"passed": 80}, even if other lines follow; empty
    without such a line."""
    lines = [line for line in text.splitlines() if CLOSING_LINE.search(line)]
    return Counter({word: int(number) for number, word in TALLY.findall(lines[-1])}) if lines else Counter()


class _Running:
    """A check's process, the file for its output, and the state directory that it may use."""

    def __init__(self, check: Check) -> None:
        self.check, self.began = check, time.monotonic()
        self._own = tempfile.TemporaryDirectory(prefix="trainyard-check-", ignore_cleanup_errors=True)
        self._log = Path(self._own.name, "log")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*(_own_network() if check.needs_still_network else ()), sys.executable, *check.arguments],
                cwd=ROOT,
                env={
                    **_clean_environment(),
                    "TRAINYARD_STATE_DIR": f"{self._own.name}/state",
                    **check.variables,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C reaches the check through this process only, once: a second signal would interrupt
                # its clean-up.
                process_group=0,
            )

    def has_ended(self) -> bool:
        """Return whether the process has ended; does not reap it."""
        # WNOWAIT leaves the ended process, so that its CPU time can still be read.
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end(self) -> Ended:
        """Reap a check's process, remove its state directory, print its output and return the result."""
        seconds, before = time.monotonic() - self.began, _cpu_seconds()
        code = self.process.wait()
        cpu_seconds = _cpu_seconds() - before
        text = self._log.read_text(errors="replace")
        self._own.cleanup()
        print(f"\n== {self.check.name}\n{text.rstrip()}", flush=True)
        print(f"{self.check.name}: {f'FAILED ({code})' if code else 'passed'} in {seconds:.1f} s", flush=True)
        return Ended(self.check.name, code, seconds, cpu_seconds, tally_of(text))


@contextmanager
def _interruptible() -> Iterator[None]:
    """Context manager in which SIGINT and SIGTERM raise KeyboardInterrupt."""
    # Otherwise a script's background process and all its children would ignore SIGINT.
    before = [
        (number, signal.signal(number, signal.default_int_handler))
        for number in (signal.SIGINT, signal.SIGTERM)
    ]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _side_by_side(waiting: list[Check], at_once: int) -> Iterator[Ended]:
    with _all_ended_at_the_end([]) as running:
        while waiting or running:
            while len(running) < at_once and (check := _next(waiting, running)):
                waiting.remove(check)
                running.append(_Running(check))
                print(f"-- {check.name}", flush=True)
            for one in [one for one in running if one.has_ended()]:
                running.remove(one)
                yield one.end()
            time.sleep(POLL_SECONDS)


def _next(waiting: Sequence[Check], running: Sequence[_Running]) -> Check | None:
    """Return the first waiting check whose `after` has ended; None if there is none."""
    awaited = {check.name for check in waiting} | {one.check.name for one in running}
    return next((check for check in waiting if check.after not in awaited), None)


@contextmanager
def _all_ended_at_the_end(running: list[_Running]) -> Iterator[list[_Running]]:
    """Context manager with the list of running checks, which the caller keeps up to date. At its end it asks the
    processes in the list to end, and kills them if they do not, or at a second signal."""
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
    """Return a command prefix with which a command runs in a network of its own; () if that is not permitted."""
    apart = ["unshare", "--net"]
    loopback = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    try:
        tried = subprocess.run([*apart, *loopback, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return ()
    return () if tried.returncode else (*apart, *loopback)


def _cpu_seconds() -> float:
    """Return the CPU seconds of all child processes that were reaped."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _clean_environment() -> dict[str, str]:
    """Return the environment without variables of an instance for which this shell may be set up."""
    ours = ("TRAINYARD_", "DATABASE_URL", "DJANGO_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}
