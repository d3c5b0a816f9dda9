"""Write the files of a code tree into a directory without following any link in it.

Imports only the standard library: on a Kubernetes cluster this text runs in a container of the pod
(engines/kubernetes/code_delivery.py), on the image's own Python from 3.9 on.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

FILE, EXECUTABLE, LINK = "f", "x", "l"
# How much of a file is read at once, so that large files take little memory.
PIECE_BYTES = 1 << 20
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class Folders:
    """Opens directories below `root`, component by component, so that no symbolic link is followed. Keeps one open at
    a time."""

    def __init__(self, root: Path) -> None:
        self._root, self._path, self._fd = root, "", os.open(root, _FOLDER_FLAGS)

    def open(self, path: str) -> int:
        """Return a file descriptor of the directory at `path` ("" for the root), created if missing. Valid until the
        next call. Raise OSError if a component is a link or a file."""
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


def place_member(
    archive: tarfile.TarFile, member: tarfile.TarInfo, folders: Folders, note: Callable[[bytes], None]
) -> str:
    """Write a member of a tar into the directory, and return its kind: FILE, EXECUTABLE or LINK. `note` receives each
    piece of its content before it is written. Raise TarError for other members and for a path that leaves the
    directory, and what `place` raises."""
    check_path(member.name)
    file = archive.extractfile(member) if member.isreg() else None
    if member.issym():
        kind, pieces = LINK, iter([os.fsencode(member.linkname)])
    elif file is not None:
        kind, pieces = EXECUTABLE if member.mode & 0o100 else FILE, _pieces(file)
    else:
        raise tarfile.TarError(f"it has {member.name!r}, which is no file")
    place(member.name, kind, _noted(pieces, note), folders)
    return kind


def check_path(path: str) -> None:
    """Raise TarError for a path that leaves the directory, or has an empty or "." component."""
    if not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise tarfile.TarError(f"it has the path {path!r}")


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece


def _noted(pieces: Iterator[bytes], note: Callable[[bytes], None]) -> Iterator[bytes]:
    for piece in pieces:
        note(piece)
        yield piece


def place(path: str, kind: str, pieces: Iterator[bytes], folders: Folders) -> None:
    """Write a file at `path`, or a symbolic link whose target is the content, replacing an earlier file or link.
    `kind`: FILE, EXECUTABLE or LINK; `pieces`: the content. Raise NotADirectoryError, IsADirectoryError or
    FileExistsError if something of another kind is in its place."""
    parent, _, name = path.rpartition("/")
    folder = folders.open(parent)
    try:
        _write(kind, name, folder, pieces)
    except FileExistsError:
        os.unlink(name, dir_fd=folder)
        _write(kind, name, folder, pieces)


def _write(kind: str, name: str, folder: int, pieces: Iterator[bytes]) -> None:
    """Create the file or link with this content. Raise FileExistsError, before the first piece is read, if the name
    is taken."""
    if kind == LINK:
        if _is_there(name, folder):
            raise FileExistsError(name)
        os.symlink(os.fsdecode(b"".join(pieces)), name, dir_fd=folder)
        return
    fd = os.open(name, _FILE_FLAGS, 0o755 if kind == EXECUTABLE else 0o644, dir_fd=folder)
    with open(fd, "wb") as file:
        file.writelines(pieces)


def _is_there(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
