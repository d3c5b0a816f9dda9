"""The store of code files: each content is stored once for all trees and projects that have it.

    objects/ab/<sha256>                  a content, read-only
    projects/<id>/objects/ab/<sha256>    a hard link to it: the project has uploaded this content itself
    projects/<id>/trees/<sha256>         the manifest of a complete tree
    projects/<id>/pending/<sha256>       the manifest of a tree whose upload is not complete
    projects/<id>/spare/<sha256>         the files of a complete tree, for a pod to come (engines/local/spare_code.py)

A project can read only what it uploaded itself, so that knowing a hash gives no access. Files are created
atomically; one with a size other than its manifest's, as after a power cut, counts as missing.
"""

from __future__ import annotations

import errno
import filecmp
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from datasets.code_manifest import LINK, Entry, dump, load
from datasets.ingest.stored import store
from datasets.storage.files import renew_file

# Folder below the state directory.
FOLDER = "code"
_OBJECTS, _TREES, _PENDING = "objects", "trees", "pending"
_CHUNK_BYTES = 1 << 20


class ContentCorrupt(Exception):
    """A stored content does not match its hash. It was removed from the store; uploading it again repairs the
    tree."""


class ContentDiffers(Exception):
    """An uploaded content does not match its hash."""


class ProjectCode:
    """The code trees of one project. Safe for concurrent use by several processes."""

    def __init__(self, root: Path, project_id: int) -> None:
        self._shared = root / _OBJECTS
        self._own = root / "projects" / str(project_id)
        self._objects = os.fspath(self._own / _OBJECTS)
        self.spare = self._own / "spare"

    def begin(self, tree: Sequence[Entry], entries: Iterable[Entry]) -> tuple[str, dict[str, int]]:
        """Store the manifest of a tree to upload, and its link targets; return the tree's hash, and what of `entries`
        is `missing` then. `entries`: those that are not also of a complete tree. Their existing contents are protected
        from a concurrent `sweep`."""
        manifest = dump(tree)
        digest = hashlib.sha256(manifest).hexdigest()
        store(self._own / _PENDING / digest, (manifest,))
        missing: dict[str, int] = {}
        for entry in entries:
            if self._has(entry):
                renew_file(self._place(entry))
            elif entry.kind == LINK:
                self.put(entry.sha256, [entry.target.encode()])
            else:
                missing[entry.sha256] = entry.size
        return digest, missing

    def pending(self, digest: str) -> tuple[Entry, ...] | None:
        """Return the entries of a tree whose upload was begun or is complete; None for any other."""
        # In this order, a tree that `finish` moves meanwhile is still found.
        for folder in (_PENDING, _TREES):
            with suppress(FileNotFoundError):
                return load((self._own / folder / digest).read_bytes())
        return None

    def entries(self, digest: str) -> tuple[Entry, ...]:
        """Return the entries of a complete tree. Raises FileNotFoundError if there is none with this digest."""
        return load((self._own / _TREES / digest).read_bytes())

    def missing(self, entries: Iterable[Entry]) -> dict[str, int]:
        """Return hash -> size of each content that the project lacks."""
        return {entry.sha256: entry.size for entry in entries if not self._has(entry)}

    def put(self, sha256: str, pieces: Iterable[bytes]) -> None:
        """Store a content, given in `pieces`, under its hash for the project, once for all projects. Raises
        ContentDiffers, and stores nothing, if it does not match its hash."""
        shared, own = _object(self._shared, sha256), _object(self._own / _OBJECTS, sha256)
        fresh = shared.with_name(f".{sha256}.{secrets.token_hex(4)}")
        try:
            _write_content(fresh, pieces, sha256)
            own.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Compare instead of trusting the existing file: a damaged one is replaced by the upload.
            if _is_same(shared, fresh):
                fresh.unlink()
            else:
                fresh.replace(shared)
            _link(shared, own)
        except BaseException:
            # The disk is full, or the upload was interrupted.
            fresh.unlink(missing_ok=True)
            raise

    def finish(self, digest: str) -> None:
        """Mark a tree as complete. All its files must be stored. Safe to repeat."""
        trees = self._own / _TREES
        trees.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Already complete.
        with suppress(FileNotFoundError):
            (self._own / _PENDING / digest).rename(trees / digest)

    def has(self, digest: str) -> bool:
        """Return whether the tree is complete."""
        return (self._own / _TREES / digest).exists()

    def is_pending(self, digest: str) -> bool:
        """Return whether an upload of the tree was begun that lacked files."""
        return (self._own / _PENDING / digest).exists()

    def pieces(self, entry: Entry) -> Iterator[bytes]:
        """Yield a content in pieces, verified. Raises ContentCorrupt, at the latest after the last piece,
        also if the content is missing."""
        path, hashed = _object(self._own / _OBJECTS, entry.sha256), hashlib.sha256()
        try:
            with path.open("rb", buffering=0) as file:
                while piece := file.read(_CHUNK_BYTES):
                    hashed.update(piece)
                    yield piece
        except FileNotFoundError as error:
            detail = f"The content of {entry.path} is missing from the code store; submit it again."
            raise ContentCorrupt(detail) from error
        # Both copies are removed, so that they count as missing and the next submission uploads them again.
        if hashed.hexdigest() != entry.sha256:
            path.unlink(missing_ok=True)
            _object(self._shared, entry.sha256).unlink(missing_ok=True)
            raise ContentCorrupt(
                f"The content of {entry.path} was damaged in the code store; submit it again."
            )

    def remove(self, digests: Iterable[str]) -> None:
        """Remove the manifests of the trees with these digests. The next `sweep` removes their files."""
        for digest in digests:
            (self._own / _TREES / digest).unlink(missing_ok=True)

    def remove_except(self, kept: set[str], before: float) -> None:
        """Remove the manifests of complete trees, except of those in `kept` and those completed since
        `before` (Unix time)."""
        for manifest in _files(self._own / _TREES):
            if manifest.name not in kept and _ctime(manifest) < before:
                manifest.unlink(missing_ok=True)

    def sweep(self, before: float) -> int:
        """Remove uploads begun before `before` (Unix time) and never completed, spare copies from before it, and
        contents that no tree of the project uses; return the number of contents. Contents stored since `before`
        stay: their tree may be about to be begun."""
        wanted: set[str] = set()
        # In this order, a tree that `finish` moves meanwhile is still found.
        for folder in (_PENDING, _TREES):
            for manifest in _files(self._own / folder):
                if folder == _PENDING and _mtime(manifest) < before:
                    manifest.unlink(missing_ok=True)
                    continue
                # Completed or removed by another process.
                with suppress(FileNotFoundError):
                    wanted |= {entry.sha256 for entry in load(manifest.read_bytes())}
        for copy in _files(self.spare):
            if _mtime(copy) < before:
                shutil.rmtree(copy, ignore_errors=True)
        return _remove_unwanted(self._own / _OBJECTS, wanted, before)

    def _has(self, entry: Entry) -> bool:
        """Return whether the project has a content, with the right size."""
        try:
            return os.stat(self._place(entry)).st_size == entry.size
        except FileNotFoundError:
            return False

    def _place(self, entry: Entry) -> str:
        # As `_object`, without an object for each part: an upload asks for each file of its tree.
        return f"{self._objects}/{entry.sha256[:2]}/{entry.sha256}"


