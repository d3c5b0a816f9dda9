"""Open the lake of a project. Each project has its own, so that the presence of a content reveals nothing
about other projects, and a project's storage use is the size of its folder."""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings

from controlplane.models import Project
from datasets.manifests import Manifest, ManifestInvalid, decode
from datasets.models import Artifact, DatasetVersion
from datasets.queries.disks import require_directory
from datasets.storage.base import Blocked, ContentMissing, Lake
from datasets.storage.bucket_config import BucketConfig, why_inside
from datasets.storage.contents import inode_of
from datasets.storage.folder import FolderLake
from datasets.storage.indexed import INDEX

# Limit on the files in cached manifests of a process; about 150 bytes each.
KEPT_FILES = 2_000_000

# Seconds that a web process waits for a lake that another request is opening, which may rebuild its index.
OPENING_SECONDS = 10
# Seconds that a web process waits for a collection of a lake; then the request is refused, and clients repeat it.
COLLECTING_SECONDS = 5.0
# Limits of bucket calls in a web process (datasets.storage.bucket.ClientConfig): for all calls, and for
# writes.
REQUEST_CLIENT: dict[str, Any] = {
    "connect_seconds": 3.0,
    "answer_seconds": 5.0,
    "request_seconds": 60.0,
    # A refused connection is tried again at once; one that took the whole limit is not, since the caller waits.
    "retry_seconds": 2.5,
    "retries": 1,
    "open_seconds": 10.0,
}
UPLOAD_CLIENT: dict[str, Any] = {"connect_seconds": 3.0, "retry_seconds": 2.5, "retries": 1}
_is_web = threading.Event()
_lakes: dict[int, Lake] = {}
# Identities of the folders of open lakes and of their indexes, by which is noticed that a disk was unmounted since, or
# that a damaged index was made again.
_places: dict[int, tuple[int | None, ...] | None] = {}
_opening: dict[int, threading.Lock] = {}
# Keyed by project too: a hash must not give access to another project's manifest.
_manifests: OrderedDict[tuple[int, str], Manifest] = OrderedDict()
_lock = threading.Lock()


def lake_of(project: Project) -> Lake:
    """Return the project's lake, opened once per process, and again if its folder was mounted anew; the caller must not
    close it. Raises Blocked as `open_lake`, and in web processes if another thread opens the lake for too long."""
    with _lock:
        opening = _opening.setdefault(project.pk, threading.Lock())
    # A missing index is rebuilt, which takes long for a large lake; the lock is per project, so others do not
    # wait.
    if not opening.acquire(timeout=OPENING_SECONDS if _is_web.is_set() else -1):
        raise Blocked("unreachable", "The lake is being opened, which takes long; try again later.")
    try:
        # The disk of an open lake may have been unmounted, and mounted again, since.
        if project.pk in _lakes and _places.get(project.pk) != _place(project):
            _lakes.pop(project.pk).close()
        if project.pk not in _lakes:
            _lakes[project.pk] = open_lake(str(project.pk))
            _places[project.pk] = _place(project)
        return _lakes[project.pk]
    finally:
        opening.release()


def _place(project: Project) -> tuple[int | None, ...] | None:
    """Return device and inode of the lake's folder, which change if another disk is mounted there, and the inode of its
    index; None if there is no folder."""
    folder = _folder(str(project.pk))
    try:
        status = folder.stat()
        return status.st_dev, status.st_ino, inode_of(folder / INDEX)
    except OSError:
        return None


@contextmanager
def mounted(project: Project) -> Iterator[None]:
    """Context manager that raises Blocked in place of ContentMissing if the disk of the project's lake was unmounted
    during its block."""
    try:
        yield
    except ContentMissing:
        # Opened again, since its folder is not the same.
        lake_of(project)
        raise


def in_use(lake: Lake) -> AbstractContextManager[None]:
    """Return the context manager `Lake.in_use`, in web processes with a time limit: the collection of a bucket
    may take minutes."""
    return lake.in_use(COLLECTING_SECONDS if _is_web.is_set() else None)


