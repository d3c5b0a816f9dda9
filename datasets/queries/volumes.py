"""Read volumes and snapshots as plain data in REST form."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import QuerySet, Window
from django.db.models.functions import RowNumber

from controlplane.engines.base import Mount
from controlplane.engines.kinds import engine_kind, engine_kinds
from controlplane.models import Cluster, Command, Project
from datasets.models import KnownStorageClass, Snapshot, SnapshotCause, Volume, VolumeUse
from datasets.models.volumes import READY
from datasets.queries.due_snapshots import due_jobs
from datasets.storage.claims import claim_name
from datasets.storage.classes import StorageClass
from datasets.storage.volumes import MountedVolumes
from jobs.lifecycle import ACTIVE_STATES, FINAL_STATES

TIB = 1 << 40
VOLUME, SNAPSHOT = "volume", "snapshot"  # subjects of commands
USES_SHOWN = 100


def storage_class_named(name: str) -> StorageClass:
    """Return a storage class by name. For one that is no longer configured, its last known directory is used, or
    else the default place."""
    return storage_classes_named({name})[name]


def storage_classes_named(names: Iterable[str]) -> dict[str, StorageClass]:
    """Return storage classes by name, as `storage_class_named`, with at most one query."""
    configured: Mapping[str, StorageClass] = settings.STORAGE_CLASSES
    found = {name: configured[name] for name in names if name in configured}
    lost = {name for name in names if name not in configured}
    for place in KnownStorageClass.objects.filter(name__in=lost) if lost else ():
        found[place.name] = StorageClass(place.name, Path(place.directory), {}, driver=place.driver)
    for name in lost - set(found):
        found[name] = StorageClass(name, settings.STATE_DIR / "volumes" / name, {})
    return found


def missing_drivers(names: Iterable[str]) -> dict[str, str]:
    """Return the storage classes among `names` whose driver this release does not have, each with the name of
    its driver. Takes no query if all classes are configured."""
    found = storage_classes_named({name for name in names if name not in settings.STORAGE_CLASSES})
    return {name: one.driver for name, one in found.items() if one.about is None}


def has_missing_driver(project: Project, spec: Mapping[str, Any]) -> bool:
    """Return whether this release lacks the driver of a volume that a job of the project mounts."""
    names = {mount["storage_class"] for mount in spec.get("volumes", ()) if "storage_class" in mount}
    return bool(names) and not claims_volumes(project) and bool(missing_drivers(names))


def storage_classes_shown() -> list[dict[str, Any]]:
    """Return the storage classes in REST form: those of this installation, then those that clusters had at
    their last check."""
    shown = [
        {
            "name": one.name,
            "description": one.description,
            "driver": one.driver,
            "service_tiers": dict(one.service_tiers),
            "cluster": None,
        }
        for one in settings.STORAGE_CLASSES.values()
    ]
    for cluster in _claiming_clusters():
        for name in cluster.names_found("storage_classes"):
            shown.append(
                {
                    "name": name,
                    "description": "",
                    "driver": "csi",
                    "service_tiers": {},
                    "cluster": cluster.name,
                }
            )
    return shown


def _claiming_clusters() -> QuerySet[Cluster]:
    kinds = [kind.name for kind in engine_kinds().values() if kind.claims_volumes]
    return Cluster.objects.filter(detached_at=None, engine__in=kinds).order_by("name")


def storage_of(
    project_id: int, storage_class: str, size_bytes: int = 0, service_tier: str = ""
) -> MountedVolumes:
    """Return the storage backend of the volumes of a project (by id) in the storage class with this name.
    `size_bytes`, `service_tier`: size and tier of volumes that it creates. Raises Blocked if this release does
    not have the class's driver."""
    return storage_class_named(storage_class).open(project_id, size_bytes, service_tier)


def resizes_at_storage(volume: Volume) -> bool:
    """Return whether the cluster or the storage system must apply a new size of the volume, which takes a
    command."""
    return claims_volumes(volume.project) or storage_class_named(volume.storage_class).is_size_enforced


def retiers_at_storage(volume: Volume) -> bool:
    """Return whether the storage system must apply a new service tier of the volume, which takes a command."""
    return storage_class_named(volume.storage_class).is_tier_enforced


def claims_volumes(project: Project) -> bool:
    """Return whether the project's volumes are claims in its cluster's own storage classes."""
    return engine_kind(project.cluster.engine).claims_volumes


def volume_mount(project: Project, mount: Mapping[str, Any]) -> Mount:
    """Return the mount with which a pod of the project gets a volume of a job's spec. Raises Blocked as `storage_of`
    unless the project's volumes are claims."""
    path, is_read_only = mount["mount_path"], mount["read_only"]
    if claims_volumes(project):
        return Mount("", path, is_read_only, claim_name(mount["volume_id"]))
    source = volume_path(project.pk, mount["storage_class"], mount["volume_id"])
    return Mount(str(source), path, is_read_only, is_stored=True)


