"""Find live processes and kill them safely.

A process is identified by pid, kernel start time and boot id, because pids are reused. Zombies count as dead.
Imported by the shim, so it must import almost nothing.
"""

from __future__ import annotations

import os

SIGKILL = 9
SIGTERM = 15
# The umask of processes in a pod: the usual 022, because the control plane's 077 would surprise jobs that share
# files.
POD_UMASK = 0o022
# The variable that marks every process of a pod, so that a stop also finds those that left its session.
TOKEN_VARIABLE = "TRAINYARD_POD_TOKEN"

# The positions of fields in /proc/<pid>/stat, counted after the command's name.
_STATE, _PARENT, _SESSION, _START_TICKS = 0, 1, 3, 19
# More than the longest line of that file: 52 numbers and a name of at most 64 bytes.
_STAT_BYTES = 2048


class Process:
    """One process of the process table. `start_ticks`: the kernel's start time; with `pid` it identifies a process
    since boot."""

    __slots__ = ("parent", "pid", "session", "start_ticks")

    def __init__(self, pid: int, parent: int, session: int, start_ticks: int) -> None:
        self.pid = pid
        self.parent = parent
        self.session = session
        self.start_ticks = start_ticks


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def find(pid: int) -> Process | None:
    """Return the live process with this process id; None if there is none or it is a zombie."""
    try:
        # Without a file object, which takes as long again: a look at all processes reads hundreds of these.
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        # A program's name may contain blanks and brackets, so it ends at the last bracket.
        fields = os.read(fd, _STAT_BYTES).rpartition(b")")[2].split(None, _START_TICKS + 1)
    except ProcessLookupError:
        # The process has ended since its file was opened.
        return None
    finally:
        os.close(fd)
    if not fields or fields[_STATE] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[_PARENT]), int(fields[_SESSION]), int(fields[_START_TICKS]))


def start_ticks_of(pid: int) -> int:
    """Return the kernel's start time, in clock ticks since boot, of the process with this process id; 0 if there is
    none."""
    process = find(pid)
    return 0 if process is None else process.start_ticks


def is_alive(pid: int, start_ticks: int, boot: str) -> bool:
    """Return whether the process with this process id, kernel start time and boot id is alive. A process that reuses
    the id does not count."""
    process = find(pid)
    return process is not None and process.start_ticks == start_ticks and boot == boot_id()


def table() -> list[Process]:
    """Return all live processes that /proc shows, without zombies."""
    found = [find(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()]
    return [process for process in found if process is not None]


def descendants(root: int, processes: list[Process]) -> list[int]:
    """Return the process ids of all descendants of the process `root`, without it."""
    children: dict[int, list[int]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process.pid)
    result, queue = [], [root]
    while queue:
        for pid in children.get(queue.pop(), ()):
            result.append(pid)
            queue.append(pid)
    return result


def with_token(token: str, since_ticks: int, processes: list[Process]) -> list[int]:
    """Return the ids of processes whose environment contains a pod's token; they keep it after leaving the pod's
    session. `since_ticks`: the start time of the pod's shim; processes that started before are not the pod's."""
    needle = f"{TOKEN_VARIABLE}={token}".encode()
    # Their environments are not read: on a machine with many processes that takes most of a pod's end.
    later = [process.pid for process in processes if process.start_ticks >= since_ticks]
    return [pid for pid in later if needle in _environment(pid)]


def in_session(session: int, start_ticks: int, processes: list[Process]) -> list[int]:
    """Return the ids of the processes in the session whose leader had the process id `session` and started at
    `start_ticks`, even after the leader's end; [] if that id was reused."""
    leader = next((process for process in processes if process.pid == session), None)
    if leader is not None and leader.start_ticks != start_ticks:
        return []
    return [p.pid for p in processes if p.session == session and p.start_ticks >= start_ticks]


def kill(pids: list[int], signal_number: int = SIGKILL) -> None:
    """Send a signal to each process. Processes that are gone, or run as another user (sudo), are skipped."""
    for pid in pids:
        try:
            os.kill(pid, signal_number)
        except (ProcessLookupError, PermissionError):
            continue


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        # The process has ended, or belongs to another user and thus not to the pod.
        return []
