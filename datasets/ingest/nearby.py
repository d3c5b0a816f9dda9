"""Recognise a lake on this machine. `yard` then writes contents into it, with the code of the server, instead of
sending them to a server that would write them to the same disk.

The operating system decides who may: only the user who owns the lake's folder writes there. See
docs/decisions/0080-a-sync-writes-into-a-lake-on-its-machine.md.
"""

import os
from hashlib import sha256
from pathlib import Path

from datasets.ingest.worker import SinkSpec

# Part of every mark: a `yard` that writes another format finds no lake.
_FORMAT = b"trainyard-lake-1"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SINK = "datasets.storage.folder_sink:folder_sink"


def machine_mark() -> str:
    """Return a hash of the running kernel's identity, equal for all processes of a machine; "" if it has none."""
    try:
        return sha256(_FORMAT + _BOOT_ID.read_bytes()).hexdigest()
    except OSError:
        return ""


def folder_mark(folder: str) -> str:
    """Return a hash of a folder's device and inode; two processes of one machine get the same hash only for the same
    folder. Raises OSError if the folder does not exist or is not accessible."""
    status = os.stat(folder)
    return sha256(b"%s %d %d" % (_FORMAT, status.st_dev, status.st_ino)).hexdigest()


def sink_nearby(folder: str, mark: str, adopt: str) -> SinkSpec | None:
    """Return a sink into the lake in `folder`; None if the folder here is another one (by `mark`), belongs to another
    user or is not writable. `adopt`: the value of a datasets.storage.files.Sharing, how large files become
    contents."""
    try:
        owner = os.stat(folder).st_uid
        if folder_mark(folder) != mark or owner != os.geteuid() or not os.access(folder, os.W_OK | os.X_OK):
            return None
    except OSError:
        return None
    return _SINK, (folder, adopt)
