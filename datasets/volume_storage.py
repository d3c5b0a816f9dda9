"""Select the storage of a project's volumes: directories, a storage system, or claims of its cluster."""

from typing import Protocol, cast

from controlplane.loop.engine_pool import engine_for
from controlplane.models import Project
from datasets.models import Snapshot, Volume
from datasets.queries.volumes import claims_volumes, storage_of
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
    cluster with its own volumes cannot be opened, Blocked if this release does not have the storage class's driver."""
    if not claims_volumes(volume.project):
        about = (volume.storage_class, volume.size_bytes, volume.service_tier)
        return storage_of(volume.project_id, *about)
    return _claims(volume.project, volume.storage_class, volume.size_bytes, volume.access_mode)


def storage_of_snapshot(snapshot: Snapshot) -> VolumeStorage:
    """Return the storage that holds the snapshot. Raises EngineUnreachable if the engine of a cluster with its own
    volumes cannot be opened, Blocked if this release does not have the storage class's driver."""
    if not claims_volumes(snapshot.project):
        return storage_of(snapshot.project_id, snapshot.storage_class)
    return _claims(snapshot.project, snapshot.storage_class, snapshot.volume_bytes, "")


def _claims(project: Project, storage_class: str, size_bytes: int, access_mode: str) -> VolumeStorage:
    engine = cast(ClaimEngine, engine_for(project.cluster))
    return engine.volumes(project.name, storage_class, size_bytes, access_mode)
