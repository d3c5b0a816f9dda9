"""Verbs on datasets. Each is one transaction with one event."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction

from controlplane.access import Actor, NotVisible, reread
from controlplane.actions.audit import write_audit, write_fields
from controlplane.actions.errors import Conflict, invalid
from controlplane.actions.events import announce
from controlplane.models import Event, Project
from datasets.manifests import Diff, Manifest, ManifestInvalid, checked, compare, decode
from datasets.models import Dataset, DatasetTag, DatasetVersion
from datasets.queries.caches import users_of, uses_of
from datasets.queries.lake import in_use, lake_of, manifest_named, remember_manifest
from datasets.storage.base import ContentMissing


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version to be created, as it was found in the lake. `parent`: None for the first version; `diff`: how
    `manifest` differs from the parent's."""

    dataset: Dataset
    parent: DatasetVersion | None
    manifest: Manifest
    diff: Diff


def create_dataset(project: Project, fields: Mapping[str, Any], *, actor: Actor) -> Dataset:
    """Create an empty dataset from validated `fields`. Raises Conflict if its name is in use."""
    try:
        with transaction.atomic():
            dataset = Dataset.objects.create(project=project, created_by=actor.name, **fields)
            write_audit(actor, "dataset.create", "dataset", str(dataset.pk), after=dict(fields))
            dataset_happened("dataset.created", dataset, actor)
    except IntegrityError as error:
        detail = f"{project.name} has a dataset named {fields['name']} already; choose another name."
        raise Conflict("name_in_use", detail) from error
    return dataset


def edit_dataset(dataset: Dataset, changes: Mapping[str, Any], *, actor: Actor) -> Dataset:
    """Change a dataset's description, or whether every user may read it, and return it. `changes`: validated
    values by field."""
    with transaction.atomic():
        reread(dataset, lock=True)
        before = write_fields(dataset, changes)
        write_audit(actor, "dataset.edit", "dataset", str(dataset.pk), before=before, after=dict(changes))
        dataset_happened("dataset.edited", dataset, actor)
    return dataset


def delete_dataset(dataset: Dataset, *, actor: Actor) -> None:
    """Delete a dataset with all its versions. Its content is collected later, unless another version uses it.
    Raises Conflict while unfinished jobs mount it."""
    with transaction.atomic():
        # Submissions hold this lock too: they either commit first and are counted here, or find the dataset
        # deleted.
        reread(dataset, lock=True)
        uses = uses_of(dataset.versions.all())
        if uses.exists():
            users = users_of(uses, dataset.project)
            raise Conflict("dataset_in_use", f"{dataset.name} is used by {users}; delete it afterwards.")
        write_audit(actor, "dataset.delete", "dataset", str(dataset.pk), before={"name": dataset.name})
        # Built before the deletion, because Django clears the key of a deleted object.
        event = _event("dataset.deleted", dataset, actor)
        dataset.delete()
        announce(event)


def keep_manifest(dataset: Dataset, stored: bytes) -> tuple[Manifest, int]:
    """Return the manifest of a future version, and the number of its contents that the lake lacks; store it if
    that is 0. `stored`: encoded. Raises Invalid if it is malformed or has unsafe paths."""
    try:
        manifest = checked(decode(stored))
    except ManifestInvalid as error:
        raise invalid("/", "bad_manifest", str(error)) from error
    lake, base = lake_of(dataset.project), _newest_manifest(dataset)
    lacking = lake.lacking_of(manifest, base, compare(base, manifest))
    if not lacking:
        lake.put_manifest(manifest.hash, stored)
        remember_manifest(dataset.project, manifest)
    return manifest, len(lacking)


def commit_version(
    dataset: Dataset, manifest_hash: str, parent: int, message: str, *, actor: Actor
) -> tuple[DatasetVersion, bool]:
    """Create a version: `new_version`, then `save_version`."""
    return save_version(new_version(dataset, manifest_hash, parent), message, actor=actor)


def new_version(dataset: Dataset, manifest_hash: str, parent: int) -> NewVersion:
    """Return a version for `save_version`, made from the stored manifest with this hash, as successor of the version
    number `parent` (0: the first). Writes no rows. Waits for a collection of the lake: call it outside of transactions.
    Raises Conflict: `parent_moved` if the parent is not the newest version any more, `content_missing` if the manifest
    or a content is not stored."""
    with in_use(lake_of(dataset.project)):
        return _to_commit(dataset, manifest_hash, parent)


def save_version(new: NewVersion, message: str, *, actor: Actor) -> tuple[DatasetVersion, bool]:
    """Write a version from `new_version`. Return (version, whether it is new); if nothing changed, the parent. Raises
    Conflict `parent_moved` if another version was created meanwhile."""
    if new.parent is not None and new.parent.manifest == new.manifest.hash:
        return new.parent, False
    return _commit(new, message, actor), True


