"""Verbs on snapshots. Each is one transaction with one event; file operations are done by commands."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from controlplane.access import Actor, reread
from controlplane.actions.audit import write_audit
from controlplane.actions.errors import Conflict
from controlplane.actions.events import announce
from controlplane.fields import LONGEST_MESSAGE as LONGEST_EVENT
from controlplane.models import Command, Event, Project
from datasets.actions.volumes import create_volume, refuse_while_copied
from datasets.models import Snapshot, SnapshotCause, SnapshotNumber, Volume
from datasets.models.volumes import DELETING, FAILED, PENDING, READY
from datasets.queries.volumes import SNAPSHOT
from datasets.storage.volumes import Taken
from jobs.models import Job

TAKE, REMOVE = "datasets.take_snapshot", "datasets.remove_snapshot"
REQUEST = "request"
# Limit per volume; storage systems have one too (1,023 on ONTAP).
SNAPSHOTS_MOST = 1000
# The length of the column: PostgreSQL refuses a longer text, and the whole transaction with it.
LONGEST_MESSAGE = 1000


def take_snapshot(
    volume: Volume,
    *,
    actor: Actor,
    causes: Sequence[str] = (REQUEST,),
    mark: str = "",
    job: Job | None = None,
) -> Snapshot:
    """Create a pending snapshot and the command that takes it. `causes`: what it is taken for, most important first;
    `mark`: the occurrences of events, "" for none; `job`: that whose progress is recorded; None: the one that mounts
    the volume. Raises Conflict if the volume is not ready or has too many snapshots, NotVisible if it is gone."""
    with transaction.atomic():
        reread(volume, lock=True)
        if volume.state != READY:
            raise Conflict(
                "volume_not_ready", f"{volume.name} is {volume.state}; no snapshot can be taken of it."
            )
        if volume.snapshots.count() >= SNAPSHOTS_MOST:
            detail = f"{volume.name} has {SNAPSHOTS_MOST} snapshots; delete some first."
            raise Conflict("too_many_snapshots", detail)
        snapshot = Snapshot.objects.create(
            project_id=volume.project_id,
            volume=volume,
            volume_name=volume.name,
            number=_next_number(volume.project_id, volume.name),
            storage_class=volume.storage_class,
            volume_bytes=volume.size_bytes,
            mark=mark,
            created_by=actor.name,
            **_about_job(job or _writer(volume)),
        )
        SnapshotCause.objects.bulk_create(SnapshotCause(snapshot=snapshot, cause=cause) for cause in causes)
        Command.objects.create(kind=TAKE, subject_kind=SNAPSHOT, subject_id=str(snapshot.pk))
        write_audit(actor, "snapshot.create", SNAPSHOT, str(snapshot.pk), after=_about(snapshot))
        happened("snapshot.created", snapshot, actor.name)
    return snapshot


def restore_snapshot(snapshot: Snapshot, name: str, *, access_mode: str = "", actor: Actor) -> Volume:
    """Create a volume from a snapshot; the snapshot and its volume are unchanged. `access_mode`: "" for that of its
    volume. Raises Conflict if the snapshot is not ready, and as `create_volume`."""
    with transaction.atomic():
        reread(snapshot, lock=True)
        if snapshot.state != READY:
            raise Conflict(
                "snapshot_not_ready", f"{snapshot} is {snapshot.state}; restore it when it is ready."
            )
        source = snapshot.volume
        fields = {"name": name, "size": snapshot.volume_bytes, "storage_class": snapshot.storage_class}
        if source is not None:
            fields |= {"access_mode": source.access_mode, "service_tier": source.service_tier}
        if access_mode:
            fields["access_mode"] = access_mode
        origin = {
            "kind": SNAPSHOT,
            "id": str(snapshot.pk),
            "name": str(snapshot),
            "size_bytes": snapshot.size_bytes,
            "volume": snapshot.volume_name,
            "job_id": str(snapshot.job_id) if snapshot.job_id else None,
            "job": snapshot.job_name,
        }
        return create_volume(snapshot.project, fields, actor=actor, origin=origin)


def delete_snapshot(snapshot: Snapshot, *, actor: Actor) -> None:
    """Start the removal of a snapshot; files shared with other snapshots stay. Does nothing if that has begun.
    Raises Conflict while a volume is being created from it."""
    with transaction.atomic():
        reread(snapshot, lock=True)
        if snapshot.state == DELETING:
            return
        refuse_while_copied(SNAPSHOT, str(snapshot.pk), str(snapshot))
        # Otherwise a pending snapshot could still be taken after its removal.
        Command.objects.about(SNAPSHOT, snapshot.pk).cancel()
        Snapshot.objects.filter(pk=snapshot.pk).update(state=DELETING)
        reread(snapshot)
        Command.objects.create(kind=REMOVE, subject_kind=SNAPSHOT, subject_id=str(snapshot.pk))
        write_audit(actor, "snapshot.delete", SNAPSHOT, str(snapshot.pk), before=_about(snapshot))
        happened("snapshot.deleting", snapshot, actor.name)


def snapshot_ready(snapshot_id: str, taken: Taken, consistency: str) -> None:
    """Mark a pending snapshot (by id) as taken. `consistency`: a constant of command_handlers.snapshots: nothing was
    writing, all programs had paused, or neither. Call it in the transaction that ends the command."""
    fields = {
        "files": taken.files,
        "size_bytes": taken.size_bytes,
        "reason": "",
        "new_bytes": taken.new_bytes,
        "message": taken.notes[:LONGEST_MESSAGE],
        "consistency": consistency,
        "ready_at": timezone.now(),
    }
    if Snapshot.objects.filter(pk=snapshot_id, state=PENDING).update(state=READY, **fields):
        happened("snapshot.ready", Snapshot.objects.get(pk=snapshot_id), "system")


def snapshot_cut(snapshot_id: str, consistency: str) -> None:
    """Write the consistency that a pending snapshot (by id) has if its storage has the content before the next try."""
    Snapshot.objects.filter(pk=snapshot_id, state=PENDING).update(consistency=consistency)


def snapshot_waits(snapshot_id: str, reason: str, message: str) -> None:
    """Write why a pending snapshot (by id) is not taken yet: a reason code and a message. It is tried again."""
    words = {"reason": reason, "message": message[:LONGEST_MESSAGE]}
    with transaction.atomic():
        # Only a new problem makes an event, because it is retried many times.
        rows = Snapshot.objects.filter(pk=snapshot_id, state=PENDING).exclude(**words)
        if rows.update(**words):
            happened("snapshot.waits", Snapshot.objects.get(pk=snapshot_id), "system")


def snapshot_failed(snapshot_id: str, reason: str, message: str) -> None:
    """Mark a pending snapshot (by id) as failed, with a reason code and a message. Call it in the transaction
    that ends the command."""
    words = {"reason": reason, "message": message[:LONGEST_MESSAGE]}
    if Snapshot.objects.filter(pk=snapshot_id, state=PENDING).update(state=FAILED, **words):
        happened("snapshot.failed", Snapshot.objects.get(pk=snapshot_id), "system")


def snapshot_not_removed(snapshot_id: str, reason: str, message: str) -> None:
    """Write why a deleted snapshot (by id) still exists: a reason code, and a message to which the volumes made
    from it are added. The removal is retried."""
    made = Volume.objects.filter(origin__kind=SNAPSHOT, origin__id=snapshot_id).order_by("name")
    names = ", ".join(made.values_list("name", flat=True)[:10])
    about = f"Volumes made of it: {names}. " if names else ""
    words = {"reason": reason, "message": f"{about}{message}"[:LONGEST_MESSAGE]}
    with transaction.atomic():
        # Only a new problem makes an event, because the removal is retried many times.
        rows = Snapshot.objects.filter(pk=snapshot_id, state=DELETING).exclude(**words)
        if rows.update(**words):
            happened("snapshot.not_removed", Snapshot.objects.get(pk=snapshot_id), "system")


def snapshot_gone(snapshot_id: str) -> None:
    """Delete the row of a snapshot (by id) whose files were removed. Call it in the transaction that ends the
    command."""
    snapshot = Snapshot.objects.filter(pk=snapshot_id, state=DELETING).first()
    if snapshot is not None:
        # Built before the deletion, because Django clears the key of a deleted object.
        event = _event("snapshot.deleted", snapshot, "system")
        snapshot.delete()
        announce(event)


def find_snapshot(project: Project, name: str) -> Snapshot | None:
    """Return a project's snapshot by its name, such as data@3; None if there is none."""
    volume, _, number = name.rpartition("@")
    # A longer number does not fit into the database's column.
    if not number.isdecimal() or len(number) > 9:
        return None
    return Snapshot.objects.filter(project=project, volume_name=volume, number=int(number)).first()


