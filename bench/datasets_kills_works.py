"""The works of a running control plane whose processes `bench.datasets_kills_instance` kills: how far each has come,
as its files show it, and what is there afterwards."""

import os
import sqlite3
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

from bench.datasets_kills import contents_of, files_below, leftovers
from bench.datasets_kills_programs import size_of
from datasets.manifests import decode
from datasets.storage.bucket import Bucket
from datasets.storage.cache import CacheStore
from datasets.storage.folder import FolderLake
from datasets.storage.s3 import S3Lake
from datasets.storage.staging import LOCK
from tests.s3_server import S3Server
from tests.servers import ControlPlane
from tests.waiting import wait_until

# What `Work.come` returns once every byte is there, once the result has its name, and once it is recorded as done.
WHOLE, NAMED, RECORDED = 1.0, 2.0, 3.0
PREFIX, PROJECT = "kills", "kept"
UNFINISHED = (
    "SELECT kind FROM controlplane_command WHERE state IN ('pending', 'claimed') AND kind LIKE 'datasets.%'"
)


class Place:
    """A running control plane, and the tree of files that its works store. `s3`: the server of its lake, None for a
    folder."""

    def __init__(self, running: ControlPlane, tree: Path, s3: S3Server | None) -> None:
        self.running, self.tree, self.s3 = running, tree, s3
        self.files, self.size_bytes = len(files_below(tree)), size_of(tree)

    @property
    def home(self) -> Path:
        return self.running.state_dir

    def rows(self, query: str, *values: object) -> list[Any]:
        """Return the first columns of what a query finds in the database."""
        address = f"file:{self.home}/db.sqlite3?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=60)) as database:
            return [row[0] for row in database.execute(query, values)]

    def send(self, method: str, path: str, body: object = None) -> Any:
        """Send a REST request; return the decoded answer."""
        status, found = self.running.call(method, f"/api/v1/{path}", body)
        assert status < 300, found
        return found

    def create_project(self, name: str) -> int:
        """Create a project; return its primary key."""
        self.send("POST", "projects", {"name": name, "gpu_quota": 0})
        return int(self.rows("SELECT id FROM controlplane_project WHERE name = ?", name)[0])

    def be_idle(self) -> None:
        """Wait until no command about data is unfinished."""
        wait_until(lambda: not self.rows(UNFINISHED), 120, "the end of all commands")


class Work(ABC):
    """A work that is done again and again. `words`: the arguments of `yard` for the next time."""

    name: str
    words: list[str]

    def __init__(self, place: Place) -> None:
        self.place, self.number = place, 0

    def begin(self) -> None:
        """Prepare the next time."""
        self.number += 1

    @abstractmethod
    def come(self) -> float:
        """Return how far it has come: the part of its files or bytes that is there, or WHOLE, NAMED or RECORDED."""

    @abstractmethod
    def found(self) -> dict[str, object]:
        """Return what is there after its end, by name."""

    def forget(self) -> None:  # noqa: B027  # an ingest leaves its project as it is
        """Remove what the next time must not find."""


class Ingest(Work):
    """A sync of the tree into a dataset of a new project, whose lake is empty. It is never RECORDED: it ends with
    `yard`."""

    name = "ingest"

    def begin(self) -> None:
        super().begin()
        project = f"p{self.number}"
        self._key = self.place.create_project(project)
        self.place.send("POST", f"projects/{project}/datasets", {"name": "d"})
        self.words = ["-p", project, "dataset", "sync", str(self.place.tree), "--name", "d"]

    def come(self) -> float:
        return NAMED if self._versions() else min(WHOLE, self._stored_bytes() / self.place.size_bytes)

    def found(self) -> dict[str, object]:
        versions = self._versions()
        with closing(self._lake()) as lake:
            manifest = decode(lake.manifest(versions[0]))
            # What killed runs left, as in operation after three days.
            lake.collect(lambda: versions, older_than_seconds=0)
            verified = lake.verify(manifest.contents())
        return {
            "versions": len(versions),
            "version": manifest.hash,
            "files": len(manifest),
            "missing contents": len(verified.missing),
            "damaged contents": len(verified.quarantined),
            "bytes": self._stored_bytes(),
        }

    def _versions(self) -> list[str]:
        query = (
            "SELECT manifest FROM datasets_datasetversion WHERE dataset_id IN"
            " (SELECT id FROM datasets_dataset WHERE project_id = ?)"
        )
        return list(map(str, self.place.rows(query, self._key)))

    def _folder(self) -> Path:
        return self.place.home / "lake" / str(self._key)

    def _stored_bytes(self) -> int:
        root = self._folder()
        if self.place.s3:
            root = self.place.s3.root / self.place.s3.config().bucket / PREFIX / str(self._key)
        return sum(map(size_at, [*files_below(root / "packs"), *files_below(root / "objects")]))

    def _lake(self) -> FolderLake | S3Lake:
        if self.place.s3:
            return S3Lake(Bucket(self.place.s3.config(f"{PREFIX}/{self._key}")), self._folder())
        return FolderLake(self._folder())


