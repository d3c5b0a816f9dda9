"""Changes to volumes, each atomic. Work on the storage is queued as a command, whose handler records the outcome with a
`volume_*` function. A visible change appends one event; a change at the storage does so once it is applied."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.access import Actor, reread
from controlplane.actions.audit import write_audit, write_fields
from controlplane.actions.errors import Conflict, invalid
from controlplane.actions.events import announce
from controlplane.engines.kinds import engine_kind
from controlplane.fields import LONGEST_MESSAGE
from controlplane.loop.wake import wake
from controlplane.models import Command, Event, Project
from controlplane.notation import binary_bytes
from datasets.models import Volume
from datasets.models.volumes import CREATING, DELETING, FAILED, ONE_JOB, PENDING, READY
from datasets.queries.due_snapshots import due_jobs
from datasets.queries.volumes import (
    VOLUME,
    claims_volumes,
    resizes_at_storage,
    retiers_at_storage,
    running_jobs,
    storage_class_named,
    unfinished_uses,
)
from datasets.storage.claims import CLAIM_TROUBLES
from datasets.storage.volume_files import Measured

PROVISION, REMOVE, MEASURE = "datasets.provision_volume", "datasets.remove_volume", "datasets.measure_volume"
RESIZE, RETIER = "datasets.resize_volume", "datasets.retier_volume"
CHECK = "datasets.check_volume"
# Shortest and longest interval of a snapshot schedule: five minutes to a year.
SNAPSHOT_MINUTES = (5, 366 * 24 * 60)
KEEP_RULES = ("keep_last", "keep_days")


def refuse_cluster(project: Project) -> str:
    """Return why the project's cluster has no volumes, or "" if it has."""
    kind = engine_kind(project.cluster.engine)
    if kind.mounts_volumes or kind.claims_volumes:
        return ""
    return f"{project.cluster.name} mounts no volumes."


def new_volume(project: Project, fields: Mapping[str, Any], actor: Actor, origin: dict[str, Any]) -> Volume:
    """Return an unsaved volume from validated fields. `origin`: the volume or snapshot to copy, {} for an empty
    volume. Raises Invalid for a cluster without volumes, and for an unknown storage class or service tier."""
    if words := refuse_cluster(project):
        raise invalid("/project", "volumes_not_supported", words)
    name, tier = _class_and_tier(project, fields)
    return Volume(
        project=project,
        name=fields["name"],
        storage_class=name,
        service_tier=tier,
        size_bytes=fields["size"],
        access_mode=fields.get("access_mode") or ONE_JOB,
        keep_last=fields.get("keep_last"),
        keep_days=fields.get("keep_days"),
        origin=origin,
        created_by=actor.name,
    )


def _class_and_tier(project: Project, fields: Mapping[str, Any]) -> tuple[str, str]:
    """Return the storage class and service tier of a new volume. A cluster's own class is checked when the claim is
    created; "" is the cluster's default. Raises Invalid for a class or tier that does not exist."""
    classes = settings.STORAGE_CLASSES
    if claims_volumes(project):
        _refuse_tier(fields.get("service_tier"), {}, project.cluster.name)
        return fields.get("storage_class") or "", ""
    name = fields.get("storage_class") or next(iter(classes))
    if name not in classes:
        raise invalid("/storage_class", "no_such_class", f"The storage classes are: {', '.join(classes)}.")
    _refuse_tier(fields.get("service_tier"), classes[name].service_tiers, name)
    return name, fields.get("service_tier") or classes[name].default_tier


def _refuse_tier(tier: str | None, tiers: Mapping[str, int], whose: str) -> None:
    if tier and tier not in tiers:
        detail = f"The service tiers of {whose} are: {', '.join(tiers) or 'none'}."
        raise invalid("/service_tier", "no_such_tier", detail)


