"""Datasets for tests: versions whose content is really in a lake."""

from hashlib import sha256

from controlplane.access import SYSTEM
from controlplane.models import Project
from datasets.actions.datasets import commit_version, create_dataset, keep_manifest
from datasets.actions.subsets import save_subset
from datasets.ingest.packs import pack_index
from datasets.manifests import FILE, Entry, Manifest, make_manifest
from datasets.models import Dataset, DatasetVersion
from datasets.queries.lake import lake_of
from datasets.selection import Selection


def pack_of(*contents: bytes) -> bytes:
    """A pack of these contents."""
    return b"".join((*contents, pack_index((sha256(one).digest(), len(one)) for one in contents)))


def manifest_of(files: dict[str, str]) -> Manifest:
    """The manifest of paths and texts."""
    return make_manifest(
        Entry(path.encode(), FILE, len(text.encode()), sha256(text.encode()).digest())
        for path, text in files.items()
    )


def make_dataset(project: Project, name: str = "xray", **fields: object) -> Dataset:
    """An empty dataset."""
    return create_dataset(project, {"name": name, **fields}, actor=SYSTEM)


def make_version(dataset: Dataset, files: dict[str, str], message: str = "") -> DatasetVersion:
    """The next version of a dataset: paths and texts."""
    manifest = manifest_of(files)
    lake_of(dataset.project).put_pack(memoryview(pack_of(*(text.encode() for text in files.values()))))
    keep_manifest(dataset.project, manifest.encode())
    dataset.refresh_from_db()
    return commit_version(dataset, manifest.hash, dataset.latest, message, actor=SYSTEM)[0]


def make_subset(version: DatasetVersion, name: str, *patterns: str) -> DatasetVersion:
    """A subset of a version."""
    selection = Selection([pattern.encode() for pattern in patterns])
    return save_subset(version, name, selection, actor=SYSTEM)[0]
