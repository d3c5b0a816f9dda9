"""Replace small files: those that a sync leaves for the next one, the manifests of code, and what `yard` keeps in its
cache. Loads little, since each `yard submit` with code loads it."""

from __future__ import annotations

import os
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def store(path: str | os.PathLike[str], pieces: Iterable[bytes]) -> None:
    """Replace a file, which only this user may read, or leave it as it is. Raises OSError if it cannot be written."""
    folder, name = os.path.split(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    # Threads of one process may replace the same file at once.
    fresh = os.path.join(folder, f".{name}.{os.urandom(4).hex()}")
    try:
        with open(os.open(fresh, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as file:
            file.writelines(pieces)
        os.replace(fresh, path)
    except OSError:
        # Such as of a full disk.
        with suppress(FileNotFoundError):
            os.unlink(fresh)
        raise
