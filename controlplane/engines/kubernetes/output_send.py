"""The program that runs in a pod to send a directory of a job's output as a tar to stdout.

Sent as text over an exec (see output_reader.py), so it imports nothing of ours but pod_program.py and runs on
Python 3.9. The first line on stderr is {"files": N, "bytes": N}, the totals; after a failure, the last line is
the reason. No part of the directory's path may be a link.
"""

import json
import os
import stat
import sys
import tarfile
from collections.abc import Iterator
from typing import IO, NoReturn

from controlplane.engines.kubernetes.pod_program import leave

# Exit codes, from which output_reader.py derives the reason of a failure.
MISSING, LINKED, UNREADABLE = 81, 82, 83
CHUNK_BYTES = 1 << 20
NAMED = 5


def main(root: str, path: str) -> None:
    """Send the directory `path` below `root`, or exit with a code that names the failure."""
    try:
        top = directory_of(root, path)
        found = list(entries_of(top))
        sizes = [status.st_size for _, status in found if stat.S_ISREG(status.st_mode)]
        sys.stderr.write(f"{json.dumps({'files': len(found), 'bytes': sum(sizes)})}\n")
        # The totals are sent first; the data is on stdout.
        sys.stderr.flush()
        send(top, found, sys.stdout.buffer)
    except OSError as error:
        leave(UNREADABLE, f"{path} cannot be read: {error.strerror or error}.")


def directory_of(root: str, path: str) -> str:
    """Return the full path of the directory. Exit with LINKED if a component is a link, with MISSING if there is no
    such directory."""
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
    """Yield (path relative to `top`, status) of everything below it except directories, in order. Raise OSError for a
    directory that cannot be read."""
    for folder, folders, files in os.walk(top, onerror=fail):
        folders.sort()
        # `os.walk` lists a link to a directory among the directories, and does not follow it.
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in sorted(files + links):
            place = os.path.join(folder, name)
            yield os.path.relpath(place, top), os.lstat(place)


def fail(error: OSError) -> NoReturn:
    """Raise an error that os.walk would ignore."""
    raise error


def send(top: str, found: list[tuple[str, os.stat_result]], out: IO[bytes]) -> None:
    """Write the entries as a tar. One that is neither file nor link is written as a pipe, which the receiver reports
    and skips."""
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


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
