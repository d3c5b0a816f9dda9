"""The supervisor of one pod: `python -I -S shim.py POD_DIR`. It outlives the control plane.

`shim.py --spare ROOM` waits until its standard input names the pod, and ends without one when that is closed.

It runs the command that POD_DIR/launch describes in a session of its own, writes its output to the log and
its end to POD_DIR/exit. At most one shim lives per pod (a file lock), and a pod is started at most once
(the start record, which is on the disk before the command runs). Orphaned descendants become the shim's
children, so that none escapes; when the shim itself is killed, the kernel kills the command.

This file is started once per pod: it imports only what starts within milliseconds (`signal` and `json` are
not).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)).rsplit(os.sep, 3)[0])

from controlplane.engines.local import mounts, processes
from controlplane.engines.local.output import Output
from controlplane.logstore.writer import STDERR, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
F_SETPIPE_SZ, PIPE_BYTES = 1031, 1 << 18
SIGPIPE, SIGXFSZ = 13, 25
DRAIN_SECONDS = 5.0
# A line without its end, such as a prompt, is written after one tick without further output.
TICK_SECONDS = 1.0
# No descriptor signals the end of a process group, so it is polled.
GROUP_TICK_SECONDS = 0.02
# Killed processes take a moment to disappear from the process table.
KILL_PAUSE_SECONDS = 0.005
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Two seconds together: the engine holds the lock only for moments, another shim until it ends.
LOCK_TRIES, LOCK_PAUSE_SECONDS = 40, 0.05
EXIT_LOCKED = 3
NOT_FOUND, NOT_EXECUTABLE = 127, 126
# The position of arg_end in /proc/self/stat, counted after the command's name.
_ARGUMENTS_END = 46

libc = ctypes.CDLL(None, use_errno=True)


class Launch:
    """What a shim runs, read from the file that the engine wrote: NUL-separated KEY=VALUE items, `argv` and `env`
    once per element."""

    def __init__(self, path: str) -> None:
        self.argv: list[str] = []
        self.env: dict[str, str] = {}
        self.mounts: mounts.Mounts = []
        self.values: dict[str, str] = {}
        with open(path, "rb") as file:
            for item in os.fsdecode(file.read()).split("\0")[:-1]:
                key, _, value = item.partition("=")
                if key == "argv":
                    self.argv.append(value)
                elif key == "env":
                    name, _, setting = value.partition("=")
                    self.env[name] = setting
                elif key in ("bind_to", "bind_read_only"):
                    self.mounts.append((self.values["bind_from"], value, key == "bind_read_only"))
                else:
                    self.values[key] = value


class Child:
    """The process of a pod's command. It waits for `go`, so that the start record is written before the command runs.
    `run` becomes the command and does not return. `scratch`: see `mounts.bind`."""

    def __init__(self, launch: Launch, scratch: str, run: Callable[[Launch], None]) -> None:
        self._launch, self._scratch, self._run = launch, scratch, run
        self.out, out_write = _pipe()
        self.err, err_write = _pipe()
        go_read, self._go = os.pipe()
        self._failure, failure_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(go_read, failure_write, out_write, err_write)
        for fd in (out_write, err_write, go_read, failure_write):
            os.close(fd)
        self.pidfd = os.pidfd_open(self.pid)

    def go(self) -> tuple[str, int] | None:
        """Let the process execute the command. Return None, or the step that failed (`mount`, `chdir` or `exec`) and
        its errno."""
        os.write(self._go, b"g")
        os.close(self._go)
        what, _, number = os.read(self._failure, 64).decode().partition(" ")
        os.close(self._failure)
        return (what, int(number)) if what else None

    def _become(self, go: int, failure: int, out: int, err: int) -> None:
        """Become the command in the forked process; never returns."""
        what = "exec"
        try:
            os.setsid()
            # If the shim died before this call, the read below finds the end of the pipe.
            libc.prctl(PR_SET_PDEATHSIG, processes.SIGKILL)
            # Otherwise the child's own copy would keep the pipe open when the shim dies.
            os.close(self._go)
            if os.read(go, 1) != b"g":
                os._exit(NOT_EXECUTABLE)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.umask(processes.POD_UMASK)
            what = "mount"
            mounts.bind(self._launch.mounts, self._launch.values["work"], self._scratch)
            what = "chdir"
            os.chdir(self._launch.values["work"])
            what = "exec"
            self._run(self._launch)
        except OSError as error:
            os.write(failure, f"{what} {error.errno}".encode())
            os._exit(NOT_FOUND)


def execute(launch: Launch) -> None:
    """Become the command by exec. Raise OSError if it cannot be executed."""
    # Python ignores these two signals, and an ignored signal survives exec.
    for number in (SIGPIPE, SIGXFSZ):
        libc.signal(number, None)
    os.execvpe(launch.argv[0], launch.argv, launch.env)


class Shim:
    """Supervises one pod from its start record to its exit record."""

    def __init__(self, pod_dir: str, run: Callable[[Launch], None]) -> None:
        self._dir, self._run = pod_dir, run
        self._launch = Launch(f"{pod_dir}/launch")
        self._output = Output(self._launch.values["log"], int(self._launch.values["log_most_bytes"]))
        self._control = _open_fifo(f"{pod_dir}/control")
        self._poll = select.poll()
        self._streams: dict[int, bytes] = {}
        self._kill_at: float | None = None
        self._status: int | None = None
        self._oom_kills = _oom_kills()
        self._ticks = processes.start_ticks_of(os.getpid())
        self._cut = ""

    def run(self, started: int) -> None:
        """Start the command, supervise the pod until its end, and record the end. `started`: the write end of a pipe,
        written to once the command runs. A pod that was stopped before is only recorded as ended."""
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
        if os.path.exists(f"{self._dir}/stop"):
            self._finish("stopped", None)
            return
        child = Child(self._launch, f"{self._dir}/view", self._run)
        self._record_start(child)
        failure = child.go()
        os.write(started, b"1")
        os.close(started)
        self._notify()
        self._supervise(child)
        self._end_all()
        self._drain()
        self._finish(*self._outcome(failure))

    def _record_start(self, child: Child) -> None:
        ticks = processes.start_ticks_of(child.pid)
        _write_record(
            f"{self._dir}/start",
            f'{{"shim_pid":{os.getpid()},"shim_ticks":{self._ticks},"pid":{child.pid},"ticks":{ticks},'
            f'"boot_id":"{processes.boot_id()}","started_ms":{_now_ms()}}}',
        )

    def _supervise(self, child: Child) -> None:
        """Store output, handle stops and collect ended processes until the command has ended. After a stop, the
        command's whole process group gets the grace period: a shell dies of SIGTERM at once, but its training program
        must save a checkpoint."""
        self._streams = {child.out: STDOUT, child.err: STDERR}
        for fd in (child.out, child.err, child.pidfd, self._control):
            self._poll.register(fd, select.POLLIN)
        while self._status is None or self._is_group_ending(child):
            events = self._poll.poll(self._timeout_ms())
            for fd, _ in events:
                if fd in self._streams:
                    self._read_output(fd)
                elif fd == self._control:
                    self._read_stop(child)
                else:
                    # The pidfd is readable: the command has ended.
                    self._poll.unregister(fd)
            if not events and self._output.has_partial:
                self._output.flush()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_all()
            self._reap(child)

    def _is_group_ending(self, child: Child) -> bool:
        if self._kill_at is None or time.monotonic() >= self._kill_at:
            return False
        return _signal_group(child.pid, 0)

    def _timeout_ms(self) -> float:
        wait = TICK_SECONDS if self._status is None else GROUP_TICK_SECONDS
        if self._kill_at is not None:
            wait = min(wait, max(0.01, self._kill_at - time.monotonic()))
        return wait * 1000

    def _read_output(self, fd: int) -> None:
        data = os.read(fd, PIPE_BYTES)
        if data:
            self._output.store(self._streams[fd], data)
        else:
            self._close_stream(fd)

    def _close_stream(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._streams[fd]
        os.close(fd)

    def _read_stop(self, child: Child) -> None:
        """Handle a stop request: SIGTERM to the command's process group now, SIGKILL to everything after the grace
        period. The period is in a file that was written before the pipe became readable, so that no request is
        missed."""
        os.read(self._control, 4096)
        with open(f"{self._dir}/stop") as file:
            grace_seconds = float(file.read())
        kill_at = time.monotonic() + grace_seconds
        # A later stop may shorten the grace, never lengthen it.
        self._kill_at = kill_at if self._kill_at is None else min(kill_at, self._kill_at)
        _signal_group(child.pid, processes.SIGTERM)

    def _reap(self, child: Child) -> None:
        """Collect ended processes, also orphans of the pod, which become children of this process."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == child.pid:
                self._status = status

    def _kill_all(self) -> bool:
        """Kill all live processes of the pod. Return whether there were any; one forked meanwhile may survive."""
        found = processes.table()
        below = processes.descendants(os.getpid(), found)
        processes.kill(below)
        # Also by token, for processes that left the process tree by a double fork, and for shells, which were never
        # in it.
        others = processes.with_token(self._launch.env[processes.TOKEN_VARIABLE], self._ticks, found)
        processes.kill(others)
        return bool(below or others)

    def _end_all(self) -> None:
        """Kill all processes that remain after the command, including daemons. Returns when none is left."""
        while True:
            was_any = self._kill_all()
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                # A killed process may have forked just before; the next round finds its child.
                if not was_any:
                    return
            time.sleep(KILL_PAUSE_SECONDS)

    def _drain(self) -> None:
        """Read the rest of the output, for at most DRAIN_SECONDS: a process outside the pod may hold the pipes open."""
        deadline = time.monotonic() + DRAIN_SECONDS
        # A stop changes nothing now, and its message would end every wait at once.
        self._poll.unregister(self._control)
        while self._streams and time.monotonic() < deadline:
            for fd, _ in self._poll.poll(100):
                if fd in self._streams:
                    self._read_output(fd)
                else:
                    self._poll.unregister(fd)
        if self._streams:
            self._cut = "the output was held open by another process and was cut"

    def _outcome(self, failure: tuple[str, int] | None) -> tuple[str, int | None, int, int]:
        """Return how the command ended: (reason, exit code, signal, errno), with 0 for no signal or errno. `failure`:
        the step that failed before the command ran and its errno; None if the command ran."""
        if failure is not None:
            what, number = failure
            if what == "mount":
                return "container_not_created", NOT_EXECUTABLE, 0, number
            if what == "chdir":
                return "working_dir_missing", NOT_EXECUTABLE, 0, number
            is_missing = number == errno.ENOENT
            reason = "command_not_found" if is_missing else "command_not_executable"
            return reason, NOT_FOUND if is_missing else NOT_EXECUTABLE, 0, number
        assert self._status is not None
        code = os.waitstatus_to_exitcode(self._status)
        if self._kill_at is not None:
            return "stopped", code if code >= 0 else 128 - code, max(0, -code), 0
        if code >= 0:
            return ("exit_code" if code else "completed"), code, 0, 0
        # The kernel does not report which process it killed for lack of memory, only the total number.
        is_oom = -code == processes.SIGKILL and _oom_kills() > self._oom_kills
        return ("out_of_memory" if is_oom else "killed"), 128 - code, -code, 0

    def _finish(self, reason: str, exit_code: int | None, signal_number: int = 0, number: int = 0) -> None:
        # Before the writes, which may have to wait for free space.
        finished_ms = _now_ms()
        # The log before the record: once the pod is reported as ended, its log must be complete.
        _once_there_is_room(lambda: self._output.end(f"{reason} {exit_code}", self._cut))
        code = "null" if exit_code is None else str(exit_code)
        record = (
            f'{{"reason":"{reason}","exit_code":{code},"signal":{signal_number},"errno":{number},'
            f'"finished_ms":{finished_ms}}}'
        )
        _once_there_is_room(lambda: _write_record(f"{self._dir}/exit", record))
        self._notify()

    def _notify(self) -> None:
        """Wake an engine that waits for a change; without effect if none waits."""
        try:
            fd = os.open(self._launch.values["wakeup"], os.O_WRONLY | os.O_NONBLOCK)
            os.write(fd, b"!")
            os.close(fd)
        except OSError:
            # No engine is listening, or the buffer is full; engines also poll.
            pass


