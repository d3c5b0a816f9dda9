"""Read datasets and versions as plain data in REST form."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.db.models import F, QuerySet

from controlplane.models import Project
from datasets.manifests import EXECUTABLE, LINK, Child, Diff, Manifest
from datasets.models import Dataset, DatasetTag, DatasetUse, DatasetVersion
from datasets.models.datasets import VersionRows

LATEST = "latest"
# How many names a refusal of an unknown one gives.
NAMED = 10
# As `shown` writes a byte that is not UTF-8.
_ESCAPED = re.compile(rb"\\x([89a-f][0-9a-f])")
KINDS = {EXECUTABLE: "executable", LINK: "link"}


def find_version(dataset: Dataset, name: str) -> DatasetVersion | None:
    """Return the version named by a number, a tag or `latest`, or the subset named by VERSION/SUBSET; None if
    there is none."""
    name, _, subset = name.partition("/")
    if subset:
        whole = find_version(dataset, name)
        return whole and subset_rows(whole).filter(subset=subset).first()
    rows = DatasetVersion.objects.select_related("dataset__project", "parent").filter(dataset=dataset).whole()
    if name == LATEST:
        return rows.filter(number=dataset.latest).first()
    if name.isdecimal() and len(name) < 10:
        return rows.filter(number=int(name)).first()
    return rows.filter(tags__name=name).first()


def subset_rows(version: DatasetVersion) -> VersionRows:
    rows = DatasetVersion.objects.filter(dataset=version.dataset_id, number=version.number)
    return rows.exclude(subset="").select_related("dataset__project", "parent")


def find_dataset(project: Project, name: str) -> Dataset | None:
    """Return a project's dataset by name; None if there is none."""
    return Dataset.objects.select_related("project").filter(project=project, name=name).first()


def mounted_datasets(job_id: Any, visible: QuerySet[Dataset]) -> list[dict[str, Any]]:
    """Return the datasets that a job (by id) mounts, sorted by mount path: {"id", "name", "mount_path"}. `id`: None if
    the version was deleted since, or its dataset is not among the `visible`."""
    uses = list(DatasetUse.objects.filter(job=job_id).select_related("version").order_by("mount_path"))
    ids = {use.version.dataset_id for use in uses if use.version is not None}
    seen = set(visible.filter(pk__in=ids).values_list("pk", flat=True)) if ids else set()
    return [
        {
            "id": use.version.dataset_id if use.version and use.version.dataset_id in seen else None,
            "name": str(use),
            "mount_path": use.mount_path,
        }
        for use in uses
    ]


def dataset_rows(rows: QuerySet[Dataset]) -> list[Dataset]:
    """Return the rows of the query with the relations that `dataset_shapes` needs."""
    return list(rows.select_related("project"))


def dataset_shapes(datasets: Sequence[Dataset]) -> list[dict[str, Any]]:
    """Return datasets in REST form with their newest version; two queries for any number."""
    rows = DatasetVersion.objects.whole().filter(dataset__in=datasets, number=F("dataset__latest"))
    newest = {version.dataset_id: version for version in rows}
    return [_dataset_shape(dataset, newest.get(dataset.pk)) for dataset in datasets]


def dataset_shape(dataset: Dataset) -> dict[str, Any]:
    """Return one dataset in REST form."""
    return _dataset_shape(dataset, dataset.versions.whole().filter(number=dataset.latest).first())


def unknown_version(dataset: Dataset, version: str) -> str:
    """Return that the dataset has no version with this number or tag, and which it has."""
    if not dataset.latest:
        return f"{dataset.name} has no version yet."
    tags = list(dataset.tags.order_by("name").values_list("name", flat=True)[:NAMED])
    tagged = f" and the tags {', '.join(tags)}" if tags else ""
    return f"{dataset.name} has no version {version}; it has the numbers 1 to {dataset.latest}{tagged}."


def unknown_subset(version: DatasetVersion, subset: str) -> str:
    """Return that the version has no subset of this name, and which it has."""
    names = list(subset_rows(version).order_by("subset").values_list("subset", flat=True)[: NAMED + 1])
    if not names:
        return f"{version} has no subsets; save one with: yard dataset subset {version}/{subset} --include PATTERN"
    more = ", ..." if len(names) > NAMED else ""
    return f"{version} has no subset {subset}; it has {', '.join(names[:NAMED])}{more}."


