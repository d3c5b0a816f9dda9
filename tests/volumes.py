"""Volumes for tests: rows whose directories exist."""

from pathlib import Path
from typing import Any

from controlplane.access import SYSTEM
from controlplane.commands.dispatch import carry_out_due
from controlplane.models import Command, Project
from datasets.actions.snapshots import take_snapshot
from datasets.actions.volumes import create_volume
from datasets.models import Snapshot, Volume
from datasets.queries.volumes import SNAPSHOT, VOLUME, storage_of
from datasets.storage.volumes import FolderVolumes
from tests.waiting import wait_until

GIB = 1 << 30


def work() -> None:
    """Run the due commands of volumes and snapshots, as a worker does; wait until that is done."""
    about = Command.objects.unfinished().filter(subject_kind__in=(VOLUME, SNAPSHOT))

    def is_done() -> bool:
        carry_out_due()
        return not about.exists()

    wait_until(is_done, what="the end of the work on volumes and snapshots")


def make_volume(
    project: Project, name: str = "data", files: dict[str, str] | None = None, **fields: Any
) -> Volume:
    """Create a volume that is ready and has these files (path -> text)."""
    volume = create_volume(project, {"name": name, "size": GIB, **fields}, actor=SYSTEM)
    work()
    write(volume, files or {})
    volume.refresh_from_db()
    return volume


def make_snapshot(volume: Volume) -> Snapshot:
    """Take a snapshot of a volume; it is ready."""
    snapshot = take_snapshot(volume, actor=SYSTEM)
    work()
    snapshot.refresh_from_db()
    return snapshot


def directory_of(volume: Volume) -> Path:
    """Return the directory of a volume, into which jobs write."""
    return storage_of(volume.project_id, volume.storage_class).path(str(volume.pk))


def write(volume: Volume, files: dict[str, str]) -> None:
    """Write files (path -> text) into a volume, as a job does."""
    for path, text in files.items():
        place = directory_of(volume) / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def read(volume: Volume) -> dict[str, str]:
    """Return all files of a volume, path -> text."""
    root = directory_of(volume)
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def tree_of(snapshot: Snapshot) -> Path:
    """Return the directory with a snapshot's files."""
    storage = storage_of(snapshot.project_id, snapshot.storage_class)
    assert isinstance(storage, FolderVolumes)
    return storage.root / "snapshots" / str(snapshot.pk) / "tree"
