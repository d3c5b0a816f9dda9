"""One child process: start, restart with increasing delay, stop, and a log file of bounded size."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from controlplane.supervisor.instance import CHECKOUT
from controlplane.supervisor.programs import Program

# A child that dies at its start is restarted ever more slowly, so that it does not take the processor.
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
# A child that lived this long is restarted at once: its start is not the reason of its death.
STEADY_SECONDS = 10.0
LARGEST_LOG_BYTES = 8 << 20
PR_SET_PDEATHSIG = 1


class Child:
    """A program and, while it runs, its process, started by `start`. Times are seconds of the caller's monotonic
    clock."""

    def __init__(self, program: Program, log_dir: Path) -> None:
        self.program = program
        self.log_path = log_dir / f"{program.name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        # When it may start next; meaningful only while there is no process.
        self.start_at = 0.0
        self._started_at = 0.0
        self._quick_deaths = 0

    @property
    def name(self) -> str:
        return self.program.name

    def start(self, now: float) -> None:
        """Start the process, in a process group of its own, so that Ctrl-C in the terminal reaches only the
        supervisor. `now`: in monotonic seconds. Raise OSError if the log or the program cannot be opened."""
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.program.arguments,
                cwd=CHECKOUT,
                env=self.program.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=self.program.descriptors,
                process_group=0,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  the supervisor has one thread
            )
        self._started_at = now

    def notice_death(self, now: float) -> str | None:
        """If the process has ended, set `start_at` for its restart and return a sentence on how it ended. None while
        it runs or if there is none."""
        if self.process is None or self.process.poll() is None:
            return None
        how, self.process = _describe(self.process.returncode), None
        self._quick_deaths = 0 if now - self._started_at >= STEADY_SECONDS else self._quick_deaths + 1
        pause = (
            min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**self._quick_deaths)
            if self._quick_deaths
            else 0.0
        )
        self.start_at = now + pause
        return f"{self.name} {how}; starting it again{f' in {pause:.1f} s' if pause else ''}"

    def send(self, number: int) -> None:
        """Send signal `number` to the process. Does nothing if it does not run."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the process to end; return whether it has ended."""
        if self.process is None:
            return True
        try:
            self.process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True

    def cap_log(self) -> None:
        """Truncate the log if it is larger than LARGEST_LOG_BYTES, keeping its content in one older file unless the
        disk is full. The file is copied, not renamed, because the child appends to its open descriptor."""
        try:
            size = os.stat(self.log_path).st_size
        except FileNotFoundError:
            return
        if size > LARGEST_LOG_BYTES:
            older = self.log_path.with_suffix(".log.1")
            try:
                shutil.copyfile(self.log_path, older)
            except OSError:
                # The disk is full: free space is worth more than old lines.
                older.unlink(missing_ok=True)
            os.truncate(self.log_path, 0)

    def last_lines(self, count: int) -> list[str]:
        """Return up to `count` last lines of the log, taken from its last 8 KiB."""
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - 8192))
            return log.read().decode(errors="replace").splitlines()[-count:]


def _describe(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _prctl() -> Callable[[int, int], int] | None:
    """Return Linux's prctl function, None on other systems. Called before any fork, because a forked child must not
    import."""
    if not sys.platform.startswith("linux"):
        return None
    prctl: Callable[[int, int], int] = ctypes.CDLL(None).prctl
    return prctl


PRCTL = _prctl()


def _die_with_parent() -> None:
    """Have the kernel end this child when the supervisor dies, even by kill -9. Runs in the child. Pods are not
    children of the supervisor."""
    if PRCTL is not None:
        PRCTL(PR_SET_PDEATHSIG, signal.SIGTERM)
