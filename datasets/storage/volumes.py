"""Volumes as directories of a file system, and their snapshots as trees that share unchanged files.

    ROOT/volumes/ID               what jobs mount
    ROOT/snapshots/ID/tree        the files; those unchanged since the previous snapshot are hard links to it
    ROOT/snapshots/ID/index       the stat of the volume's files when they were copied
    ROOT/snapshots/ID/taken.json  what `take` returned
    ROOT/parts/ID.*               in progress; renamed when complete and on disk

Snapshots are never mounted writable, so sharing by hard links is safe between snapshots. Between a volume and
a snapshot it is not; there, content is shared by reflink or copied.

Every call may be repeated after a crash: the id is its idempotency key. A repeat removes the incomplete parts
of the earlier call.
"""

from __future__ import annotations

import fcntl
import json
import marshal
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol
from uuid import uuid4

from datasets.storage.base import NOT_MOUNTED, UNLIMITED, Blocked, Budget, ContentMissing
from datasets.storage.files import blocked, make_spread, remove_tree, sync_directory, sync_file_system
from datasets.storage.trees import Before, Copied, Index, copy_tree
from datasets.storage.volume_files import Child, Measured, VolumeFiles

if TYPE_CHECKING:
    from datasets.storage.classes import StorageClass

Report = Callable[[int, int], None]
Cut = Callable[[], object]


def silent(files: int, size_bytes: int) -> None:
    """Do nothing: the default for `report`, which receives the files and bytes done."""


def unheard() -> None:
    """Do nothing: the default for `cut`, which is called once the content of a snapshot does not change any more."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot that exists. `files`: the number of its files, None if the storage does not report it.
    `new_bytes`: the size of the files that it shares with no earlier snapshot, None likewise. `notes`: sentences
    about what it lacks."""

    files: int | None
    size_bytes: int
    new_bytes: int | None
    notes: str = ""


class BlockSnapshots(ABC):
    """Snapshots of a storage system that shares unchanged blocks itself, and counts no files."""

    def take(
        self,
        snapshot: str,
        volume: str,
        before: str | None = None,
        budget: Budget = UNLIMITED,
        report: Report = silent,
        cut: Cut = unheard,
    ) -> Taken:
        """Take a snapshot, unless it exists, wait until it is ready, and return it; `before` is not used. Raises
        ContentMissing if there is no such volume, Blocked if the storage system refuses, fails or exceeds the time
        limit, and what `budget` raises."""
        return Taken(None, self._take(snapshot, volume, budget, cut), None)

    @abstractmethod
    def _take(self, snapshot: str, volume: str, budget: Budget, cut: Cut) -> int:
        """As `take`; return the bytes that a volume made from the snapshot needs."""


class VolumeStorage(Protocol):
    """Manages the volumes and snapshots of one project in one storage class: directories (FolderVolumes), volumes
    of a storage system, or claims of a cluster (datasets.storage.csi). Every call may be repeated after a crash:
    the id of the volume or snapshot is its idempotency key."""

    def provision(self, volume: str, budget: Budget = ...) -> None:
        """Create an empty volume, unless it exists. Raises Blocked if the storage refuses or is not done within
        its time limit, and what `budget` raises."""

    def clone(self, volume: str, source: str, budget: Budget = ..., report: Report = ...) -> None:
        """Create a volume with another one's content. Raises ContentMissing if there is no `source`, Blocked if the
        storage cannot do it, and what `budget` raises."""

    def restore(self, volume: str, snapshot: str, budget: Budget = ..., report: Report = ...) -> None:
        """Create a volume from a snapshot, which stays. Raises as `clone`."""

    def remove(self, volume: str) -> None:
        """Remove a volume with its content; snapshots stay. Does nothing for a missing one. Raises Blocked if the
        storage refuses."""

    def resize(self, volume: str, size_bytes: int, budget: Budget = ...) -> None:
        """Change the size that the storage gives a volume to `size_bytes`. Raises ContentMissing if there is no
        such volume, Blocked if the storage refuses, and what `budget` raises."""

    def retier(self, volume: str, service_tier: str, budget: Budget = ...) -> None:
        """Change the service tier of a volume, which stays mounted. Raises ContentMissing if there is no such
        volume, Blocked if the storage refuses, and what `budget` raises."""

    def take(
        self,
        snapshot: str,
        volume: str,
        before: str | None,
        budget: Budget = ...,
        report: Report = ...,
        cut: Cut = ...,
    ) -> Taken:
        """Take a snapshot, unless it exists; return it. It may share files with the snapshot `before`. `cut` is called,
        perhaps several times, when writes do not change the snapshot any more, if that is known before it is ready.
        Raises ContentMissing if there is no such volume, Blocked if the storage cannot do it, and what `budget`
        raises."""

    def has_snapshot(self, snapshot: str) -> bool:
        """Return whether the storage has a snapshot or was asked for it, ready or not. Raises Blocked if it
        refuses."""

    def remove_snapshot(self, snapshot: str) -> None:
        """Remove a snapshot with its files; files shared with others stay. Does nothing for a missing one. Raises
        Blocked if the storage refuses."""

    def measure(self, volume: str, budget: Budget, most_files: int) -> Measured | None:
        """Return what a volume holds, a partial result beyond `most_files` or the deadline of `budget`; None if the
        control plane cannot access it."""