def version_rows(rows: QuerySet[DatasetVersion]) -> list[DatasetVersion]:
    """Return the rows of the query with the relations that `version_shapes` needs."""
    return list(rows.select_related("dataset__project", "parent"))


def version_shapes(versions: Sequence[DatasetVersion]) -> list[dict[str, Any]]:
    """Return versions in REST form."""
    tags = _tags(versions)
    return [_version_shape(version, tags[version.pk]) for version in versions]


def version_shape(version: DatasetVersion) -> dict[str, Any]:
    """Return one version in REST form."""
    return version_shapes([version])[0]


def child_shape(directory: bytes, child: Child) -> dict[str, Any]:
    """Return a file or directory of a version in REST form. `directory`: the path of the directory that contains it,
    b"" for the top."""
    path = directory + b"/" + child.name if directory else child.name
    return {
        "name": shown(child.name),
        "path": shown(path),
        "kind": "directory" if child.is_directory else KINDS.get(child.kind, "file"),
        "files": child.files,
        "size_bytes": child.size_bytes,
        "sha256": child.digest.hex() or None,
    }


def diff_shape(before: int, after: int, diff: Diff, limit: int) -> dict[str, Any]:
    """Return the differences between the versions numbered `before` and `after` in REST form, at most `limit`
    paths each of added, removed and changed."""
    counts = {"added": len(diff.added), "removed": len(diff.removed), "changed": len(diff.changed)}
    paths = {
        name: [shown(path) for path in found[:limit]]
        for name, found in (("added", diff.added), ("removed", diff.removed), ("changed", diff.changed))
    }
    return {"before": before, "after": after, "counts": counts, **paths}


def shown(path: bytes) -> str:
    """Return a path as text, with bytes that are not UTF-8 as \\xNN."""
    return path.decode("utf-8", "backslashreplace")


def meant(text: str, is_there: Callable[[bytes], bool]) -> bytes:
    """Return the path that `shown` gives as `text`: the one with exactly these bytes if `is_there`, else the one whose
    bytes that are not UTF-8 are the \\xNN in it."""
    path = text.encode(errors="surrogateescape")
    return path if is_there(path) else _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), path)


def meant_in(manifest: Manifest, directory: str, after: str) -> tuple[bytes, bytes]:
    """Return the paths of a directory of a manifest, and of a name in it, given as text (see `meant`)."""
    path = meant(directory, manifest.has)
    prefix = path + b"/" if path else b""
    return path, meant(after, lambda name: manifest.has(prefix + name))


def _tags(versions: Iterable[DatasetVersion]) -> defaultdict[Any, list[str]]:
    found: defaultdict[Any, list[str]] = defaultdict(list)
    rows = DatasetTag.objects.filter(version__in=[version.pk for version in versions]).order_by("name")
    for version, name in rows.values_list("version_id", "name"):
        found[version].append(name)
    return found


def _dataset_shape(dataset: Dataset, newest: DatasetVersion | None) -> dict[str, Any]:
    return {
        "id": str(dataset.pk),
        "project": dataset.project.name,
        "name": dataset.name,
        "description": dataset.description,
        "is_shared": dataset.is_shared,
        "created_by": dataset.created_by,
        "created_at": dataset.created_at,
        "latest": dataset.latest,
        "latest_id": str(newest.pk) if newest else None,
        "files": newest.files if newest else 0,
        "size_bytes": newest.size_bytes if newest else 0,
        "updated_at": newest.created_at if newest else None,
    }


def _version_shape(version: DatasetVersion, tags: list[str]) -> dict[str, Any]:
    return {
        "id": str(version.pk),
        "dataset_id": str(version.dataset_id),
        "dataset": version.dataset.name,
        "project": version.dataset.project.name,
        "number": version.number,
        "subset": version.subset,
        "selection": version.selection or None,
        "parent": version.parent.number if version.parent else None,
        "manifest": version.manifest,
        "message": version.message,
        "author": version.author,
        "created_at": version.created_at,
        "files": version.files,
        "size_bytes": version.size_bytes,
        "files_added": version.files_added,
        "files_changed": version.files_changed,
        "files_removed": version.files_removed,
        "tags": tags,
    }
