"""The program of the pod that reads a claim: it prints the entries of a directory, or a file, as JSON lines.

Sent as text (see claim_reader.py), so it imports nothing of ours but pod_program.py and runs on Python 3.9.
Names are base64, because a job may give a file any name. No part of a path may be a link. A path or name that is not
there is looked for again with its \\xNN as bytes, as datasets.queries.datasets shows those that are not UTF-8.
"""

import base64
import os
import re
import stat

from controlplane.engines.kubernetes.pod_program import leave, say

# Exit codes, from which claim_reader.py derives the reason of a failure.
MISSING, TOO_LARGE, UNREADABLE = 91, 92, 93
ROOT, PATH, AFTER, LIMIT, IS_FILE = "READ_ROOT", "READ_PATH", "READ_AFTER", "READ_LIMIT", "READ_IS_FILE"
# The most bytes in a line of the log, before base64.
PIECE_BYTES = 6000
FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def main() -> None:
    """Print what the environment variables request, or exit with a code that names the failure."""
    path = base64.b64decode(os.environ[PATH])
    limit = int(os.environ[LIMIT])
    try:
        flags = 0 if os.environ[IS_FILE] else os.O_DIRECTORY
        try:
            descriptor = opened(os.environ[ROOT], path, flags)
        except FileNotFoundError:
            descriptor = opened(os.environ[ROOT], unescaped(path), flags)
        if os.environ[IS_FILE]:
            send(descriptor, limit)
        else:
            show(descriptor, base64.b64decode(os.environ[AFTER]), limit)
    except (FileNotFoundError, NotADirectoryError):
        leave(MISSING, "There is no such path in the volume.")
    except OSError as error:
        leave(UNREADABLE, "It cannot be read: %s." % (error.strerror or error))


def unescaped(path: bytes) -> bytes:
    """Return the path with each \\xNN that stands for a byte that is not UTF-8 replaced by that byte."""
    return re.sub(rb"\\x([89a-f][0-9a-f])", lambda found: bytes([int(found.group(1), 16)]), path)


def opened(root: str, path: bytes, flags: int) -> int:
    """Return a file descriptor of `path` below `root`, opened with `flags`. Exit with MISSING if a component is a
    link, "." or "..". Raise OSError if there is no such path."""
    steps = [step for step in path.split(b"/") if step]
    if any(step in (b".", b"..") for step in steps):
        leave(MISSING, "There is no such path in the volume.")
    descriptor = os.open(root, FLAGS | os.O_DIRECTORY)
    for place, step in enumerate(steps):
        found = os.stat(step, dir_fd=descriptor, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            leave(MISSING, "A step of the path is a link.")
        more = flags if place == len(steps) - 1 else os.O_DIRECTORY
        descriptor = os.open(step, FLAGS | more, dir_fd=descriptor)
    return descriptor


def show(descriptor: int, after: bytes, limit: int) -> None:
    """Print up to `limit` entries of a directory whose names follow `after`, sorted, and whether there are more."""
    there = sorted(map(os.fsencode, os.listdir(descriptor)))
    after = after if after in there else unescaped(after)
    names = [name for name in there if name > after]
    for name in names[:limit]:
        try:
            found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except FileNotFoundError:
            continue
        kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))
        kind = next((word for is_kind, word in kinds if is_kind(found.st_mode)), "other")
        size = found.st_size if kind == "file" else 0
        say(entry=[base64.b64encode(name).decode(), kind, size, found.st_mtime])
    say(done=len(names) > limit)


def send(descriptor: int, limit: int) -> None:
    """Print a file's content in pieces. Exit with MISSING if it is no regular file, TOO_LARGE if it has more than
    `limit` bytes."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        leave(MISSING, "This is not a file.")
    if found.st_size > limit:
        leave(
            TOO_LARGE, f"It has {-(-found.st_size // 1024):,} KiB; at most {limit // 1024:,} KiB are shown."
        )
    with os.fdopen(descriptor, "rb") as file:
        left = limit
        while left:
            piece = file.read(min(PIECE_BYTES, left))
            if not piece:
                break
            left -= len(piece)
            say(piece=base64.b64encode(piece).decode())
    say(done=False)


if __name__ == "__main__":
    main()