def main(pod_dir: str) -> int:
    """Start the shim in a forked process, detached from the control plane, and wait until the command runs or the pod
    has ended. Return 0; EXIT_LOCKED if neither happened, because another process holds the pod's lock or the shim
    failed."""
    started, started_write = os.pipe()
    os.setsid()
    if os.fork() != 0:
        os.close(started_write)
        os.read(started, 1)
        return 0 if any(os.path.exists(f"{pod_dir}/{name}") for name in ("start", "exit")) else EXIT_LOCKED
    os.close(started)
    supervise(pod_dir, started_write, execute)
    return 0


def supervise(pod_dir: str, started: int, run: Callable[[Launch], None]) -> None:
    """Run the pod as its shim until it has ended. Does nothing if the pod has or had another shim. `started`: the
    write end of a pipe, written to once the command runs. `run`: see Child."""
    _leave_standard_streams(pod_dir)
    if _lock(f"{pod_dir}/lock") and not _has_record(pod_dir):
        Shim(pod_dir, run).run(started)


def _has_record(pod_dir: str) -> bool:
    return os.path.exists(f"{pod_dir}/start") or os.path.exists(f"{pod_dir}/exit")


def _lock(path: str) -> bool:
    """Take the pod's lock for the life of this process. Return False if another shim has it, or the pod has started.
    The engine holds it only for moments, so a short wait decides."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if _has_record(os.path.dirname(path)):
                return False
            time.sleep(LOCK_PAUSE_SECONDS)
    return False


def _leave_standard_streams(pod_dir: str) -> None:
    """Close the inherited standard streams; errors of the shim are written to POD_DIR/shim.err."""
    null = os.open(os.devnull, os.O_RDWR)
    errors = os.open(f"{pod_dir}/shim.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, null), (1, null), (2, errors)):
        os.dup2(source, target)
    # The shim outlives its caller, and must not keep the file system of its directory in use.
    os.chdir("/")


def _pipe() -> tuple[int, int]:
    read, write = os.pipe()
    try:
        fcntl.fcntl(read, F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        # The user's limit for pipe buffers is reached; the default of 64 KiB is sufficient.
        pass
    return read, write


def _open_fifo(path: str) -> int:
    if not os.path.exists(path):
        os.mkfifo(path, 0o600)
    # Opened for reading and writing, because a pipe without a writer would always be readable.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def _write_record(path: str, text: str) -> None:
    """Write a file atomically and flush it to the disk. Raise OSError if the disk is full."""
    fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        # On a disk that is filling up, a write may succeed in part without an error.
        if os.write(fd, text.encode()) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(f"{path}.new", path)


def _once_there_is_room(write: Callable[[], None]) -> None:
    """Repeat the write every second while the disk is full; until it succeeds the pod counts as running."""
    while True:
        try:
            return write()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
        time.sleep(TICK_SECONDS)


def _signal_group(group: int, signal_number: int) -> bool:
    """Send a signal to a process group, 0 only to test it; return whether it exists."""
    try:
        os.killpg(group, signal_number)
    except ProcessLookupError:
        return False
    return True


def _oom_kills() -> int:
    """Return the kernel's number of OOM kills since boot; 0 if it does not report them."""
    with open("/proc/vmstat", "rb") as file:
        _, found, rest = file.read().partition(b"oom_kill ")
    return int(rest.split(b"\n", 1)[0]) if found else 0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _await_pod_dir() -> str:
    """Return the pod directory that the engine writes to standard input; "" if the engine closes it instead."""
    pod_dir = os.read(0, 4096)
    if pod_dir:
        _leave_standard_streams(os.fsdecode(pod_dir))
        _show_in_process_list(pod_dir, len(sys.argv[2]))
    return os.fsdecode(pod_dir)


def _show_in_process_list(pod_dir: bytes, room: int) -> None:
    """Make the process list show the pod's directory as the last argument of this process. `room`: that argument's
    length in bytes."""
    with open("/proc/self/stat", "rb") as file:
        end = int(file.read().rpartition(b")")[2].split()[_ARGUMENTS_END])
    ctypes.memmove(end - room - 1, pod_dir[:room].ljust(room, b"\0"), room)


if __name__ == "__main__":
    wanted = _await_pod_dir() if sys.argv[1] == "--spare" else sys.argv[1]
    # Without the interpreter's clean-up, because nothing has to be flushed.
    os._exit(main(wanted) if wanted else 0)