def create_volume(
    project: Project, fields: Mapping[str, Any], *, actor: Actor, origin: dict[str, Any] | None = None
) -> Volume:
    """Create a volume: empty, or a copy of the volume or snapshot in `origin`. Raises Invalid as `new_volume`, and
    Conflict if the name is in use or the project was moved meanwhile."""
    volume = new_volume(project, fields, actor, origin or {})
    try:
        with transaction.atomic():
            _hold_cluster(project)
            volume.save(force_insert=True)
            Command.objects.create(kind=PROVISION, subject_kind=VOLUME, subject_id=str(volume.pk))
            write_audit(actor, "volume.create", VOLUME, str(volume.pk), after=about(volume))
            happened("volume.created", volume, actor.name)
    except IntegrityError as error:
        detail = f"{project.name} has a volume named {volume.name} already; choose another name."
        raise Conflict("name_in_use", detail) from error
    return volume


def _hold_cluster(project: Project) -> None:
    """Keep a project in its cluster until the transaction ends. Raises Conflict if it has moved since it was
    read."""
    # An UPDATE without a change locks the row: a move would leave the volume behind.
    if not Project.objects.filter(pk=project.pk, cluster=project.cluster_id).update(
        cluster=project.cluster_id
    ):
        raise Conflict(
            "project_moved", f"{project.name} was moved to another cluster or deleted meanwhile; try again."
        )


def clone_volume(volume: Volume, name: str, *, access_mode: str = "", actor: Actor) -> Volume:
    """Create a volume with the content that `volume` has when the copy is made. `access_mode`: "" for that of
    `volume`. Raises Conflict if `volume` is not ready, and as `create_volume`."""
    with transaction.atomic():
        _lock_ready(volume)
        fields = {
            "name": name,
            "size": volume.size_bytes,
            "storage_class": volume.storage_class,
            "service_tier": volume.service_tier,
            "access_mode": access_mode or volume.access_mode,
        }
        origin = {"kind": VOLUME, "id": str(volume.pk), "name": volume.name}
        return create_volume(volume.project, fields, actor=actor, origin=origin)


def resize_volume(volume: Volume, size_bytes: int, *, actor: Actor) -> Volume:
    """Change the size of a volume to `size_bytes` and return it; if its storage must apply the size, queue that.
    Raises Conflict if the volume is not ready or its size is being changed, for a size below its content, and for
    a smaller one if the storage cannot shrink volumes."""
    with transaction.atomic():
        _lock_ready(volume)
        if volume.used_bytes is not None and size_bytes < volume.used_bytes:
            detail = (
                f"{volume.name} holds {binary_bytes(volume.used_bytes)}; it cannot become smaller than that."
            )
            raise Conflict("volume_too_full", detail)
        if resizes_at_storage(volume):
            return _resize_at_storage(volume, size_bytes, actor)
        return _edit(volume, {"size_bytes": size_bytes}, "volume.resized", actor)


def _resize_at_storage(volume: Volume, size_bytes: int, actor: Actor) -> Volume:
    """Queue the resize of the volume to `size_bytes`; its row gets the new size when the storage has applied it.
    Return the volume. Raises Conflict for a claim that would become smaller, and while another change of size or
    tier is unfinished."""
    if claims_volumes(volume.project) and size_bytes < volume.size_bytes:
        detail = (
            f"{volume.name} has {binary_bytes(volume.size_bytes)}; Kubernetes cannot make a volume smaller."
        )
        raise Conflict("volume_not_smaller", detail)
    return _change_at_storage(volume, RESIZE, {"size_bytes": size_bytes}, actor)


def _change_at_storage(volume: Volume, kind: str, payload: dict[str, Any], actor: Actor) -> Volume:
    commands = Command.objects.of_kinds([RESIZE, RETIER]).about(VOLUME, volume.pk)
    if commands.unfinished().exists():
        detail = f"The size or the service tier of {volume.name} is being changed; wait until that is done."
        raise Conflict("volume_in_use", detail)
    # The audit log has the earlier changes, so that their commands need not be kept.
    commands.delete()
    Command.objects.create(kind=kind, subject_kind=VOLUME, subject_id=str(volume.pk), payload=payload)
    write_audit(actor, "volume.edit", VOLUME, str(volume.pk), before=about(volume), after=payload)
    wake()
    return volume


