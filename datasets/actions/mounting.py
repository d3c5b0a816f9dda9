"""Volumes of jobs that are being submitted: validate, lock and create them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction

from controlplane.access import Actor
from controlplane.actions.audit import write_audits
from controlplane.actions.errors import Conflict
from controlplane.loop.wake import wake
from controlplane.models import Command, Event, Project
from datasets.actions.volumes import PROVISION, about, new_volume, refuse_cluster, volume_event
from datasets.models import Volume, VolumeUse
from datasets.models.volumes import CREATING, MANY_JOBS, ONE_JOB, READY
from datasets.queries.volumes import VOLUME, claims_volumes
from jobs.fields.mounts import is_volume

Spec = dict[str, Any]
# Limit on a volume's name, in characters.
LONGEST_NAME = 63


def volume_refusals(
    project: Project, spec: Mapping[str, Any], known: Mapping[str, Volume]
) -> Iterator[tuple[str, str, str]]:
    """Yield (pointer, code, detail) for each refused volume of a job's spec. `known`: the project's volumes
    by name."""
    wanted = [(place, mount) for place, mount in enumerate(spec["volumes"]) if is_volume(mount)]
    if spec["snapshot_on"] and not wanted:
        yield "/snapshot_on", "no_volume", "Only volumes have snapshots; mount one, or leave snapshot_on out."
    if wanted and (words := refuse_cluster(project)):
        yield "/volumes", "volumes_not_supported", words
        return
    seen, is_claimed = set[str](), bool(wanted) and claims_volumes(project)
    for place, mount in wanted:
        if "new" in mount:
            # A cluster's own storage class is checked when the claim is created.
            if not is_claimed and mount["new"]["storage_class"] not in settings.STORAGE_CLASSES:
                words = f"The storage classes are: {', '.join(settings.STORAGE_CLASSES)}."
                yield f"/volumes/{place}/new/storage_class", "no_such_class", words
            continue
        name, volume = mount["volume"], known.get(mount["volume"])
        if volume is None:
            words = f"{project.name} has no volume {name}. Create it: yard volume create {name} --size 10Gi"
            yield f"/volumes/{place}/volume", "volume_unknown", words
        elif volume.state not in (READY, CREATING):
            yield (
                f"/volumes/{place}/volume",
                "volume_not_ready",
                f"{name} is {volume.state}. {volume.message}".strip(),
            )
        elif name in seen:
            yield (
                f"/volumes/{place}/volume",
                "mounted_twice",
                f"{name} is mounted twice; a job can mount it once only.",
            )
        seen.add(name)


def known_volumes(project: Project, specs: Sequence[Mapping[str, Any]]) -> dict[str, Volume]:
    """Return the project's existing volumes that these specs name, by name."""
    names = {mount["volume"] for spec in specs for mount in spec["volumes"] if mount.get("volume")}
    return {one.name: one for one in Volume.objects.filter(project=project, name__in=names)} if names else {}


def bind_volumes(project: Project, specs: Sequence[Spec], actor: Actor) -> list[Volume]:
    """Lock the volumes that jobs mount until the transaction ends, create requested ones, and write the volumes' ids
    into the specs. Return the created ones, for `volumes_created`. Raises Conflict for a volume that was deleted
    since it was looked up, and if the name of a new one is in use."""
    mounts = [(spec, mount) for spec in specs for mount in spec["volumes"] if is_volume(mount)]
    if not mounts:
        return []
    names = {mount["volume"] for _, mount in mounts if "volume" in mount}
    rows = Volume.objects.filter(project=project, name__in=names, state__in=(READY, CREATING))
    # Locked in key order, as by every writer of several rows, so that writers cannot deadlock.
    found = {one.name: one for one in rows.order_by("pk").select_for_update(no_key=True)}
    if gone := names - set(found):
        raise Conflict("volume_gone", f"The volume {min(gone)} was deleted meanwhile.")
    made = _create(project, mounts, actor)
    for place, (_, mount) in enumerate(mounts):
        volume = made.get(place) or found[mount["volume"]]
        mount.pop("new", None)
        mount.update(volume=volume.name, volume_id=str(volume.pk), storage_class=volume.storage_class)
        mount.setdefault("read_only", False)
    return list(made.values())


def volumes_created(volumes: Sequence[Volume], actor: Actor) -> None:
    """Write audit rows and events of volumes that a submission created. Call it after the submission's other
    rows: events are appended last."""
    if volumes:
        write_audits(actor, "volume.create", VOLUME, {str(one.pk): about(one) for one in volumes})
        Event.objects.append([volume_event("volume.created", one, actor.name) for one in volumes])


def note_uses(jobs: Sequence[Any]) -> None:
    """Write a row for each volume that new jobs mount, which protects it from deletion."""
    uses = [
        VolumeUse(
            volume_id=mount["volume_id"],
            job=job,
            mount_path=mount["mount_path"],
            is_read_only=mount["read_only"],
            snapshot_on=list(job.spec["snapshot_on"]),
            is_watched=bool(job.spec["snapshot_on"]) and not mount["read_only"],
        )
        for job in jobs
        for mount in job.spec["volumes"]
        if is_volume(mount)
    ]
    if uses:
        VolumeUse.objects.bulk_create(uses)


def _create(project: Project, mounts: Sequence[tuple[Spec, Spec]], actor: Actor) -> dict[int, Volume]:
    """Create the volumes that `mounts`, pairs of a job's spec and its mount, request; return them by their index in
    `mounts`. Two statements for any number. Raises Conflict if a name is in use."""
    wanted = [(place, spec, mount["new"]) for place, (spec, mount) in enumerate(mounts) if "new" in mount]
    if not wanted:
        return {}
    taken = set(Volume.objects.filter(project=project).values_list("name", flat=True))
    made: dict[int, Volume] = {}
    for place, spec, new in wanted:
        name = new.get("name") or _free_name(spec["name"], taken)
        if new.get("name") in taken:
            raise Conflict(
                "name_in_use", f"{project.name} has a volume named {name} already; choose another name."
            )
        taken.add(name)
        mode = new.get("access_mode") or (MANY_JOBS if spec["workers"] > 1 else ONE_JOB)
        made[place] = new_volume(project, {**new, "name": name, "access_mode": mode}, actor, {})
    try:
        with transaction.atomic():
            Volume.objects.bulk_create(made.values())
    # The names were read without a lock, so another submission may have taken one since.
    except IntegrityError as error:
        raise Conflict("name_in_use", "A volume of that name was created meanwhile; submit again.") from error
    Command.objects.bulk_create(
        Command(kind=PROVISION, subject_kind=VOLUME, subject_id=str(volume.pk)) for volume in made.values()
    )
    wake()
    return made


def _free_name(job: str, taken: set[str]) -> str:
    name, number = job, 2
    while name in taken:
        end = f"-{number}"
        name, number = job[: LONGEST_NAME - len(end)].rstrip("-") + end, number + 1
    return name
