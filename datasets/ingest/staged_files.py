"""Files that are written under other names, and get their own only once all is done that they describe."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


class StagedFiles:
    """`close` removes the files that were not published."""

    def __init__(self) -> None:
        self._complete: dict[Path, Path] = {}

    def close(self) -> None:
        """Remove the files that were written and not published."""
        for fresh in self._complete.values():
            with suppress(OSError):
                fresh.unlink()

    def write(self, path: Path, pieces: Iterable[bytes]) -> None:
        """Write what becomes the file `path`, which only this user may read. Raises OSError if it cannot be
        written."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            with open(os.open(fresh, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
                file.writelines(pieces)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        self._complete[path] = fresh

    def publish(self) -> None:
        """Give all files their names, in place of those that have them. Raises OSError if that fails."""
        for path, fresh in list(self._complete.items()):
            fresh.replace(path)
            del self._complete[path]
