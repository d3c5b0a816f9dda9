"""Compute the tree of a listing: each file's hash, and the hash of all, as defined in
datasets/code_manifest.py.

Hashes are cached by size, times and inode, so that an unchanged file is not read again.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any, NamedTuple

from controlplane.cli import formats
from controlplane.cli.code.cache import cache_path, write_cache
from controlplane.cli.code.ignore import NAME
from controlplane.cli.code.listing import Listing
from controlplane.cli.errors import USAGE, CliError
from datasets.code_manifest import FILES_MOST, Entry, file_entry, link_entry, stays_inside, tree_hash

# A file that changed so shortly before it was hashed may change again within the same tick of the file
# system's clock, so its hash is not cached.
_SETTLED_NS = 2_000_000_000


class Tree(NamedTuple):
    """The code files of a directory. `digest`: the hash in hexadecimal that names the tree on the server."""

    root: str
    files: tuple[Entry, ...]
    digest: str

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files)


def read_tree(listing: Listing, environ: dict[str, str]) -> Tree:
    """Return the tree of a listing, without files deleted meanwhile. Only changed files are hashed; `environ`
    determines where the hashes are cached. Raise CliError if there are no files or too many, one cannot be read, or a
    link leads out of the directory."""
    if len(listing.paths) > FILES_MOST:
        message = f"{listing.root} has {len(listing.paths):,} files; at most {FILES_MOST:,} go with a job"
        raise CliError(
            f"{message}\n{largest_folders(dict.fromkeys(listing.paths, 1), 'files')}", USAGE, _HINT
        )
    memory = _Memory(listing.root, environ)
    found = [file for path in listing.paths if (file := _read(listing.root, path, memory)) is not None]
    memory.save()
    if not found:
        raise CliError(f"{listing.root} has no files to send", USAGE, f"see {NAME} and .gitignore")
    files = tuple(sorted(found, key=lambda file: file.path.encode()))
    return Tree(listing.root, files, tree_hash(files))


_HINT = f"name in {NAME} what the job does not need; data belongs into a dataset or a volume"


def largest_folders(sizes: dict[str, int], unit: str = "bytes") -> str:
    """Return lines with the five directories, at most two levels deep, that contain most. `sizes`: bytes by path, or
    1 by path with `unit` "files"."""
    totals: Counter[str] = Counter()
    for path, size in sizes.items():
        parts = path.split("/")[:-1][:2]
        totals.update({"/".join(parts) + "/" if parts else path: size})
    return "\n".join(f"  {_amount(size, unit):>10}  {name}" for name, size in totals.most_common(5))


def too_large(tree: Tree, message: str) -> CliError:
    """Return the CliError for a tree that the server refuses as too large: `message`, then the largest directories."""
    sizes = {file.path: file.size for file in tree.files}
    return CliError(f"{message}\n{largest_folders(sizes)}", USAGE, _HINT)


def _amount(number: int, unit: str) -> str:
    return formats.size(number) if unit == "bytes" else f"{number:,} {unit}"


def _read(root: str, path: str, memory: _Memory) -> Entry | None:
    place = f"{root}/{path}"
    try:
        found = os.lstat(place)
        if stat.S_ISREG(found.st_mode):
            sha256 = memory.find(path, found) or memory.note(path, place, found)
            return file_entry(path, found.st_size, sha256, is_executable=bool(found.st_mode & 0o100))
        if stat.S_ISLNK(found.st_mode):
            return _link(path, os.readlink(place))
    except (FileNotFoundError, NotADirectoryError):
        # Deleted, but still in git's index.
        return None
    except OSError as error:
        raise CliError(
            f"{path} cannot be read: {error.strerror}", USAGE, f"leave it out in {NAME}"
        ) from error
    print(f"yard: {path} is no file; it stays here", file=sys.stderr)
    return None


def _link(path: str, target: str) -> Entry:
    if not stays_inside(path, target):
        hint = f"leave it out in {NAME}, or mount what it leads to with -v or --pvc"
        raise CliError(f"the link {path} leads outside of the code, to {target}", USAGE, hint)
    return link_entry(path, target)


class _Memory:
    """The cached hashes of one directory's files, in a file of the user's cache directory."""

    def __init__(self, root: str, environ: dict[str, str]) -> None:
        self._path = cache_path(environ, "code", os.path.realpath(root), ".json")
        self._known: dict[str, list[Any]] = {}
        self._now: dict[str, list[Any]] = {}
        self._is_changed = False
        # Without a readable index, this run only hashes all files again.
        with suppress(OSError, ValueError), open(self._path, encoding="utf-8") as file:
            known = json.load(file)
            self._known = known if isinstance(known, dict) else {}

    def find(self, path: str, found: os.stat_result) -> str | None:
        """Return the cached hash of a file that has not changed since, else None. `found`: its present status."""
        known = self._known.get(path)
        if not known or known[:4] != [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]:
            return None
        self._now[path] = known
        return str(known[4])

    def note(self, path: str, place: str, found: os.stat_result) -> str:
        """Hash the file at `place` and return the hash. It is cached under `path`, unless the file changed so
        recently that it may change again within one timestamp. `found`: its status before it was read."""
        with open(place, "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        self._is_changed = True
        if max(found.st_mtime_ns, found.st_ctime_ns) < time.time_ns() - _SETTLED_NS:
            identity = [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
            self._now[path] = [*identity, sha256]
        return sha256

    def save(self) -> None:
        """Write the cache if it changed; errors are ignored."""
        if not self._is_changed and len(self._now) == len(self._known):
            return
        write_cache(self._path, json.dumps(self._now).encode())
