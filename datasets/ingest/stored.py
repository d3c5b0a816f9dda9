"""Files that a sync leaves for the next one."""

import os
from collections.abc import Iterable
from pathlib import Path


def store(path: Path, pieces: Iterable[bytes]) -> None:
    """Replace a file, which only this user may read, or leave it as it is. Raises OSError if it cannot be written."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with open(os.open(fresh, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
            file.writelines(pieces)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
