"""Pause the programs that write to a volume while a snapshot is taken.

A program that participates creates VOLUME/.trainyard/listening/<job id>.<rank>. For a snapshot the control
plane writes VOLUME/.trainyard/quiesce with the snapshot's id; the program finishes and flushes its writes,
writes that id into its file in `listening`, and writes nothing more until `quiesce` is removed. The wait is
limited; without an answer, the snapshot is marked as crash-consistent.

Jobs can replace these files by links: none is followed, and nothing is written outside of the volume.

On clusters whose volumes only pods can access, this module runs in a pod (datasets/pod_quiesce.py), on Python
3.9 or later.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from datasets.storage.trees import OWN

WAIT_SECONDS = 10.0
PAUSE_SECONDS = 0.05
# How long programs stay paused in a pod whose caller does not answer: its storage has no snapshot, or it was killed.
LONGEST_PAUSE_SECONDS = 60.0
PAUSED, NOT = "paused", "not"
LISTENING, REQUEST = b"listening", b"quiesce"
# Enough for a snapshot's id; a job may have written anything into its answer.
_MOST_BYTES = 256
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Pause:
    """The answers of the running jobs to the request to pause; true if all have paused. Check `has_lasted` after the
    copy, because a program that cannot wait any longer withdraws its answer."""

    def __init__(self, own: int = -1, token: str = "", listeners: Collection[bytes] | None = None) -> None:
        self._own, self._token, self._listeners = own, token, listeners

    def __bool__(self) -> bool:
        return self._listeners is not None

    def has_lasted(self) -> bool:
        """Return whether all answers still exist. Call it only inside the block of `quiesced`."""
        try:
            return all(_answer(self._own, name) == self._token for name in self._listeners or ()) and bool(
                self
            )
        except OSError:
            return False


@contextmanager
def quiesced(
    volume: Path,
    token: str,
    jobs: Collection[str],
    wait_seconds: float = WAIT_SECONDS,
    pods: Collection[str] | None = None,
) -> Iterator[Pause]:
    """Context manager that pauses these running jobs; they continue after the block. The yielded Pause is true if
    all have paused within `wait_seconds`. `token`: identifies the snapshot. `pods`: "<job>.<rank>" of running pods,
    so that files of killed ones are ignored; None: all files count."""
    try:
        own = _open_own(volume)
    except OSError:
        # Without our directory no program of the volume takes part.
        yield Pause()
        return
    try:
        # There is one request at a time: a second one would end the first one's pause during its copy. A job that holds
        # the lock gets a snapshot without a pause.
        if not _lock(own, wait_seconds):
            yield Pause()
            return
        try:
            yield Pause(own, token, _ask(own, token, jobs, pods, wait_seconds))
        finally:
            with suppress(OSError):
                os.unlink(REQUEST, dir_fd=own)
    finally:
        os.close(own)


def _open_own(volume: Path) -> int:
    top = os.open(volume, _DIRECTORY)
    try:
        return os.open(OWN, _DIRECTORY, dir_fd=top)
    finally:
        os.close(top)


def _lock(own: int, wait_seconds: float) -> bool:
    """Lock the directory with the descriptor `own` until it is closed. Return False if another process still holds it
    after `wait_seconds`, or if it cannot be locked."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        except OSError:
            return False
        time.sleep(PAUSE_SECONDS)


def _ask(
    own: int, token: str, jobs: Collection[str], pods: Collection[str] | None, wait_seconds: float
) -> list[bytes] | None:
    """Ask the programs of `jobs` to pause; return their files in `listening` once all have paused, None if one has
    not within `wait_seconds` or does not participate. `own`: descriptor of the directory for the requests; `token`,
    `pods`: as in `quiesced`."""
    deadline = time.monotonic() + wait_seconds
    try:
        found = _listeners(own, jobs)
        listeners = [name for name in found if pods is None or os.fsdecode(name) in pods]
        if {name.partition(b".")[0].decode() for name in listeners} != set(jobs):
            return None
        _write(own, token)
        while any(_answer(own, name) != token for name in listeners):
            if time.monotonic() > deadline:
                return None
            time.sleep(PAUSE_SECONDS)
    except (OSError, UnicodeDecodeError):
        # If the volume cannot be read or written now, the snapshot is crash-consistent.
        return None
    return listeners


def _listeners(own: int, jobs: Collection[str]) -> list[bytes]:
    directory = os.open(LISTENING, _DIRECTORY, dir_fd=own)
    try:
        names = [os.fsencode(name) for name in os.listdir(directory)]
    finally:
        os.close(directory)
    return [name for name in names if os.fsdecode(name).partition(".")[0] in jobs]


def _write(own: int, token: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(REQUEST, dir_fd=own)
    # A new file, because a job may have put a link under this name.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(REQUEST, flags, 0o644, dir_fd=own)
    try:
        os.write(file, token.encode())
    finally:
        os.close(file)


def _answer(own: int, name: bytes) -> str:
    directory = os.open(LISTENING, _DIRECTORY, dir_fd=own)
    try:
        # A job writes this file, and may have put a link or a named pipe in its place.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    finally:
        os.close(directory)
    try:
        return os.read(file, _MOST_BYTES).decode(errors="replace").strip()
    finally:
        os.close(file)


def main(volume: str, token: str, jobs: str, pods: str) -> None:
    """Print whether all programs have paused (PAUSED or NOT) and, after a line of input, whether the pause has
    lasted; NOT after LONGEST_PAUSE_SECONDS without one. The arguments are as in `quiesced`, `jobs` and `pods` separated
    by commas."""
    with quiesced(Path(volume), token, jobs.split(","), pods=frozenset(pods.split(","))) as pause:
        _say(bool(pause))
        # The caller writes the line after its copy; until then the programs stay paused.
        is_answered = bool(select.select([sys.stdin], [], [], LONGEST_PAUSE_SECONDS)[0])
        _say(is_answered and pause.has_lasted())


def _say(has_paused: bool) -> None:
    sys.stdout.write(f"{PAUSED if has_paused else NOT}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
