"""Select the storage of a project's volumes: directories, a storage system, or claims of its cluster."""

from typing import Protocol, cast

from django.db.models import Q, QuerySet

from controlplane.engines.kinds import engine_kinds
from controlplane.loop.engine_pool import engine_for
from controlplane.models import Project
from datasets.models import Snapshot, Volume
from datasets.models.volumes import DELETING, READY
from datasets.queries.disks import require_directory
from datasets.queries.volumes import claims_volumes, storage_class_named, storage_of
from datasets.storage.volumes import VolumeStorage


class ClaimStorage(VolumeStorage, Protocol):
    """Volumes that are claims of a cluster (datasets.storage.csi)."""

    def trouble(self, volume: str) -> str:
        """Return the problem of a volume's claim, a code of storage.claims; "" for none. Raises Blocked if the
        cluster refuses the request."""


class ClaimEngine(Protocol):
    """Additional methods of engines whose kind has `claims_volumes`."""

    def volumes(self, project: str, storage_class: str, size_bytes: int, access_mode: str) -> VolumeStorage:
        """Return the storage of the project's claims. Claims that it creates get this class, size in bytes and
        access mode, such as ReadWriteOnce; the access mode may be "" if the caller creates none."""


def storage_of_volume(volume: Volume) -> VolumeStorage:
    """Return the storage in which the volume is, or will be created. Raises EngineUnreachable if the engine of a
    cluster with its own volumes cannot be opened, Blocked if this release does not have the storage class's driver or
    the disk of its directory is not mounted."""
    if not claims_volumes(volume.project):
        _require_disk(volume.project, volume.storage_class)
        about = (volume.storage_class, volume.size_bytes, volume.service_tier)
        return storage_of(volume.project_id, *about)
    return _claims(volume.project, volume.storage_class, volume.size_bytes, volume.access_mode)


def storage_of_snapshot(snapshot: Snapshot) -> VolumeStorage:
    """Return the storage that holds the snapshot. Raises EngineUnreachable if the engine of a cluster with its own
    volumes cannot be opened, Blocked if this release does not have the storage class's driver or the disk of its
    directory is not mounted."""
    if not claims_volumes(snapshot.project):
        _require_disk(snapshot.project, snapshot.storage_class)
        return storage_of(snapshot.project_id, snapshot.storage_class)
    return _claims(snapshot.project, snapshot.storage_class, snapshot.volume_bytes, "")


def _claims(project: Project, storage_class: str, size_bytes: int, access_mode: str) -> VolumeStorage:
    engine = cast(ClaimEngine, engine_for(project.cluster))
    return engine.volumes(project.name, storage_class, size_bytes, access_mode)


def _require_disk(project: Project, storage_class: str) -> None:
    """Raise Blocked if the disk of a class of directories is not mounted."""
    found = storage_class_named(storage_class)
    if found.driver == "folder":
        rows = _stored(storage_class)
        require_directory(
            found.directory / str(project.pk),
            [each.filter(project=project) for each in rows],
            rows,
            f"the storage class {storage_class} is not there. An operator mounts its disk, or restores it from its"
            " backup; if its volumes are lost, make the directory.",
        )


def _stored(storage_class: str) -> tuple[QuerySet[Volume], QuerySet[Snapshot]]:
    """Return the volumes and snapshots of a class that a directory of this machine should have."""
    kinds = [kind.name for kind in engine_kinds().values() if not kind.claims_volumes]
    is_here, is_removed = (
        Q(storage_class=storage_class, project__cluster__engine__in=kinds),
        Q(state=DELETING),
    )
    # One that is being removed may never have been made; its size is known if it was.
    return (
        Volume.objects.filter(is_here, Q(state=READY) | is_removed & Q(used_bytes__isnull=False)),
        Snapshot.objects.filter(is_here, Q(state=READY) | is_removed & Q(size_bytes__isnull=False)),
    )
