"""What runs in an elastic pod beside its program: it replaces the membership file, and reports the program's status.

Sent as text over an exec (see membership.py), so it imports nothing of ours, and runs on Python 3.9. It reads a JSON
string per line, the membership's text, and prints JSON lines: {"text": the status file} after each change of it, and
{"age": seconds since its last beat}. The names of the files are those of workloads/common/membership.py. It ends with
its input.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path

MEMBERSHIP, STATUS, DOORBELL = "membership.json", "status.json", "doorbell"
# Programs write what they like.
LONGEST_STATUS = 64 * 1024
# Between two looks without a ring of the doorbell, and between two ages.
LOOK_SECONDS, AGE_SECONDS = 0.1, 1.0


def main(directory: Path) -> None:
    """Serve until the input ends."""
    bell, unread, seen, aged_at = doorbell_of(directory), b"", (0, 0), 0.0
    while True:
        ready, _, _ = select.select([0, bell], [], [], LOOK_SECONDS)
        if bell in ready:
            os.read(bell, 4096)
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return
            *lines, unread = (unread + data).split(b"\n")
            if lines:
                replace(directory / MEMBERSHIP, json.loads(lines[-1]))
        try:
            found = os.stat(directory / STATUS)
        except FileNotFoundError:
            continue
        age = round(max(0.0, time.time() - found.st_mtime), 2)
        # A beat changes the time of the file alone.
        if (found.st_ino, found.st_size) != seen:
            seen = found.st_ino, found.st_size
            say(text=text_of(directory / STATUS), age=age)
        elif time.monotonic() - aged_at >= AGE_SECONDS:
            aged_at = time.monotonic()
            say(age=age)


def doorbell_of(directory: Path) -> int:
    """Return the doorbell, a named pipe that the program writes to after an urgent report; replace what is there."""
    path = directory / DOORBELL
    if not path.is_fifo():
        path.unlink(missing_ok=True)
        os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def replace(path: Path, text: str) -> None:
    """Replace a file so that its readers see the old text or the new."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(path)


def text_of(path: Path) -> str:
    """Return the first part of a file."""
    with open(path, "rb") as file:
        return file.read(LONGEST_STATUS).decode("utf-8", "replace")


def say(**fields: object) -> None:
    """Print one line."""
    sys.stdout.write(f"{json.dumps(fields)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
