"""Datasets for tests: versions whose contents are stored in a lake."""

import os
from hashlib import sha256

from controlplane.access import SYSTEM
from controlplane.models import Project
from datasets.actions.datasets import commit_version, create_dataset, keep_manifest
from datasets.actions.subsets import new_subset, save_subset
from datasets.ingest.packs import pack_index
from datasets.manifests import FILE, Entry, Manifest, make_manifest
from datasets.models import Dataset, DatasetVersion
from datasets.queries.lake import lake_of
from datasets.selection import Selection


def pack_of(*contents: bytes) -> bytes:
    return b"".join((*contents, pack_index((sha256(one).digest(), len(one)) for one in contents)))


def manifest_of(files: dict[str, str]) -> Manifest:
    """Return the manifest of files given as path -> text; surrogates in paths are bytes that are not UTF-8."""
    return make_manifest(
        Entry(os.fsencode(path), FILE, len(text.encode()), sha256(text.encode()).digest())
        for path, text in files.items()
    )


def make_dataset(project: Project, name: str = "xray", **fields: object) -> Dataset:
    return create_dataset(project, {"name": name, **fields}, actor=SYSTEM)


def make_version(dataset: Dataset, files: dict[str, str], message: str = "") -> DatasetVersion:
    """Store files (path -> text) and commit them as the next version of the dataset."""
    manifest = manifest_of(files)
    lake_of(dataset.project).put_pack(memoryview(pack_of(*(text.encode() for text in files.values()))))
    keep_manifest(dataset, manifest.encode())
    dataset.refresh_from_db()
    return commit_version(dataset, manifest.hash, dataset.latest, message, actor=SYSTEM)[0]


def make_subset(version: DatasetVersion, name: str, *patterns: str) -> DatasetVersion:
    """Create a subset of a version with the files that match one of the patterns."""
    selection = Selection([pattern.encode() for pattern in patterns])
    return save_subset(new_subset(version, selection), name, actor=SYSTEM)[0]