def check_content(sha256: str, pieces: Iterable[bytes]) -> None:
    """Raise ContentDiffers if the SHA-256 of the concatenated `pieces` is not `sha256` (hex); stores nothing."""
    for _ in _checked_pieces(sha256, pieces):
        pass


def project_ids(root: Path) -> list[int]:
    """Return the ids of the projects that have code in the store, deleted projects included."""
    return [int(path.name) for path in _files(root / "projects") if path.name.isdecimal()]


def forget_project(root: Path, project_id: int) -> None:
    """Remove the manifests and links of a deleted project (by id); the shared contents stay until `sweep_shared`.
    Errors are ignored: what could not be removed is removed by the next call."""
    shutil.rmtree(root / "projects" / str(project_id), ignore_errors=True)


def sweep_shared(root: Path, before: float) -> int:
    """Remove contents that no project has linked and that have not changed since `before` (Unix time); return how
    many."""
    count = 0
    for path in _objects(root / _OBJECTS):
        with suppress(FileNotFoundError):
            found = path.lstat()
            # One link left: no project uses it. Old enough: no project is linking it now.
            if found.st_nlink == 1 and found.st_ctime < before:
                path.unlink()
                count += 1
    return count


def _remove_unwanted(objects: Path, wanted: set[str], before: float) -> int:
    count = 0
    for path in _objects(objects):
        if path.name not in wanted and _ctime(path) < before:
            path.unlink(missing_ok=True)
            count += 1
    return count


def _object(folder: Path, sha256: str) -> Path:
    return folder / sha256[:2] / sha256


def _objects(folder: Path) -> Iterator[Path]:
    for shelf in _files(folder):
        yield from _files(shelf)


def _files(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as found:
            return [folder / entry.name for entry in found]
    except FileNotFoundError:
        return []


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        # Never older than a limit: a file that is gone needs no removal.
        return float("inf")


def _ctime(path: Path) -> float:
    """Return the file's change time (Unix time), which linking and writing update; infinity if the file does not
    exist."""
    try:
        return path.stat().st_ctime
    except FileNotFoundError:
        return float("inf")


def _is_same(path: Path, other: Path) -> bool:
    """Return whether both files exist and have equal content."""
    with suppress(FileNotFoundError):
        # A shallow comparison would accept any file of the same size and time.
        return filecmp.cmp(path, other, shallow=False)
    return False


def _link(shared: Path, own: Path) -> None:
    """Make `own` a link to the shared content; copy it if the file system does not allow another link. Replaces
    an existing file."""
    fresh = own.with_name(f".{own.name}.{secrets.token_hex(4)}")
    try:
        os.link(shared, fresh)
    except OSError as error:
        if error.errno not in (errno.EMLINK, errno.EPERM, errno.ENOTSUP):
            raise
        shutil.copy(shared, fresh)
    fresh.replace(own)
    # rename() does nothing if both names link to the same file, so remove the temporary one.
    fresh.unlink(missing_ok=True)


def _write_content(path: Path, pieces: Iterable[bytes], sha256: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb") as file:
        file.writelines(_checked_pieces(sha256, pieces))


def _checked_pieces(sha256: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
    hashed = hashlib.sha256()
    for piece in pieces:
        hashed.update(piece)
        yield piece
    if hashed.hexdigest() != sha256:
        raise ContentDiffers(f"A file is not what its hash {sha256} says; it changed while it was read.")