def volume_changed(volume_id: str, kind: str, **changes: Any) -> None:
    """Write the size or tier that the storage has applied to a volume (by id), or in `message` why it has not, with an
    event of kind `kind`. Does nothing unless the volume is ready. Call it in the transaction that ends the command."""
    if Volume.objects.filter(pk=volume_id, state=READY).update(**{"message": "", **changes}):
        happened(kind, Volume.objects.get(pk=volume_id), "system")


def set_access_mode(volume: Volume, access_mode: str, *, actor: Actor) -> Volume:
    """Set whether one job or several may mount the volume at once, and return it. Raises Conflict if the volume
    is not ready, for another mode of a volume on Kubernetes, and for one job while several mount it."""
    with transaction.atomic():
        _lock_ready(volume)
        if claims_volumes(volume.project) and access_mode != volume.access_mode:
            detail = (
                "Kubernetes cannot change a claim's access mode. Make a copy with the other one:"
                f" yard volume clone {volume.name} NEW --access-mode {access_mode}"
            )
            raise Conflict("access_mode_fixed", detail)
        running = running_jobs(volume)
        if access_mode == ONE_JOB and len(running) > 1:
            names = ", ".join(use.job.name for use in unfinished_uses(volume) if str(use.job_id) in running)
            detail = f"{volume.name} is mounted by {names}; wait until at most one of them runs."
            raise Conflict("volume_in_use", detail)
        return _edit(volume, {"access_mode": access_mode}, "volume.access_mode_changed", actor)


def set_service_tier(volume: Volume, tier: str, *, actor: Actor) -> Volume:
    """Change the service tier of a volume and return it; mounts are not interrupted. Raises Invalid for a tier
    that its storage class does not have, Conflict if the volume is not ready or is being changed."""
    is_claim = claims_volumes(volume.project)
    tiers = {} if is_claim else storage_class_named(volume.storage_class).service_tiers
    if tier not in tiers:
        detail = f"The service tiers of {volume.storage_class} are: {', '.join(tiers) or 'none'}."
        raise invalid("/service_tier", "no_such_tier", detail)
    with transaction.atomic():
        _lock_ready(volume)
        if retiers_at_storage(volume):
            return _change_at_storage(volume, RETIER, {"service_tier": tier}, actor)
        return _edit(volume, {"service_tier": tier}, "volume.tier_changed", actor)


def edit_volume(volume: Volume, changes: Mapping[str, Any], *, actor: Actor) -> Volume:
    """Change the snapshot schedule and retention rules (validated values) of a volume and return it. A changed schedule
    begins now. Raises Invalid for a schedule without a rule that removes its snapshots."""
    with transaction.atomic():
        reread(volume, lock=True)
        after = {name: changes.get(name, getattr(volume, name)) for name in (*KEEP_RULES, "snapshot_minutes")}
        if after["snapshot_minutes"] and not any(after[name] for name in KEEP_RULES):
            words = "Say how many snapshots of the schedule are kept: keep_last or keep_days."
            raise invalid("/snapshot_minutes", "schedule_without_rule", words)
        is_new = after["snapshot_minutes"] != volume.snapshot_minutes
        edited = _edit(volume, changes, "volume.edited", actor)
        # If the schedule does not change, the next scheduled time stays.
        if is_new:
            minutes = volume.snapshot_minutes
            volume.next_snapshot_at = timezone.now() + timedelta(minutes=minutes) if minutes else None
            volume.save(update_fields=["next_snapshot_at"])
        return edited