def happened(kind: str, snapshot: Snapshot, actor: str) -> None:
    """Append a snapshot's event and wake the loop. Call it last in the transaction."""
    announce(_event(kind, snapshot, actor))


def _next_number(project_id: int, volume_name: str) -> int:
    """Return the next unused snapshot number of a volume name in a project (by id). The caller must hold the
    volume's lock."""
    counter, _ = SnapshotNumber.objects.get_or_create(project_id=project_id, volume_name=volume_name)
    # The name has snapshots from before numbers were stored in SnapshotNumber.
    earlier = Snapshot.objects.filter(project=project_id, volume_name=volume_name)
    counter.last = max(counter.last, earlier.aggregate(last=Max("number", default=0))["last"]) + 1
    counter.save(update_fields=["last"])
    return counter.last


def _writer(volume: Volume) -> Job | None:
    """Return the newest job whose pods mount the volume, or None."""
    held = volume.uses.filter(job__pods__isnull=False, job__pods__released_at__isnull=True)
    use = held.select_related("job").order_by("-job__submit_rank").first()
    return use.job if use else None


def _about_job(job: Job | None) -> Mapping[str, Any]:
    if job is None:
        return {}
    return {"job": job, "job_name": job.name, "attempt": job.attempt, "progress": job.progress}


def _about(snapshot: Snapshot) -> dict[str, Any]:
    return {"name": str(snapshot), "cause": ",".join(snapshot.causes), "job": snapshot.job_name}


def _event(kind: str, snapshot: Snapshot, actor: str) -> Event:
    verb = kind.partition(".")[2]
    has_failed = verb == FAILED
    why = f" {snapshot.message}" if has_failed else ""
    return Event(
        kind=kind,
        project_id=snapshot.project_id,
        job_id=snapshot.job_id,
        actor=actor,
        reason=snapshot.reason if has_failed else "",
        message=f"Snapshot {snapshot}: {verb}.{why}"[:LONGEST_EVENT],
        data={"snapshot": str(snapshot.pk), "name": str(snapshot), "volume": str(snapshot.volume_id or "")},
    )
