"""Pages of a version's content: directories, files with a preview, and the difference between two versions."""

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _

from controlplane.access import Actor, NotVisible
from controlplane.models import Project
from dashboards.pages.base_page import show, signed_in
from datasets.access import dataset_for
from datasets.manifests import LINK, Entry, Manifest, compare
from datasets.models import Dataset, DatasetVersion
from datasets.pages.datasets import dataset_context, newest_numbers
from datasets.previews import PREVIEW_BYTES, is_picture, text_of
from datasets.queries.datasets import (
    LATEST,
    child_shape,
    diff_shape,
    find_version,
    meant,
    meant_in,
    shown,
    version_shape,
)
from datasets.queries.lake import lake_of, manifest_named
from datasets.queries.page_reads import PageReads
from datasets.storage.base import Blocked, ContentDamaged, ContentMissing

CHILDREN_SHOWN, PATHS_SHOWN, VERSIONS_OFFERED = 200, 200, 100
# Larger images are not shown, only offered for download.
PICTURE_MOST_BYTES = 20 << 20


@signed_in
def dataset_files(request: HttpRequest, actor: Actor, dataset_id: str) -> HttpResponseBase:
    """Show a directory of a version and the selected file: `?version=3&path=images&file=images/a.png`."""
    dataset = dataset_for(actor, dataset_id)
    version = _version(dataset, request.GET.get("version", LATEST))
    reads = PageReads()
    manifest, trouble = read_manifest(reads, dataset.project, version.manifest)
    files = manifest or Manifest.empty()
    given = request.GET.get("path", "").strip("/"), request.GET.get("after", "")
    directory, after = meant_in(files, *given)
    children = files.children(directory, after, CHILDREN_SHOWN + 1)
    path = request.GET.get("file", "")
    entry = files.find(meant(path, files.has))
    if manifest is not None and path and entry is None:
        trouble = _("Version {version} has no file {path}.").format(version=version.name, path=path[:200])
    elif manifest is not None and directory and not (children or after):
        named = {"version": version.name, "path": shown(directory)[:200]}
        trouble = _("Version {version} has no directory {path}.").format(**named)
    context = {
        **dataset_context(actor, dataset),
        "version": version_shape(version),
        "names": _names(dataset, version),
        "trouble": trouble,
        "directory": shown(directory),
        "crumbs": _crumbs(dataset, version, directory),
        "children": [
            _row(dataset, version, directory, child_shape(directory, child))
            for child in children[:CHILDREN_SHOWN]
        ],
        "next": _address(dataset, version, path=shown(directory), after=shown(children[-2].name))
        if len(children) > CHILDREN_SHOWN
        else "",
        "file": None if entry is None else _preview(reads, version, entry),
    }
    return show(request, actor, "datasets/files.html", context)


@signed_in
def dataset_diff(request: HttpRequest, actor: Actor, dataset_id: str) -> HttpResponseBase:
    """Show the difference between two versions: `?before=3&after=4`; by default between the newest and its
    parent."""
    dataset = dataset_for(actor, dataset_id)
    after = _version(dataset, request.GET.get("after", LATEST))
    asked = request.GET.get("before", str(after.parent.number if after.parent else 0))
    before = None if asked == "0" else _version(dataset, asked)
    reads = PageReads()
    old, old_trouble = (
        (Manifest.empty(), "") if before is None else read_manifest(reads, dataset.project, before.manifest)
    )
    new, new_trouble = read_manifest(reads, dataset.project, after.manifest)
    found = None
    if old is not None and new is not None:
        number = before.number if before else 0
        found = diff_shape(number, after.number, compare(old, new), PATHS_SHOWN)
    context = {
        **dataset_context(actor, dataset),
        "before": before.number if before else 0,
        "after": after.number,
        "numbers": newest_numbers(dataset),
        "diff": found,
        "trouble": old_trouble or new_trouble,
        "sorts": [] if found is None else _sorts(found, before, after),
    }
    return show(request, actor, "datasets/diff.html", context)