def delete_volume(volume: Volume, *, actor: Actor) -> None:
    """Start the removal of a volume with its content; its snapshots stay. Does nothing if that has begun. Raises
    Conflict while unfinished jobs mount it (the message names them) or a volume or snapshot is being created from
    it."""
    with transaction.atomic():
        reread(volume, lock=True)
        if volume.state == DELETING:
            return
        users = [use.job.name for use in unfinished_uses(volume)[:10]]
        if users:
            detail = (
                f"{volume.name} is mounted by {', '.join(users)}; stop what mounts it, or wait for its end."
            )
            raise Conflict("volume_in_use", detail)
        refuse_while_copied(VOLUME, str(volume.pk), volume.name)
        _refuse_while_taken(volume)
        # Otherwise its creation or a measurement would work on a directory that is being removed.
        Command.objects.about(VOLUME, volume.pk).cancel()
        Volume.objects.filter(pk=volume.pk).update(state=DELETING, reason="", message="")
        reread(volume)
        Command.objects.create(kind=REMOVE, subject_kind=VOLUME, subject_id=str(volume.pk))
        write_audit(actor, "volume.delete", VOLUME, str(volume.pk), before=about(volume))
        happened("volume.deleting", volume, actor.name)


def refuse_while_copied(kind: str, key: str, name: str) -> None:
    """Raise Conflict while a volume is being created from the volume or snapshot (`kind`) with the id `key`;
    `name`: its name for the message."""
    making = Volume.objects.filter(state=CREATING, origin__kind=kind, origin__id=key)
    made = making.values_list("name", flat=True).first()
    if made:
        raise Conflict(
            f"{kind}_in_use", f"The volume {made} is being created from {name}; wait until it is ready."
        )


def _refuse_while_taken(volume: Volume) -> None:
    """Raise Conflict while a snapshot of the volume is being taken or is due for a job that has ended:
    deletion would leave it incomplete."""
    taken = volume.snapshots.filter(state=PENDING).first()
    if taken is not None:
        detail = (
            f"The snapshot {taken} is being taken of {volume.name}; wait until it is ready, or delete it."
        )
        raise Conflict("volume_in_use", detail)
    ended = due_jobs([volume.pk], within=None)
    if ended:
        _, job = ended[volume.pk]
        detail = f"The snapshots that {job} asked for are not written yet; try again in a moment."
        raise Conflict("volume_in_use", detail)


def volume_ready(volume_id: str, measured: Measured | None) -> None:
    """Mark a volume (by id) as created. `measured`: what it holds, None if that is not known. Call it in the
    transaction that ends the command."""
    changes = {"state": READY, "reason": "", "message": "", **_measured(measured)}
    if Volume.objects.filter(pk=volume_id, state=CREATING).update(**changes):
        happened("volume.ready", Volume.objects.get(pk=volume_id), "system")


def volume_waits(volume_id: str, reason: str, message: str) -> None:
    """Write why a volume (by id) does not exist yet: a reason code and a message. Its creation is retried."""
    _note_problem("volume.waiting", volume_id, CREATING, reason, message)


def volume_failed(volume_id: str, reason: str, message: str) -> None:
    """Mark a volume (by id) as failed: it could not be created. Call it in the transaction that ends the command."""
    words = {"reason": reason, "message": message[:LONGEST_MESSAGE]}
    if Volume.objects.filter(pk=volume_id, state=CREATING).update(state=FAILED, **words):
        happened("volume.failed", Volume.objects.get(pk=volume_id), "system")


def volume_not_removed(volume_id: str, reason: str, message: str) -> None:
    """Write why a deleted volume (by id) still exists: a reason code and a message. Its removal is retried."""
    _note_problem("volume.not_removed", volume_id, DELETING, reason, message)


def _note_problem(event: str, volume_id: str, state: str, reason: str, message: str) -> None:
    """Write a problem of a volume (by id), if it is in `state`. Appends the event only if the problem differs
    from the one in its row."""
    words = {"reason": reason, "message": message[:LONGEST_MESSAGE]}
    with transaction.atomic():
        rows = Volume.objects.filter(pk=volume_id, state=state).exclude(**words)
        if rows.update(**words):
            happened(event, Volume.objects.get(pk=volume_id), "system")


