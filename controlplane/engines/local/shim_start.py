"""Start the shims of pods. One spare shim is started in advance and waits for a pod: starting an interpreter
takes half of a pod's start time."""

import os
import select
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE

from controlplane.engines.base import EngineUnreachable
from controlplane.engines.local.records import PodDir

SHIM = Path(__file__).with_name("shim.py")
SPAWN_TIMEOUT_SECONDS = 30.0
# The spare's last argument, which it replaces by its pod's directory: the process list shows whose shim it is.
ROOM_FOR_THE_POD = "-" * 512


class ShimStarter:
    """Starts the shims of one engine's pods, the next one by a spare interpreter. Thread-safe. Without `close` the
    spare ends with this process."""

    def __init__(self) -> None:
        # Held while the spare is taken or started, so that two starts never write to the same one.
        self._lock = threading.Lock()
        self._spare: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def start(self, pod: PodDir) -> None:
        """Start a pod's shim and wait until the command runs, which takes about 10 ms; without effect if the pod has
        a shim. Raise EngineUnreachable if the shim fails."""
        if not self._is_started_by_spare(pod) and _exit_code(_begin(pod)) != 0:
            last_words = (pod.path / "shim.err").read_text(errors="replace").strip().rpartition("\n")[2]
            raise EngineUnreachable(f"The shim of {pod.name} did not start: {last_words or 'no word'}")
        self._keep_spare()

    def close(self) -> None:
        """End the spare, and start none afterwards."""
        with self._lock:
            self._is_closed, spare, self._spare = True, self._spare, None
        if spare is not None:
            _end(spare)

    def _is_started_by_spare(self, pod: PodDir) -> bool:
        """Let the spare start the pod. Return False if there is none or it was killed; the caller may then start
        another shim, because a pod starts at most once."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is None or spare.stdin is None:
            return False
        # If it was killed, its exit code says so.
        with suppress(BrokenPipeError), spare.stdin as stdin:
            stdin.write(os.fsencode(pod.path))
        return _exit_code(spare) == 0

    def _keep_spare(self) -> None:
        with self._lock:
            if self._spare is None and not self._is_closed:
                self._spare = _popen(["--spare", ROOM_FOR_THE_POD], stdin=PIPE, stderr=DEVNULL)


def _begin(pod: PodDir) -> subprocess.Popen[bytes]:
    with open(pod.path / "shim.err", "ab") as errors:
        return _popen([str(pod.path)], stdin=DEVNULL, stderr=errors.fileno())


def _popen(arguments: list[str], stdin: int, stderr: int) -> subprocess.Popen[bytes]:
    # Without a buffer, so that a pod's directory is one write.
    return subprocess.Popen(
        # Without site-packages, which the shim does not need and which would delay its start.
        [sys.executable, "-I", "-S", str(SHIM), *arguments],
        env={"PATH": os.defpath},
        bufsize=0,
        stdin=stdin,
        stdout=stderr,
        stderr=stderr,
    )


def _end(spare: subprocess.Popen[bytes]) -> None:
    spare.kill()
    spare.wait()
    if spare.stdin is not None:
        spare.stdin.close()


def _exit_code(starter: subprocess.Popen[bytes]) -> int:
    """Return the exit code of the process that starts a shim; it is killed after SPAWN_TIMEOUT_SECONDS. Waits on a
    pidfd, because `Popen.wait` with a timeout polls, which takes up to 16 ms longer."""
    pidfd = os.pidfd_open(starter.pid)
    try:
        if not is_readable(pidfd, SPAWN_TIMEOUT_SECONDS):
            starter.kill()
    finally:
        os.close(pidfd)
    return starter.wait()


def is_readable(fd: int, timeout_seconds: float) -> bool:
    """Wait until a file descriptor is readable; return False after the timeout. It uses poll, because select cannot
    take descriptors above 1,023."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_seconds * 1000))
