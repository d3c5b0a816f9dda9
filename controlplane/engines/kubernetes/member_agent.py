"""The agent that runs in an elastic pod in addition to its program: it writes the membership file and reports the
status.

Sent as text over an exec (see membership.py), so it imports nothing of ours but pod_program.py and runs on
Python 3.9. It reads one JSON string per line, the text of the membership, and prints JSON lines: {"text": the
status file} after each change of it, and {"age": seconds since its last heartbeat}. The file names are those of
workloads/common/membership.py. It ends when its input ends.
"""

import json
import os
import select
import sys
import time
from pathlib import Path

from controlplane.engines.kubernetes.pod_program import say

MEMBERSHIP, STATUS, WAKEUP = "membership.json", "status.json", "wakeup"
# The most bytes read of a status file, because programs may write anything.
LONGEST_STATUS = 64 * 1024
# The interval between checks without a notification, and between reports of the age.
LOOK_SECONDS, AGE_SECONDS = 0.1, 1.0


def main(directory: Path) -> None:
    """Write each membership that arrives on standard input to its file, and print reports on the status file, until
    the input ends. `directory`: has both files; shared with the program of the pod."""
    wakeup, unread, reports = wakeup_pipe_of(directory), b"", Reports(directory / STATUS)
    while True:
        ready, _, _ = select.select([0, wakeup], [], [], LOOK_SECONDS)
        if wakeup in ready:
            os.read(wakeup, 4096)
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return
            *lines, unread = (unread + data).split(b"\n")
            if lines:
                deliver(directory / MEMBERSHIP, json.loads(lines[-1]))
        reports.look()


class Reports:
    """Prints changes of the status file at `path`."""

    def __init__(self, path: Path) -> None:
        self.path, self.mark, self.text, self.aged_at = path, (0, 0), "", 0.0

    def look(self) -> None:
        """Print the status file if it has changed, and every AGE_SECONDS the age of its last heartbeat, which changes
        only the file's time. New text of equal size in the same inode is noticed with the next age."""
        try:
            found = os.stat(self.path)
            mark, is_due = (found.st_ino, found.st_size), time.monotonic() - self.aged_at >= AGE_SECONDS
            if mark == self.mark and not is_due:
                return
            with open(self.path, "rb") as file:
                text = file.read(LONGEST_STATUS).decode("utf-8", "replace")
        except FileNotFoundError:
            # The program has not reported yet, or is replacing its file.
            return
        age = round(max(0.0, time.time() - found.st_mtime), 2)
        if text != self.text:
            say(text=text, age=age)
        elif is_due:
            say(age=age)
        self.mark, self.text = mark, text
        if is_due:
            self.aged_at = time.monotonic()


def wakeup_pipe_of(directory: Path) -> int:
    """Return a file descriptor of the named pipe that the program writes to after an urgent report. Any other file in
    its place is replaced."""
    path = directory / WAKEUP
    if not path.is_fifo():
        path.unlink(missing_ok=True)
        os.mkfifo(path, 0o600)
    # Opened for writing too: a pipe without a writer is always readable, so `select` would never block.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def deliver(path: Path, text: str) -> None:
    """Replace the membership file atomically, unless it has a newer membership: the connection of a former leader may
    open late."""
    try:
        known = generation_of(path.read_text())
    except (OSError, UnicodeDecodeError):
        # Anything else in its place counts as older than any membership.
        known = 0
    if generation_of(text) < known:
        return
    # By rename, and with the process id in the name, because the agent of an older connection may still be writing.
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(path)


def generation_of(text: str) -> int:
    """Return the generation number in a membership's JSON text; 0 for any other text."""
    try:
        return int(json.loads(text)["generation"])
    except (ValueError, KeyError, TypeError):
        return 0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