def volume_path(project_id: int, storage_class: str, volume_id: str) -> Path:
    """Return the directory of a volume (by id) on this machine, which pods mount. Raises as `storage_of`."""
    return storage_of(project_id, storage_class).path(volume_id)


def find_volume(project: Project, name: str) -> Volume | None:
    """Return a project's volume by name; None if there is none."""
    return Volume.objects.select_related("project").filter(project=project, name=name).first()


def unfinished_uses(volume: Volume) -> QuerySet[VolumeUse]:
    """Return the mounts of a volume by unfinished jobs."""
    return volume.uses.exclude(job__state__in=FINAL_STATES).select_related("job").order_by("job__submit_rank")


def mounted_by(job_id: Any) -> list[dict[str, Any]]:
    """Return the volumes that a job (by id) mounts, sorted by mount path: {"id", "name", "mount_path",
    "read_only"}."""
    uses = VolumeUse.objects.filter(job=job_id).order_by("mount_path")
    names = {
        "id": "volume_id",
        "name": "volume__name",
        "mount_path": "mount_path",
        "read_only": "is_read_only",
    }
    return [dict(zip(names, row, strict=True)) for row in uses.values_list(*names.values())]


def running_jobs(volume: Volume) -> list[str]:
    """Return the ids of the jobs whose pods mount the volume now."""
    return _with_pods(volume.uses.all())


def writing_jobs(volume: Volume) -> list[str]:
    """Return the ids of the jobs whose pods may write to the volume now."""
    return _with_pods(volume.uses.filter(is_read_only=False))


def writing_pods(volume: Volume) -> frozenset[str]:
    """Return the pods that may write to the volume, as "<job id>.<rank>"."""
    uses = volume.uses.filter(
        is_read_only=False, job__pods__isnull=False, job__pods__released_at__isnull=True
    )
    return frozenset(f"{job}.{rank}" for job, rank in uses.values_list("job_id", "job__pods__rank"))


def _with_pods(uses: QuerySet[VolumeUse]) -> list[str]:
    held = uses.filter(job__pods__isnull=False, job__pods__released_at__isnull=True)
    return sorted({str(job) for job in held.values_list("job_id", flat=True)})


def volume_rows(rows: QuerySet[Volume]) -> list[Volume]:
    """Return the rows of the query with the relations that `volume_shapes` needs."""
    return list(rows.select_related("project__cluster"))


def volume_shapes(volumes: Sequence[Volume]) -> list[dict[str, Any]]:
    """Return volumes in REST form, with the unfinished jobs that mount them; at most six more queries for
    any number."""
    uses: defaultdict[Any, list[VolumeUse]] = defaultdict(list)
    for use in _first_uses(volumes):
        uses[use.volume_id].append(use)
    progress = progress_of(VOLUME, [volume.pk for volume in volumes if volume.state != READY])
    due = due_jobs([volume.pk for volume in volumes])
    # A cluster's storage class may have the same name as one configured here.
    ours = {volume.storage_class for volume in volumes if not claims_volumes(volume.project)}
    classes = storage_classes_named(ours)
    return [
        _volume_shape(
            volume,
            uses[volume.pk],
            progress.get(str(volume.pk)),
            None if claims_volumes(volume.project) else classes[volume.storage_class],
        )
        | {"snapshots_due_for": due[volume.pk][1] if volume.pk in due else None}
        for volume in volumes
    ]


def volume_shape(volume: Volume) -> dict[str, Any]:
    """Return one volume in REST form."""
    return volume_shapes([volume])[0]


