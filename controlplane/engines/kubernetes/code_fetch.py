"""The program of a pod's init container for code: download the tree's archive, write its files, verify its
hash.

Sent as text after pod_program.py and place_files.py (see code_delivery.py), so it imports nothing else of ours
and runs on Python 3.9. The hash is that of datasets/code_manifest.py. Configured by the environment variables
below.
"""

import hashlib
import os
import tarfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from controlplane.engines.kubernetes.pod_program import leave
from controlplane.engines.place_files import PIECE_BYTES, Folders, place_member

# Exit codes, from which code_delivery.py derives the reason of a failure.
NOT_FETCHED, MISSING, NOT_PLACED = 81, 82, 83
URL, TOKEN, TREE, TARGET = (
    "TRAINYARD_CODE_URL", "TRAINYARD_CODE_TOKEN", "TRAINYARD_CODE_TREE", "TRAINYARD_CODE_TARGET",
)  # fmt: skip
TOKEN_HEADER = "X-Trainyard-Code-Token"
# How long requests are repeated; a restarted control plane is back within this time.
RETRY_SECONDS, ANSWER_SECONDS, PAUSE_SECONDS = 300, 60, 2


def main() -> None:
    """Download and write the code, with retries for RETRY_SECONDS. On failure, exit with a code that names it and a
    last line on stderr that explains it."""
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            fetch(os.environ[URL], os.environ[TOKEN], os.environ[TREE], Path(os.environ[TARGET]))
            return
        except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
            leave(NOT_PLACED, f"{error.filename} is where a file of the job's code belongs; remove it.")
        except urllib.error.HTTPError as error:
            if error.code in (404, 410):
                leave(MISSING, "The control plane has no code for this attempt of the job any more.")
            problem = f"{os.environ[URL]} answers {error.code}"
        except (OSError, ValueError, EOFError, tarfile.TarError) as error:
            problem = f"{os.environ[URL]}: {getattr(error, 'reason', None) or error}"
        if time.monotonic() > deadline:
            leave(NOT_FETCHED, f"The job's code could not be downloaded within {RETRY_SECONDS} s. {problem}")
        time.sleep(PAUSE_SECONDS)


def fetch(url: str, token: str, tree: str, target: Path) -> None:
    """Download the code once and write it to `target`. Raise ValueError if it does not have the hash `tree` or `url`
    is not HTTP, OSError and TarError if the download or the archive fails."""
    # Checked, because urllib would also open file: and ftp: URLs.
    if not url.startswith(("http://", "https://")):
        raise ValueError("not an http address")
    request = urllib.request.Request(url, headers={TOKEN_HEADER: token})
    seen, folders = hashlib.sha256(), Folders(target)
    try:
        with (
            urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer,
            # Read as a stream, because the pod may have no room for the archive in addition to its files.
            tarfile.open(fileobj=answer, mode="r|", bufsize=PIECE_BYTES) as archive,
        ):
            for member in archive:
                counted = Counted()
                kind = place_member(archive, member, folders, counted.note)
                entry = f"{kind} {counted.size} {counted.hashed.hexdigest()}\t{member.name}\0"
                seen.update(entry.encode())
    finally:
        folders.close()
    if seen.hexdigest() != tree:
        raise ValueError(f"what arrived has the hash {seen.hexdigest()}, not {tree}")


class Counted:
    """The size in bytes and the SHA-256 of a file, updated by each piece of its content."""

    def __init__(self) -> None:
        self.size, self.hashed = 0, hashlib.sha256()

    def note(self, piece: bytes) -> None:
        self.size += len(piece)
        self.hashed.update(piece)


if __name__ == "__main__":
    main()