def limit_waits() -> None:
    """Limit the waiting time of lakes that this process opens from now on to some seconds. For web processes,
    where a waiting request occupies a thread that others need."""
    _is_web.set()


def open_lake(key: str) -> Lake:
    """Open the lake of the project with this primary key; the caller closes it. Raises Blocked if its folder cannot
    be created, its index must be rebuilt from a bucket that does not answer, or the bucket's endpoint is one that the
    start would have refused."""
    folder, config = lake_address(key)
    if config is None:
        return FolderLake(folder)
    # Imported here: most installations have no bucket, and the client takes 10 MB in every process.
    from datasets.storage.bucket import NOT_TRUSTED, Bucket, ClientConfig
    from datasets.storage.s3 import S3Lake

    # Checked again: at the start the name may have had no address, or another one.
    if not settings.LAKE_MAY_BE_INSIDE and (where := why_inside(config.endpoint)):
        raise Blocked(NOT_TRUSTED, f"{where}. An operator may set TRAINYARD_S3_ALLOW_PRIVATE=yes.")
    if _is_web.is_set():
        return S3Lake(Bucket(config, ClientConfig(**REQUEST_CLIENT), ClientConfig(**UPLOAD_CLIENT)), folder)
    return S3Lake(Bucket(config), folder)


def _require_disk(project: int, folder: Path) -> None:
    """Raise Blocked if the disk of a project's lake is not mounted."""
    versions = DatasetVersion.objects.all()
    artifacts = Artifact.objects.exclude(manifest="")
    require_directory(
        folder,
        (versions.filter(dataset__project=project), artifacts.filter(project=project)),
        (versions, artifacts),
        "TRAINYARD_LAKE_DIR is not there. An operator mounts its disk, or restores it from its backup; if it is lost,"
        " make the directory and sync the datasets with --full.",
    )


def lake_address(key: str) -> tuple[Path, BucketConfig | None]:
    """Return the folder of a project's lake, and the bucket that holds its content, None if it is in the folder.
    Raises Blocked if the folder's disk is not mounted: who opens the lake makes the folder."""
    folder, config = _folder(key), settings.LAKE_BUCKET
    if config is None:
        _require_disk(int(key), folder)
        return folder, None
    return folder, config.below(key)


def _folder(key: str) -> Path:
    return settings.LAKE_DIR / key


def lake_folder(project: Project) -> Path | None:
    """Return the folder of the project's lake, created if missing; None if its content is in a bucket. Raises
    Blocked if it cannot be created."""
    if settings.LAKE_BUCKET is not None:
        return None
    # Opened only because that creates the folder.
    lake_of(project)
    return _folder(str(project.pk))


def manifest_named(project: Project, name: str) -> Manifest:
    """Return the manifest with the hash `name` of the project's lake; the last ones are cached. Raises
    ContentMissing if it is missing or damaged, Blocked if the lake cannot be read."""
    key = project.pk, name
    with _lock:
        if key in _manifests:
            _manifests.move_to_end(key)
            return _manifests[key]
    # Read without the lock, so that no request waits for another's manifest; two may then read the same one.
    manifest = _read(project, name)
    remember_manifest(project, manifest)
    return manifest


def remember_manifest(project: Project, manifest: Manifest) -> None:
    """Cache a manifest that was just stored in the project's lake, for `manifest_named`."""
    with _lock:
        _manifests[project.pk, manifest.hash] = manifest
        # Keep at least the newest, however large: it is in use.
        while len(_manifests) > 1 and sum(map(len, _manifests.values())) > KEPT_FILES:
            _manifests.popitem(last=False)


def _read(project: Project, name: str) -> Manifest:
    stored = lake_of(project).manifest(name)
    try:
        manifest = decode(stored)
    except ManifestInvalid as error:
        raise ContentMissing(f"The lake's manifest {name} is damaged: {error}") from error
    if manifest.hash != name:
        raise ContentMissing(f"The lake's manifest {name} is damaged.")
    return manifest