def progress_of(subject: str, keys: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Return the progress of unfinished commands about these subjects, by subject key. `subject`: the commands'
    subject kind; omits commands without progress."""
    if not keys:
        return {}
    rows = Command.objects.unfinished().filter(
        subject_kind=subject, subject_id__in=[str(key) for key in keys]
    )
    return {
        subject_id: progress
        for subject_id, progress in rows.values_list("subject_id", "progress")
        if progress
    }


def _first_uses(volumes: Sequence[Volume]) -> QuerySet[VolumeUse]:
    """Return the mounts of these volumes by unfinished jobs, for each volume at most USES_SHOWN, in the order in which
    the jobs were submitted."""
    rows = VolumeUse.objects.filter(volume__in=[volume.pk for volume in volumes])
    place = Window(RowNumber(), partition_by="volume", order_by="job__submit_rank")
    rows = rows.exclude(job__state__in=FINAL_STATES).annotate(place=place).filter(place__lte=USES_SHOWN)
    # Without the specs of the jobs, of which there may be thousands.
    columns = ("volume_id", "mount_path", "is_read_only", "job__name", "job__state")
    return rows.select_related("job").only(*columns).order_by("job__submit_rank")


def _volume_shape(
    volume: Volume,
    uses: Sequence[VolumeUse],
    progress: dict[str, Any] | None,
    found: StorageClass | None,
) -> dict[str, Any]:
    """Return a volume in REST form. `found`: its storage class, None for a cluster's own class."""
    rate = found.service_tiers.get(volume.service_tier) if found else None
    return {
        "id": str(volume.pk),
        "project": volume.project.name,
        "name": volume.name,
        "storage_class": volume.storage_class,
        "service_tier": volume.service_tier,
        "throughput_mib_per_second": None if rate is None else max(1, rate * volume.size_bytes // TIB),
        "access_mode": volume.access_mode,
        "size_bytes": volume.size_bytes,
        "used_bytes": volume.used_bytes,
        "files": volume.files,
        "measured_at": volume.measured_at,
        "is_measured_in_part": volume.is_measured_in_part,
        "is_size_enforced": found.is_size_enforced if found else None,
        "origin": volume.origin or None,
        "keep_last": volume.keep_last,
        "keep_days": volume.keep_days,
        "snapshot_minutes": volume.snapshot_minutes,
        "next_snapshot_at": volume.next_snapshot_at,
        "created_by": volume.created_by,
        "created_at": volume.created_at,
        "status": {
            "state": volume.state,
            "reason": volume.reason,
            "message": volume.message or _size_message(volume),
            "progress": progress,
        },
        "jobs": [_use_shape(use) for use in uses],
    }


def _size_message(volume: Volume) -> str:
    if volume.used_bytes is None or volume.used_bytes <= volume.size_bytes:
        return ""
    return (
        "It holds more than its size. Its storage class does not enforce sizes; resize it, or remove files."
    )


def _use_shape(use: VolumeUse) -> dict[str, Any]:
    return {
        "id": str(use.job_id),
        "name": use.job.name,
        "state": use.job.state,
        "mount_path": use.mount_path,
        "read_only": use.is_read_only,
        "is_holding": use.job.state in ACTIVE_STATES,
    }


def snapshot_rows(rows: QuerySet[Snapshot]) -> list[Snapshot]:
    """Return the rows of the query with the relations that `snapshot_shapes` needs."""
    return list(rows.select_related("project").prefetch_related("cause_rows"))


def snapshots_taken_for(causes: Sequence[str]) -> QuerySet[SnapshotCause, UUID]:
    """Return the ids of the snapshots with any of these causes, as a subquery."""
    return SnapshotCause.objects.filter(cause__in=causes).order_by().values_list("snapshot", flat=True)


def snapshot_shapes(snapshots: Sequence[Snapshot]) -> list[dict[str, Any]]:
    """Return snapshots in REST form; at most one more query for any number."""
    progress = progress_of(SNAPSHOT, [snapshot.pk for snapshot in snapshots if snapshot.state != READY])
    return [_snapshot_shape(snapshot, progress.get(str(snapshot.pk))) for snapshot in snapshots]


def snapshot_shape(snapshot: Snapshot) -> dict[str, Any]:
    """Return one snapshot in REST form."""
    return snapshot_shapes([snapshot])[0]


def _snapshot_shape(snapshot: Snapshot, progress: dict[str, Any] | None) -> dict[str, Any]:
    causes = snapshot.causes
    return {
        "id": str(snapshot.pk),
        "name": str(snapshot),
        "number": snapshot.number,
        "project": snapshot.project.name,
        "volume": snapshot.volume_name,
        "volume_id": str(snapshot.volume_id) if snapshot.volume_id else None,
        "storage_class": snapshot.storage_class,
        "volume_bytes": snapshot.volume_bytes,
        "cause": causes[0],
        "causes": causes,
        "job_id": str(snapshot.job_id) if snapshot.job_id else None,
        "job": snapshot.job_name or None,
        "attempt": snapshot.attempt or None,
        "progress": snapshot.progress,
        # Before it is ready, the column has what a later try would write.
        "consistency": (snapshot.ready_at and snapshot.consistency) or None,
        "files": snapshot.files,
        "size_bytes": snapshot.size_bytes,
        "new_bytes": snapshot.new_bytes,
        "created_by": snapshot.created_by,
        "created_at": snapshot.created_at,
        "ready_at": snapshot.ready_at,
        "status": {
            "state": snapshot.state,
            "reason": snapshot.reason,
            "message": snapshot.message,
            "progress": progress,
        },
    }