def tag_version(dataset: Dataset, name: str, version: DatasetVersion, *, actor: Actor) -> DatasetTag:
    """Create the tag `name` for a version, or move it there. Raises Invalid if `version` is a subset, and if the
    name is `latest` or a number."""
    if version.subset:
        raise invalid("/version", "is_a_subset", "Tags name whole versions; a subset has a name of its own.")
    if name == "latest" or name.isdecimal():
        raise invalid("/name", "reserved_name", "A tag cannot be `latest` or a number, which name versions.")
    with transaction.atomic():
        tag, _ = DatasetTag.objects.update_or_create(
            dataset=dataset, name=name, defaults={"version": version}
        )
        write_audit(actor, "dataset.tag", "dataset", str(dataset.pk), after={name: version.number})
        dataset_happened("dataset.tagged", dataset, actor, tag=name, version=version.number)
    return tag


def remove_tag(dataset: Dataset, name: str, *, actor: Actor) -> None:
    """Remove a tag. Raises NotVisible if it does not exist."""
    with transaction.atomic():
        if not DatasetTag.objects.filter(dataset=dataset, name=name).delete()[0]:
            raise NotVisible(f"{dataset.name} has no tag {name!r}.")
        write_audit(actor, "dataset.untag", "dataset", str(dataset.pk), before={"tag": name})
        dataset_happened("dataset.untagged", dataset, actor, tag=name)


def _to_commit(dataset: Dataset, manifest_hash: str, parent: int) -> NewVersion:
    reread(dataset)
    if dataset.latest != parent:
        raise _moved(dataset, parent)
    before = dataset.versions.whole().filter(number=parent).first()
    lake = lake_of(dataset.project)
    try:
        # Read from the lake, not from this process's cache: the manifest may have been collected since it was
        # cached.
        if not lake.renew_manifest(manifest_hash):
            raise ContentMissing(f"The lake has no manifest {manifest_hash}.")
        manifest = manifest_named(dataset.project, manifest_hash)
    except ContentMissing as error:
        raise Conflict("content_missing", f"{error} Send it, then commit again.") from error
    old = _manifest_of(before)
    # The parent's contents are in use; only those that are new may have been collected since they were sent.
    diff = compare(old, manifest)
    # The version is written after `in_use` ends, so a collection in between does not see it.
    # Collections keep young content: `keep_of` makes the version's content young, however old it is.
    lacking = lake.keep_of(manifest, old, diff)
    if lacking:
        detail = f"{len(lacking)} contents of this version are not in the lake; send them, then commit again."
        raise Conflict("content_missing", detail)
    return NewVersion(dataset, before, manifest, diff)


def _newest_manifest(dataset: Dataset) -> Manifest:
    """Return the manifest of a dataset's newest version; see `_manifest_of`."""
    return _manifest_of(dataset.versions.whole().filter(number=dataset.latest).first())


def _manifest_of(version: DatasetVersion | None) -> Manifest:
    """Return a version's manifest; an empty one for None, or if it is lost: the next version then counts all its
    files as added."""
    with suppress(ContentMissing):
        return manifest_named(version.dataset.project, version.manifest) if version else Manifest.empty()
    return Manifest.empty()


def _commit(new: NewVersion, message: str, actor: Actor) -> DatasetVersion:
    dataset, manifest, diff = new.dataset, new.manifest, new.diff
    number = dataset.latest + 1
    with transaction.atomic():
        moved = Dataset.objects.filter(pk=dataset.pk, latest=dataset.latest).update(latest=number)
        # Another commit has moved the dataset since `_to_commit` read it.
        if moved != 1:
            parent = dataset.latest
            reread(dataset)
            raise _moved(dataset, parent)
        dataset.latest = number
        version = DatasetVersion.objects.create(
            dataset=dataset,
            number=number,
            parent=new.parent,
            manifest=manifest.hash,
            message=message,
            author=actor.name,
            files=len(manifest),
            size_bytes=manifest.size_bytes,
            files_added=len(diff.added),
            files_changed=len(diff.changed),
            files_removed=len(diff.removed),
        )
        write_audit(actor, "dataset.commit", "dataset", str(dataset.pk), after={"version": number})
        dataset_happened("dataset.version_created", dataset, actor, version=number, files=len(manifest))
    return version


def _moved(dataset: Dataset, parent: int) -> Conflict:
    detail = (
        f"{dataset.name} is at version {dataset.latest} now, not at {parent}: it was synced meanwhile."
        f" Sync again to make a version on top of {dataset.latest}."
    )
    return Conflict("parent_moved", detail)


def dataset_happened(kind: str, dataset: Dataset, actor: Actor, **data: Any) -> None:
    """Append an event about a dataset, which updates its live topic. Needs an open transaction."""
    announce(_event(kind, dataset, actor, **data))


def _event(kind: str, dataset: Dataset, actor: Actor, **data: Any) -> Event:
    verb = kind.partition(".")[2].replace("_", " ")
    return Event(
        kind=kind,
        project_id=dataset.project_id,
        actor=actor.name,
        message=f"Dataset {dataset.name}: {verb} by {actor.name}.",
        data={"dataset": str(dataset.pk), "name": dataset.name, **data},
    )