def volume_gone(volume_id: str) -> None:
    """Delete the row of a volume (by id) whose storage was removed. Call it in the transaction that ends the
    command."""
    volume = Volume.objects.select_related("project").filter(pk=volume_id, state=DELETING).first()
    if volume is not None:
        # Build the event first, since it names the row.
        event = volume_event("volume.deleted", volume, "system")
        volume.delete()
        announce(event)


def volume_checked(volume_id: str, trouble: str) -> None:
    """Mark a volume (by id) as failed with `trouble`, a problem of its claim (a code of storage.claims). "" makes
    a volume that failed by such a problem ready again. Call it in the transaction that ends the command."""
    rows = Volume.objects.filter(pk=volume_id)
    troubled = Q(state=FAILED, reason__in=CLAIM_TROUBLES)
    if not trouble:
        # A claim that is found again ends only such a problem; a volume whose creation failed stays failed.
        if rows.filter(troubled).update(state=READY, reason="", message=""):
            happened("volume.found", Volume.objects.get(pk=volume_id), "system")
        return
    words = {"reason": trouble, "message": CLAIM_TROUBLES[trouble]}
    if rows.filter(Q(state=READY) | troubled).exclude(reason=trouble).update(state=FAILED, **words):
        happened("volume.lost", Volume.objects.get(pk=volume_id), "system")


def volume_measured(volume_id: str, measured: Measured) -> None:
    """Write what a volume (by id) holds, with an event if that changed. Call it in the transaction that ends the
    command."""
    volume = Volume.objects.filter(pk=volume_id).first()
    if volume is None:
        return
    is_news = (volume.used_bytes, volume.files) != (measured.size_bytes, measured.files)
    Volume.objects.filter(pk=volume_id).update(**_measured(measured))
    # Most measurements find no change, and an event makes open pages reload.
    if is_news:
        happened("volume.measured", volume, "system")


def volume_not_measured(volume_id: str) -> None:
    """Write the time of a failed measurement of a volume (by id); otherwise it would be repeated at once."""
    Volume.objects.filter(pk=volume_id).update(is_measured_in_part=True, measured_at=timezone.now())


def happened(kind: str, volume: Volume, actor: str) -> None:
    """Append a volume's event and wake the loop. Call it last in the transaction."""
    announce(volume_event(kind, volume, actor))


def about(volume: Volume) -> dict[str, Any]:
    """Return the fields of a volume that its audit entries store."""
    return {
        "project": volume.project.name,
        "name": volume.name,
        "storage_class": volume.storage_class,
        "size_bytes": volume.size_bytes,
    }


def _edit(volume: Volume, changes: Mapping[str, Any], kind: str, actor: Actor) -> Volume:
    before = write_fields(volume, changes)
    write_audit(actor, "volume.edit", VOLUME, str(volume.pk), before=before, after=dict(changes))
    happened(kind, volume, actor.name)
    return volume


def _lock_ready(volume: Volume) -> None:
    reread(volume, lock=True)
    if volume.state != READY:
        raise Conflict("volume_not_ready", f"{volume.name} is {volume.state}. {volume.message}".strip())


def _measured(measured: Measured | None) -> dict[str, Any]:
    if measured is None:
        return {}
    return {
        "used_bytes": measured.size_bytes,
        "files": measured.files,
        "is_measured_in_part": measured.is_partial,
        "measured_at": timezone.now(),
    }


def volume_event(kind: str, volume: Volume, actor: str) -> Event:
    """Return an unsaved event about a volume."""
    verb = kind.partition(".")[2].replace("_", " ")
    return Event(
        kind=kind,
        project_id=volume.project_id,
        actor=actor,
        message=f"Volume {volume.name}: {verb}.",
        data={"volume": str(volume.pk), "name": volume.name},
    )
