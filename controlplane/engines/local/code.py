"""A job's code as files of its pods' working directories."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from controlplane.engines.base import CODE_MISSING, CODE_NOT_PLACED, CodeSource, EngineRefused
from datasets.code_manifest import EXECUTABLE, LINK, Entry
from datasets.code_store import FOLDER, ContentCorrupt, ProjectCode

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def place_code(code: CodeSource, state_dir: Path, target: Path) -> None:
    """Write the tree's files into a directory. What an earlier attempt changed of them is written anew, what it made
    beside them stays. Never writes through a link that it left. Raises EngineRefused(CODE_MISSING, CODE_NOT_PLACED)."""
    store = ProjectCode(state_dir / FOLDER, code.project_id)
    try:
        entries = store.entries(code.tree)
    except FileNotFoundError as error:
        raise EngineRefused(
            CODE_MISSING, "The job's code is kept no more; submit it again from its directory."
        ) from error
    folders = _Folders(target)
    try:
        for entry in entries:
            _place(entry, store.pieces(entry), folders)
    except ContentCorrupt as error:
        store.remove([code.tree])
        raise EngineRefused(CODE_MISSING, str(error)) from error
    except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        detail = f"{error.filename} is in the place of a file of the job's code; remove it from the working directory."
        raise EngineRefused(CODE_NOT_PLACED, detail) from error
    finally:
        folders.close()


class _Folders:
    """Opens the directories of a tree, one at a time and each step below the last: no link is followed."""

    def __init__(self, root: Path) -> None:
        self._root, self._path, self._fd = root, "", os.open(root, _FOLDER_FLAGS)

    def open(self, path: str) -> int:
        """Return a descriptor of this directory, made where it is missing; valid until the next call."""
        if path != self._path:
            self.close()
            self._fd, self._path = os.open(self._root, _FOLDER_FLAGS), path
            for name in path.split("/") if path else ():
                self._step(name)
        return self._fd

    def close(self) -> None:
        os.close(self._fd)

    def _step(self, name: str) -> None:
        try:
            below = os.open(name, _FOLDER_FLAGS, dir_fd=self._fd)
        except FileNotFoundError:
            os.mkdir(name, 0o755, dir_fd=self._fd)
            below = os.open(name, _FOLDER_FLAGS, dir_fd=self._fd)
        self._fd, above = below, self._fd
        os.close(above)


def _place(entry: Entry, pieces: Iterator[bytes], folders: _Folders) -> None:
    parent, _, name = entry.path.rpartition("/")
    folder = folders.open(parent)
    try:
        _write(entry, name, folder, pieces)
    except FileExistsError:
        os.unlink(name, dir_fd=folder)
        _write(entry, name, folder, pieces)


def _write(entry: Entry, name: str, folder: int, pieces: Iterator[bytes]) -> None:
    """Raises FileExistsError before anything is taken from `pieces`."""
    if entry.kind == LINK:
        if _is_there(name, folder):
            raise FileExistsError(name)
        os.symlink(b"".join(pieces).decode(), name, dir_fd=folder)
        return
    fd = os.open(name, _FILE_FLAGS, 0o755 if entry.kind == EXECUTABLE else 0o644, dir_fd=folder)
    with open(fd, "wb") as file:
        file.writelines(pieces)


def _is_there(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
