"""What runs in a pod to send a directory of a job's output: a tar on stdout.

Sent as text over an exec (see output_reader.py), so it imports nothing of ours, and runs on Python 3.9. The first line
on stderr is {"files": , "bytes": } of what follows; when it fails, the last one is the reason. No step of the
directory's path may be a link.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import tarfile
from collections.abc import Iterator
from typing import IO, NoReturn

# Exit codes.
MISSING, LINKED, UNREADABLE = 81, 82, 83
CHUNK_BYTES = 1 << 20
NAMED = 5


def main(root: str, path: str) -> None:
    """Send, or exit with a code that names the failure."""
    try:
        top = directory_of(root, path)
        found = list(entries_of(top))
        sizes = [status.st_size for _, status in found if stat.S_ISREG(status.st_mode)]
        sys.stderr.write(f"{json.dumps({'files': len(found), 'bytes': sum(sizes)})}\n")
        # The totals go ahead of the data, which another stream carries.
        sys.stderr.flush()
        send(top, found, sys.stdout.buffer)
    except OSError as error:
        leave(UNREADABLE, f"{path} cannot be read: {error.strerror or error}.")


def directory_of(root: str, path: str) -> str:
    """Return the directory below the root."""
    place = root
    for step in path.split("/"):
        place = os.path.join(place, step)
        if os.path.islink(place):
            leave(LINKED, f"{step} of {path} is a link; write a directory.")
    if not os.path.isdir(place):
        names = sorted(os.listdir(root))
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        there = (", ".join(map(ascii, names[:NAMED])) + more) or "nothing"
        leave(MISSING, f"The job left no directory {path}. Its working directory has {there}.")
    return place


def entries_of(top: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what is no directory, with its path below the top."""
    for folder, folders, files in os.walk(top, onerror=fail):
        folders.sort()
        # `os.walk` lists a link to a directory among the directories, and does not follow it.
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in sorted(files + links):
            place = os.path.join(folder, name)
            yield os.path.relpath(place, top), os.lstat(place)


def fail(error: OSError) -> NoReturn:
    """Raise what os.walk would pass over."""
    raise error


def send(top: str, found: list[tuple[str, os.stat_result]], out: IO[bytes]) -> None:
    """Write the tar. What is neither file nor link is in it as a pipe: the receiver names and leaves it out."""
    with tarfile.open(
        fileobj=out,
        mode="w|",
        format=tarfile.GNU_FORMAT,
        encoding="utf-8",
        errors="surrogateescape",
        bufsize=CHUNK_BYTES,
    ) as archive:
        for path, status in found:
            info = tarfile.TarInfo(path)
            info.mode = status.st_mode & 0o777
            if stat.S_ISLNK(status.st_mode):
                info.type, info.linkname = tarfile.SYMTYPE, os.readlink(os.path.join(top, path))
                archive.addfile(info)
            elif stat.S_ISREG(status.st_mode):
                info.size = status.st_size
                with open(os.path.join(top, path), "rb") as file:
                    archive.addfile(info, file)
            else:
                info.type = tarfile.FIFOTYPE
                archive.addfile(info)
    out.flush()


def leave(code: int, words: str) -> NoReturn:
    """End with this exit code and reason."""
    sys.stderr.write(f"{words}\n")
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