class Fill(Work):
    """A fill of the default location with a version that is in the lake, and nothing else is cached."""

    name = "fill"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        version = place.rows("SELECT id FROM datasets_datasetversion ORDER BY created_at LIMIT 1")[0]
        self._key = str(UUID(version))
        self.words = ["-p", PROJECT, "dataset", "cache", "d", "--wait"]

    def come(self) -> float:
        if self.place.rows("SELECT state FROM datasets_cache") == ["ready"]:
            return RECORDED
        if any(self.place.home.glob(f"caches/*/trees/{self._key}")):
            return NAMED
        parts = self.place.home.glob(f"caches/*/trees/{self._key}.part")
        return sum(map(count_files, parts)) / self.place.files

    def found(self) -> dict[str, object]:
        (home,) = (self.place.home / "caches").iterdir()
        store = CacheStore(home)
        files = {status.st_ino: status.st_size for status in map(os.stat, files_below(home / "trees"))}
        return {
            "caches": self.place.rows("SELECT state FROM datasets_cache"),
            "trees": sorted(os.listdir(home / "trees")),
            "files": count_files(store.tree(self._key)),
            "contents": contents_of(store.tree(self._key)),
            # A content that is there twice has two inodes.
            "bytes": sum(files.values()),
            "missing bytes": store.lacking_bytes(store.manifests()[self._key]),
            # Without the folders of running processes, each of which has a lock.
            "leftovers": sum(path.name != LOCK for path in files_below(home / "staging")),
        }

    def forget(self) -> None:
        for cache in self.place.rows("SELECT id FROM datasets_cache"):
            self.place.send("DELETE", f"caches/{UUID(cache)}")
        wait_until(lambda: not self.place.rows("SELECT id FROM datasets_cache"), 60, "the end of the cache")
        self.place.be_idle()


class OfVolumes(Work):
    """A work whose result is a directory below `folder` and a row in `table`."""

    folder: str
    table: str

    def begin(self) -> None:
        super().begin()
        self._rows, self._names = set(self._ids()), set(self._names_there())

    def _home(self) -> Path:
        (home,) = self.place.home.glob("volumes/*/*")
        return home

    def _ids(self, state: str = "%") -> list[Any]:
        return self.place.rows(f"SELECT id FROM {self.table} WHERE state LIKE ?", state)

    def _names_there(self) -> list[str]:
        folder = self._home() / self.folder
        return os.listdir(folder) if folder.is_dir() else []

    def come(self) -> float:
        if set(self._ids("ready")) - self._rows:
            return RECORDED
        if set(self._names_there()) - self._names:
            return NAMED
        return sum(map(count_files, self._parts())) / self.place.files

    def _parts(self) -> list[Path]:
        parts = self._home() / "parts"
        return [path for path in parts.iterdir() if path.is_dir()] if parts.is_dir() else []

    def found(self) -> dict[str, object]:
        (name,) = set(self._names_there()) - self._names
        place = self._home() / self.folder / name
        tree = place / "tree" if self.folder == "snapshots" else place
        return {
            "new rows": len(set(self._ids()) - self._rows),
            "files": count_files(tree),
            "contents": contents_of(tree),
            "bytes": size_of(tree),
            "leftovers": leftovers(self._home()),
        }

    def forget(self) -> None:
        for row in set(self._ids()) - self._rows:
            self.place.send("DELETE", f"{self.folder}/{UUID(row)}")
        wait_until(lambda: set(self._ids()) == self._rows, 60, "the removal")
        self.place.be_idle()


class TakeSnapshot(OfVolumes):
    """A snapshot of a volume with the tree's files; there is no earlier one to share them with."""

    name, folder, table = "snapshot", "snapshots", "datasets_snapshot"
    words = ["-p", PROJECT, "snapshot", "create", "v", "--wait"]


class Restore(OfVolumes):
    """A new volume from the snapshot `u@1`."""

    name, folder, table = "restore", "volumes", "datasets_volume"

    def begin(self) -> None:
        super().begin()
        self.words = ["-p", PROJECT, "snapshot", "restore", "u@1", "--to", f"w{self.number}", "--wait"]


def size_at(path: Path) -> int:
    """Return the size of a file; 0 if it is gone."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def count_files(root: Path) -> int:
    """Return the number of files below a directory, to which others may be writing."""
    return sum(len(files) for _, _, files in os.walk(root))
