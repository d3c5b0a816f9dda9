"""Verbs on saved subsets of versions. Each is one transaction with one event."""

from dataclasses import dataclass

from django.db import IntegrityError, transaction

from controlplane.access import Actor, reread
from controlplane.actions.audit import write_audit
from controlplane.actions.errors import Conflict, Invalid, invalid
from controlplane.notation import some_of
from datasets.actions.datasets import dataset_happened
from datasets.manifests import Manifest
from datasets.models import DatasetVersion
from datasets.queries.caches import users_of, uses_of
from datasets.queries.datasets import shown, subset_rows
from datasets.queries.lake import in_use, lake_of, manifest_named
from datasets.selection import PathsUnknown, Selection, misplaced, select
from datasets.storage.base import ContentMissing


@dataclass(frozen=True, slots=True)
class NewSubset:
    """A subset to be saved: the selection, and the manifest of the selected files, which the lake has."""

    version: DatasetVersion
    selection: Selection
    manifest: Manifest


def new_subset(version: DatasetVersion, selection: Selection) -> NewSubset:
    """Return the selected files of a version for `save_subset`, and store their manifest. Writes no rows. Waits for the
    lake: call it outside of transactions. Raises Invalid if `version` is itself a subset, if the selection is empty,
    lists paths that the version lacks, or has a pattern that matches only below other directories; Conflict if the lake
    has lost the version's manifest."""
    if version.subset:
        raise invalid("/version", "is_a_subset", f"{version} is a subset; make subsets of {version.parent}.")
    chosen = _chosen(version, selection)
    lake = lake_of(version.dataset.project)
    # Collections keep young manifests, and the contents belong to the version, which exists.
    with in_use(lake):
        lake.put_manifest(chosen.hash, chosen.encode())
    return NewSubset(version, selection, chosen)


def save_subset(new: NewSubset, name: str, *, actor: Actor) -> tuple[DatasetVersion, bool]:
    """Save a subset from `new_subset` under a name. Return it and whether it is new: an existing subset with the same
    name and files is returned. Raises Conflict if the name is in use for other files."""
    found = subset_rows(new.version).filter(subset=name).first()
    if found is None:
        return _create(new, name, actor), True
    if found.manifest != new.manifest.hash:
        raise _in_use(new.version, name)
    return found, False


def delete_subset(subset: DatasetVersion, *, actor: Actor) -> None:
    """Delete a subset with its caches; its version stays. Raises Conflict while unfinished jobs mount it."""
    dataset = subset.dataset
    with transaction.atomic():
        # Submissions hold this lock too: they either commit first and are counted here, or find the subset
        # deleted.
        reread(dataset, lock=True)
        uses = uses_of([subset])
        if uses.exists():
            users = users_of(uses, dataset.project)
            raise Conflict("subset_in_use", f"{subset} is used by {users}; delete it afterwards.")
        write_audit(actor, "dataset.delete_subset", "dataset", str(dataset.pk), before={"name": str(subset)})
        subset.delete()
        dataset_happened("dataset.subset_deleted", dataset, actor, subset=subset.name)


def _chosen(version: DatasetVersion, selection: Selection) -> Manifest:
    try:
        manifest = manifest_named(version.dataset.project, version.manifest)
        chosen = select(manifest, selection)
        _refuse_misplaced(version, manifest, selection)
    except ContentMissing as error:
        raise Conflict("manifest_missing", f"{error} Restore the lake from its backup.") from error
    except PathsUnknown as error:
        raise _unknown(version, error) from error
    if not len(chosen):
        detail = f"No file of {version} is selected; it has {version.files} files. See: yard dataset files {version}"
        raise invalid("/include", "nothing_selected", detail)
    return chosen


def _refuse_misplaced(version: DatasetVersion, manifest: Manifest, selection: Selection) -> None:
    """Raise Invalid for patterns that would leave files out, or in, without a word."""
    for field, patterns in (("include", selection.include), ("exclude", selection.exclude)):
        if wrong := misplaced(manifest, patterns):
            pattern = shown(wrong[0])
            detail = (
                f"No file at the top of {version} matches {pattern}, but files of deeper directories would. For these:"
                f" **/{pattern}; if the top is meant: /{pattern}"
            )
            raise invalid(f"/{field}", "matches_deeper", detail)


def _unknown(version: DatasetVersion, error: PathsUnknown) -> Invalid:
    named = some_of(error.paths, lambda path: repr(shown(path)[:120]))
    return invalid("/paths", "no_such_path", f"{version} has no file {named}.")


def _create(new: NewSubset, name: str, actor: Actor) -> DatasetVersion:
    version, selection, chosen = new.version, new.selection, new.manifest
    about = {
        "include": [shown(one) for one in selection.include],
        "exclude": [shown(one) for one in selection.exclude],
        "paths": len(selection.paths),
    }
    try:
        with transaction.atomic():
            subset = DatasetVersion.objects.create(
                dataset=version.dataset,
                number=version.number,
                parent=version,
                subset=name,
                selection=about,
                manifest=chosen.hash,
                author=actor.name,
                files=len(chosen),
                size_bytes=chosen.size_bytes,
                files_removed=version.files - len(chosen),
            )
            audited = {"name": subset.name, **about}
            write_audit(actor, "dataset.save_subset", "dataset", str(version.dataset_id), after=audited)
            dataset_happened("dataset.subset_saved", version.dataset, actor, subset=subset.name)
    except IntegrityError as error:
        raise _in_use(version, name) from error
    return subset


def _in_use(version: DatasetVersion, name: str) -> Conflict:
    detail = (
        f"{version} has a subset {name} with other files; a subset is never changed: choose another name."
    )
    return Conflict("name_in_use", detail)
