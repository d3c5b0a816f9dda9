"""Replace small files: those that a sync leaves for the next one, and the manifests of code."""

import os
from collections.abc import Iterable
from pathlib import Path


def store(path: Path, pieces: Iterable[bytes]) -> None:
    """Replace a file, which only this user may read, or leave it as it is. Raises OSError if it cannot be written."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Threads of one process may replace the same file at once.
    fresh = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with open(os.open(fresh, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as file:
            file.writelines(pieces)
        fresh.replace(path)
    except OSError:
        # Such as of a full disk.
        fresh.unlink(missing_ok=True)
        raise