class MountedVolumes(VolumeStorage, Protocol):
    """Volumes that are directories of the control plane's machine: what the driver of a storage class opens."""

    def path(self, volume: str) -> Path:
        """Return the directory that jobs mount."""

    def is_there(self, volume: str, path: bytes) -> bool:
        """Return whether there is exactly this path."""

    def children(self, volume: str, directory: bytes, after: bytes, limit: int) -> list[Child]:
        """Return up to `limit` entries of a directory, in order of their names and after the name `after`. Raises
        ContentMissing if there is no such directory, Blocked if it cannot be read."""

    def open(self, volume: str, path: bytes) -> tuple[BinaryIO, int]:
        """Return a file opened for reading, and its size in bytes. Raises ContentMissing if there is no such
        file, Blocked if it cannot be read."""


def open_class(found: StorageClass, project_id: int, size_bytes: int, service_tier: str) -> FolderVolumes:
    """Return the volumes of a project (by id) in the storage class `found`. Sizes and service tiers are not
    enforced, so `size_bytes` and `service_tier` are not used."""
    return FolderVolumes(found.directory / str(project_id))


class FolderVolumes(VolumeFiles):
    """Manages the volumes and snapshots of one project in one storage class, as directories below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, volume: str) -> Path:
        """Return the directory of a volume, which jobs mount."""
        return self.root / "volumes" / volume

    def has_snapshot(self, snapshot: str) -> bool:
        return (self._snapshot(snapshot) / "tree").is_dir()

    def provision(self, volume: str, budget: Budget = UNLIMITED) -> None:
        """Create an empty volume, unless it exists. Raises Blocked if the directory cannot be created, and what
        `budget` raises."""
        budget.check()
        try:
            make_spread(self.path(volume).parent)
            self.path(volume).mkdir(exist_ok=True)
        except OSError as error:
            raise blocked(error) from error

    def clone(self, volume: str, source: str, budget: Budget = UNLIMITED, report: Report = silent) -> None:
        """Create a volume with another one's content. Raises ContentMissing if there is no `source`, Blocked if the
        storage cannot do it, and what `budget` raises."""
        self._make_volume(volume, self.path(source), budget, report)

    def restore(
        self, volume: str, snapshot: str, budget: Budget = UNLIMITED, report: Report = silent
    ) -> None:
        """Create a volume from a snapshot, which stays. Raises as `clone`."""
        self._make_volume(volume, self._snapshot(snapshot) / "tree", budget, report)

    def remove(self, volume: str) -> None:
        """Remove a volume with its content; snapshots stay. Does nothing for a missing one. Raises Blocked if the
        folder cannot be changed."""
        self._remove(self.path(volume))

    def resize(self, volume: str, size_bytes: int, budget: Budget = UNLIMITED) -> None:
        """Do nothing: a directory does not enforce its size."""

    def retier(self, volume: str, service_tier: str, budget: Budget = UNLIMITED) -> None:
        """Do nothing: directories have no service tiers."""

    def take(
        self,
        snapshot: str,
        volume: str,
        before: str | None,
        budget: Budget = UNLIMITED,
        report: Report = silent,
        cut: Cut = unheard,
    ) -> Taken:
        """Take a snapshot, unless it exists, and return it; files unchanged since the snapshot `before` are shared with
        it. Raises ContentMissing if there is no such volume, Blocked if the storage cannot do it, and what `budget`
        raises."""
        place = self._snapshot(snapshot)
        if not place.exists():
            with self._part(snapshot, place) as part:
                copied = self._copy(self.path(volume), part / "tree", budget, report, self._before(before))
                # By marshal, because paths are bytes, which JSON does not have.
                (part / "index").write_bytes(marshal.dumps(copied.index))
                (part / "taken.json").write_text(json.dumps(asdict(_taken(copied))))
        return Taken(**json.loads((place / "taken.json").read_text()))

    def remove_snapshot(self, snapshot: str) -> None:
        """Remove a snapshot; files that other snapshots share stay. Does nothing for a missing one. Raises Blocked if
        the folder cannot be changed."""
        self._remove(self._snapshot(snapshot))

    def _make_volume(self, volume: str, source: Path, budget: Budget, report: Report) -> None:
        place = self.path(volume)
        if not place.exists():
            with self._part(volume, place) as part:
                # Remove it: the copy creates it with the modes of its source.
                part.rmdir()
                self._copy(source, part, budget, report)

    def _copy(
        self, source: Path, target: Path, budget: Budget, report: Report, before: Before | None = None
    ) -> Copied:
        try:
            return copy_tree(source, target, before=before, budget=budget, report=report)
        except FileNotFoundError as error:
            if source.is_dir() or not self.root.is_dir():
                raise Blocked(NOT_MOUNTED, "The disk was unmounted while files were copied.") from error
            raise ContentMissing(f"The source of the copy does not exist any more: {source.name}.") from error

    def _before(self, snapshot: str | None) -> Before | None:
        if snapshot is None:
            return None
        place = self._snapshot(snapshot)
        try:
            index: Index = marshal.loads((place / "index").read_bytes())
        except (OSError, ValueError, EOFError, TypeError):
            # Without the index, every file is copied.
            return None
        return Before(place / "tree", index)

    @contextmanager
    def _part(self, name: str, place: Path) -> Iterator[Path]:
        """Context manager with an empty directory that is flushed and renamed to `place` at the end of the block.
        Raises Blocked for an error of the file system."""
        parts = self.root / "parts"
        part = parts / f"{name}.{uuid4().hex}"
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            make_spread(parts)
            self._remove_parts(name)
            part.mkdir()
            yield part
            sync_file_system(parts)
            _rename_new(part, place)
        except OSError as error:
            raise blocked(error) from error
        finally:
            # The next try removes what cannot be removed now.
            with suppress(OSError):
                remove_tree(part)

    def _remove(self, place: Path) -> None:
        parts = self.root / "parts"
        try:
            parts.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                # Rename it away first: removing a large tree takes long and may be interrupted.
                os.rename(place, parts / f"{place.name}.{uuid4().hex}")
            self._remove_parts(place.name)
        except OSError as error:
            raise blocked(error) from error

    def _remove_parts(self, name: str) -> None:
        """Remove parts left by earlier tries, so that no process can complete them."""
        for left in (self.root / "parts").glob(f"{name}.*"):
            hidden = left.with_name(f"{name}.{uuid4().hex}")
            with suppress(FileNotFoundError):
                # Renamed first: a process that lost its claim but still writes cannot complete it then.
                os.rename(left, hidden)
                remove_tree(hidden)

    def _snapshot(self, snapshot: str) -> Path:
        return self.root / "snapshots" / snapshot


def _taken(copied: Copied) -> Taken:
    notes = []
    if count := copied.changed:
        many = f"{count} files changed while they were copied"
        notes.append("a file changed while it was copied" if count == 1 else many)
    if count := copied.skipped:
        many = f"{count} sockets, pipes or devices are not in it"
        notes.append("a socket, pipe or device is not in it" if count == 1 else many)
    words = f"{'; '.join(notes)}: {', '.join(copied.named)}" if notes else ""
    return Taken(copied.files, copied.size_bytes, copied.new_bytes, words)


def _rename_new(part: Path, place: Path) -> None:
    """Rename the directory `part` to `place` and flush that, unless another process has done the same already."""
    with open(part.parent / "lock", "a") as lock:
        # A rename would replace an empty directory that another process has just completed.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            os.rename(part, place)
            sync_directory(place.parent)
