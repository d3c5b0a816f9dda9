"""Small files in the user's cache directory, which only save time: to lose one is no error."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress

# Older ones are deleted: every directory that was ever uploaded would leave one.
_KEPT_MOST = 64  # files of a folder


def cache_path(environ: dict[str, str], folder: str, name: str, suffix: str = "") -> str:
    """Return the path of the cache file for `name`, any text, in a folder of the cache directory. `environ` determines
    where that is."""
    base = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    # Paths of directories need not be Unicode.
    hashed = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:24]
    return os.path.join(base, "trainyard", folder, hashed + suffix)


def write_cache(path: str, content: bytes) -> None:
    """Write a cache file, and delete the oldest of its folder above 64."""
    folder = os.path.dirname(path)
    with suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        # Written aside and renamed: two runs in the same directory may save at once.
        fresh = f"{path}.{os.getpid()}"
        with open(fresh, "wb") as file:
            file.write(content)
        os.replace(fresh, path)
        _delete_oldest(folder)


def _delete_oldest(folder: str) -> None:
    found: Iterable[os.DirEntry[str]] = sorted(os.scandir(folder), key=lambda entry: entry.stat().st_mtime)
    for entry in list(found)[:-_KEPT_MOST]:
        os.unlink(entry.path)
