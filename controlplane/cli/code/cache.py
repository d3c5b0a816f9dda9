"""Small files in the user's cache directory, which only save time: to lose one is no error."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress

from datasets.ingest.stored import store

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
    with suppress(OSError):
        store(path, (content,))
        _delete_oldest(os.path.dirname(path))


def _delete_oldest(folder: str) -> None:
    found: Iterable[os.DirEntry[str]] = sorted(os.scandir(folder), key=lambda entry: entry.stat().st_mtime)
    for entry in list(found)[:-_KEPT_MOST]:
        os.unlink(entry.path)
