"""What has changed in a directory's code since its last upload, so that only that is sent."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from typing import NamedTuple

from controlplane.cli.code.cache import cache_path, write_cache
from controlplane.cli.code.tree import Tree
from controlplane.cli.session import Session
from datasets.code_manifest import Entry, dump, line


class Change(NamedTuple):
    """The difference between a tree and its `parent`, the digest of another, or "": then `files` has all. `removed`:
    the paths that only the parent has."""

    files: list[Entry]
    parent: str = ""
    removed: tuple[str, ...] = ()


class LastUpload:
    """The manifest of the tree that was uploaded last from the directory `root` to the session's project, in a file of
    the user's cache directory."""

    def __init__(self, session: Session, root: str, environ: dict[str, str]) -> None:
        name = "\n".join((session.config.url, session.project, os.path.realpath(root)))
        self._path = cache_path(environ, "uploads", name)
        self.forget()
        with suppress(OSError), open(self._path, "rb") as file:
            self._manifest = file.read()
            self._digest = hashlib.sha256(self._manifest).hexdigest()

    def differs_from(self, tree: Tree) -> bool:
        """Return whether another tree than this one is known to have been uploaded last."""
        return self._digest not in ("", tree.digest)

    def change_to(self, tree: Tree) -> Change:
        """Return the difference between the last upload and a tree; all of the tree if that is less."""
        lines = {line(file): file for file in tree.files}
        before = set(self._manifest.decode(errors="replace").split("\0")[:-1])
        files = [file for text, file in lines.items() if text not in before]
        gone = {text.partition("\t")[2] for text in before.difference(lines)}
        removed = gone.difference(file.path for file in files)
        if len(files) + len(removed) >= len(tree.files):
            return Change(list(tree.files))
        return Change(files, self._digest, tuple(sorted(removed)))

    def remember(self, tree: Tree) -> None:
        """Note that a tree was uploaded."""
        if self._digest != tree.digest:
            write_cache(self._path, dump(tree.files))

    def forget(self) -> None:
        """Send all of the next tree."""
        self._manifest, self._digest = b"", ""
