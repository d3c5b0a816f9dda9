"""The lakes of the contract suite, and operations that only tests need: damage, loss and age."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from datasets.ingest.worker import SinkSpec
from datasets.storage import folder
from datasets.storage.base import Lake
from datasets.storage.contents import WHOLE
from datasets.storage.folder import FolderLake
from datasets.storage.pieces import key_of, piece_key
from datasets.storage.s3 import S3Lake
from tests.s3_server import BUCKET, S3Server

A_WEEK = 7 * 86400.0


class LakeKit(Protocol):
    """One lake of a test; it can be opened several times."""

    root: Path

    def spec(self) -> str:
        """Return the text with which `open_lake` opens the lake, also in another process."""

    def damage(self, lake: Lake, digest: bytes) -> None:
        """Change a byte of the stored content, so that it does not match its digest."""

    def lose(self, lake: Lake, digest: bytes) -> None:
        """Remove the file or object that holds the content."""

    def damage_manifest(self, name: str) -> None:
        """Change a byte of every stored copy of a manifest."""

    def lose_index(self) -> None:
        """Remove the index of a closed lake."""

    def age(self, lake: Lake) -> None:
        """Make all stored contents a week old until they are renewed."""

    def stored_bytes(self) -> int:
        """Return the bytes of all packs and objects together."""


@dataclass
class FolderKit:
    root: Path
    patch: pytest.MonkeyPatch
    old: set[Path] = field(default_factory=set)

    def __post_init__(self) -> None:
        changed_at, renew = folder.changed_at, folder.renew_file
        self.patch.setattr(folder, "changed_at", lambda path: changed_at(path) - A_WEEK * (path in self.old))
        self.patch.setattr(folder, "renew_file", lambda path: (self.old.discard(Path(path)), renew(path))[1])

    def spec(self) -> str:
        return json.dumps({"root": str(self.root)})

    def damage(self, lake: FolderLake, digest: bytes) -> None:
        [located] = lake.locate([digest])
        path = lake.path_of(located)
        path.chmod(0o644)
        _change(path, located.offset)

    def lose(self, lake: FolderLake, digest: bytes) -> None:
        [located] = lake.locate([digest])
        lake.path_of(located).unlink()

    def damage_manifest(self, name: str) -> None:
        _change_all(self.root.rglob(f"*{name[2:]}"))

    def lose_index(self) -> None:
        for path in self.root.glob("index.sqlite*"):
            path.unlink()

    def age(self, lake: FolderLake) -> None:
        self.old |= {path for path in self.root.rglob("*") if path.is_file()}

    def stored_bytes(self) -> int:
        return _bytes_of(path for name in ("packs", "objects") for path in (self.root / name).rglob("*"))


@dataclass
class S3Kit:
    root: Path
    server: S3Server
    prefix: str

    def spec(self) -> str:
        return json.dumps({"root": str(self.root), "bucket": asdict(self.server.config(self.prefix))})

    def damage(self, lake: S3Lake, digest: bytes) -> None:
        [located] = lake.locate([digest])
        _change(self._object(lake, digest), located.offset)

    def lose(self, lake: S3Lake, digest: bytes) -> None:
        self._object(lake, digest).unlink()

    def damage_manifest(self, name: str) -> None:
        kept = [path for path in self._files("manifests") if path.name == name[2:]]
        _change_all([*self.root.rglob(f"*{name[2:]}"), *kept])

    def lose_index(self) -> None:
        for path in [*self.root.glob("index.sqlite*"), *(self.root / "manifests").iterdir()]:
            path.unlink()

    def age(self, lake: S3Lake) -> None:
        with lake._index._database as database:
            database.execute("UPDATE files SET at = at - ?", (A_WEEK,))

    def stored_bytes(self) -> int:
        return _bytes_of(path for name in ("packs", "objects") for path in self._files(name))

    def _files(self, name: str) -> list[Path]:
        return self.server.files(f"{self.prefix}/{name}")

    def _object(self, lake: S3Lake, digest: bytes) -> Path:
        [located] = lake.locate([digest])
        key = piece_key(digest, 0) if located.pack == WHOLE else key_of(located)
        return self.server.root / BUCKET / self.prefix / key


def sink_of(kit: LakeKit) -> SinkSpec:
    """Return the description with which `sync_tree` opens a sink of the kit's lake."""
    return "tests.contract.lake_opening:lake_sink", (kit.spec(),)


def _change_all(paths: Iterable[Path]) -> None:
    for path in paths:
        path.chmod(0o644)
        _change(path, path.stat().st_size // 2)


def _change(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        was = file.read(1)
        file.seek(offset)
        file.write(bytes([was[0] ^ 1]))


def _bytes_of(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())