def _names(dataset: Dataset, version: DatasetVersion) -> list[tuple[str, bool]]:
    """Return the versions that can be selected, newest first, each with whether it is shown."""
    rows = dataset.versions.order_by("-number", "subset")[:VERSIONS_OFFERED]
    return [(one.name, one.pk == version.pk) for one in rows]


def _sorts(
    found: dict[str, Any], before: DatasetVersion | None, after: DatasetVersion
) -> list[dict[str, Any]]:
    """Return one entry for added, changed and removed paths each. A path comes with the address of its file, in
    the version `after`, or `before` for a removed one. `found`: the difference in REST form."""
    labels = (("added", _("Added")), ("changed", _("Changed")), ("removed", _("Removed")))
    return [
        {
            "label": label,
            "count": found["counts"][name],
            "paths": [
                (path, _file_address(before if name == "removed" else after, path)) for path in found[name]
            ],
            "more": found["counts"][name] - len(found[name]),
        }
        for name, label in labels
    ]


def _version(dataset: Dataset, name: str) -> DatasetVersion:
    version = find_version(dataset, name)
    if version is None:
        raise NotVisible(f"{dataset.name} has no version {name[:80]!r}.")
    return version


def read_manifest(reads: PageReads, project: Project, name: str) -> tuple[Manifest | None, str]:
    """Return (manifest, "") for the manifest with the hash `name` of the project's lake; (None, the reason) if it
    cannot be read."""
    try:
        return reads(manifest_named, project, name), ""
    except ContentMissing:
        return None, _("The list of files is not in the lake. Restore the lake from its backup.")
    except Blocked as blocked:
        return None, blocked.detail


def _row(
    dataset: Dataset, version: DatasetVersion, directory: bytes, child: dict[str, Any]
) -> dict[str, Any]:
    is_directory = child["kind"] == "directory"
    below = {"path": child["path"]} if is_directory else {"path": shown(directory), "file": child["path"]}
    return child | {"is_directory": is_directory, "url": _address(dataset, version, **below)}


def _crumbs(dataset: Dataset, version: DatasetVersion, directory: bytes) -> list[tuple[str, str]]:
    names = [name for name in shown(directory).split("/") if name]
    return [
        (name, _address(dataset, version, path="/".join(names[: place + 1])))
        for place, name in enumerate(names)
    ]


def _file_address(version: DatasetVersion | None, path: str) -> str:
    assert version is not None, "nothing is removed from no version"
    return _address(version.dataset, version, path=path.rpartition("/")[0], file=path)


def _address(dataset: Dataset, version: DatasetVersion, **fields: str) -> str:
    filled = {"version": version.name} | {name: text for name, text in fields.items() if text}
    # On a narrow screen the file is below the list.
    place = "#file" if fields.get("file") else ""
    return f"{reverse('dataset-files', args=[dataset.pk])}?{urlencode(filled)}{place}"


def _preview(reads: PageReads, version: DatasetVersion, entry: Entry) -> dict[str, Any]:
    """Return the preview of a file: an image's URL, the beginning of a text, or neither."""
    name = shown(entry.path)
    content = reverse("api:version-content", args=[version.pk])
    found: dict[str, Any] = {
        "path": name,
        "name": name.rpartition("/")[2],
        "size_bytes": entry.size_bytes,
        "sha256": entry.digest.hex(),
        "url": f"{content}?{urlencode({'path': entry.path})}",
        "is_link": entry.kind == LINK,
        "is_picture": is_picture(name) and entry.size_bytes <= PICTURE_MOST_BYTES,
        "text": None,
    }
    if found["is_picture"]:
        return found
    try:
        beginning = reads(_beginning, version.dataset.project, entry.digest)
    except ContentMissing:
        return found | {"trouble": _("Its content is not in the lake.")}
    except ContentDamaged:
        return found | {"trouble": _("Its content in the lake is damaged. Check it: yard dataset verify.")}
    except Blocked as blocked:
        return found | {"trouble": blocked.detail}
    return found | {
        "text": text_of(beginning, is_whole=entry.size_bytes <= PREVIEW_BYTES),
        "is_cut": entry.size_bytes > PREVIEW_BYTES,
    }


def _beginning(project: Project, digest: bytes) -> bytes:
    return lake_of(project).read(digest, 0, PREVIEW_BYTES)
