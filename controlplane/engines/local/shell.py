"""A terminal in a pod: a shell with the pod's environment, directory and token, so that it ends with the pod."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios

from controlplane.engines import base
from controlplane.engines.base import EngineRefused
from controlplane.engines.local import processes
from controlplane.engines.local.records import Prepared, own_mounts

SHELLS = ("bash", "sh")
ENDING_SECONDS = 2.0
# Runs in the new session and makes the terminal its controlling terminal, which needs a single-threaded process.
_TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], [sys.argv[2]])
"""


def entering(prepared: Prepared, pid: int) -> list[str]:
    """Return the command prefix that enters the mount namespace of the pod's process `pid`; [] if the pod has no own
    one."""
    if not own_mounts(prepared.spec):
        return []
    enter = ["nsenter", f"--mount=/proc/{pid}/ns/mnt"]
    if os.geteuid() != 0:
        enter += [f"--user=/proc/{pid}/ns/user", "--preserve-credentials"]
    # Entering the namespace changes the directory to the root, so it is set again.
    return [*enter, "sh", "-c", 'cd "$0" && exec "$@"', prepared.work_dir]


def start_program(
    words: list[str], prepared: Prepared, pid: int, *, stdin: int, stdout: int, stderr: int
) -> subprocess.Popen[bytes]:
    """Start a program with the environment and mounts of a pod, in a session of its own. `pid`: of a process of the
    pod. Raise EngineRefused if the system cannot start it."""
    try:
        return subprocess.Popen(
            [*entering(prepared, pid), *words],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=prepared.work_dir,
            env=dict(prepared.env),
            start_new_session=True,
            umask=processes.POD_UMASK,
        )
    except OSError as error:
        raise _refusal(error, prepared) from error


def kill_session(leader: subprocess.Popen[bytes], start_ticks: int) -> None:
    """Kill all processes of the session that `leader` began, and wait for `leader`. `start_ticks`: its start time, so
    that no session of a process that reuses its id is killed."""
    killed: set[int] = set()
    # Looked for again until none is new: one may be forked between the look and the signal. One that was signalled
    # forks no more.
    while found := set(processes.in_session(leader.pid, start_ticks, processes.table())) - killed:
        processes.kill(sorted(found), signal.SIGKILL)
        killed |= found
    leader.wait()


def exit_code_within(program: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Wait at most `seconds` for a program to end. Return its exit code, 128 + n after signal n; None if it still
    runs."""
    try:
        code = program.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    return code if code >= 0 else 128 - code


def _refusal(error: OSError, prepared: Prepared) -> EngineRefused:
    """Return the EngineRefused that explains why the system could not start a program."""
    reason = error.strerror or str(error)
    if error.filename == prepared.work_dir:
        return EngineRefused(
            base.WORKING_DIR_MISSING,
            f"The pod's working directory {prepared.work_dir} is not usable: {reason}.",
        )
    if isinstance(error, FileNotFoundError):
        return EngineRefused(base.COMMAND_NOT_FOUND, f"The pod has no program {error.filename!r}.")
    if error.errno == errno.E2BIG:
        reason = "its arguments and the pod's environment exceed the system's limit"
    return EngineRefused(base.COMMAND_NOT_EXECUTABLE, f"The command could not be started: {reason}.")


class LocalShell:
    """A shell on a terminal in a local pod; implements engines.base.Shell. `pid`: of the pod's process whose
    environment it gets. Raise EngineRefused if the pod has no shell or it cannot be started."""

    def __init__(self, prepared: Prepared, pid: int, columns: int, rows: int) -> None:
        program = _shell_of(prepared)
        self._master, slave = os.openpty()
        os.set_blocking(self._master, False)
        words = [sys.executable, "-I", "-S", "-c", _TAKE_TERMINAL, program, os.path.basename(program)]
        try:
            self.resize(columns, rows)
            self._process = start_program(words, prepared, pid, stdin=slave, stdout=slave, stderr=slave)
        except EngineRefused:
            os.close(self._master)
            raise
        finally:
            os.close(slave)
        self._ticks = processes.start_ticks_of(self._process.pid)
        self._is_closed = self._has_ended = False

    def fileno(self) -> int:
        return self._master

    def read(self, limit: int = 65536) -> bytes:
        while True:
            try:
                return os.read(self._master, limit)
            except BlockingIOError:
                _wait_readable(self._master)
            except OSError:
                # EIO means that every process of the terminal has ended.
                self._has_ended = True
                return b""

    def write(self, data: bytes) -> int:
        try:
            return os.write(self._master, data)
        except BlockingIOError:
            return 0

    def resize(self, columns: int, rows: int) -> None:
        size = struct.pack("HHHH", max(1, min(rows, 1000)), max(1, min(columns, 1000)), 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def close(self) -> int | None:
        """Hang up the terminal, and kill the remaining processes of its session. Return the exit code if the shell
        ended by itself, else None; None also for a repeat."""
        if self._is_closed:
            return None
        self._is_closed = True
        exit_code = self._own_exit_code()
        os.close(self._master)
        kill_session(self._process, self._ticks)
        return exit_code

    def _own_exit_code(self) -> int | None:
        """Return the shell's exit code, None if it still runs. Waits briefly if the terminal has ended, because the
        exit follows."""
        return exit_code_within(self._process, ENDING_SECONDS if self._has_ended else 0)


def _shell_of(prepared: Prepared) -> str:
    """Return the path of bash, else of sh, on the pod's PATH. Raise EngineRefused if it has neither."""
    for name in SHELLS:
        if found := shutil.which(name, path=prepared.env.get("PATH")):
            return found
    raise EngineRefused(base.COMMAND_NOT_FOUND, f"The pod's PATH has no shell ({' or '.join(SHELLS)}).")


def _wait_readable(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll()
