"""Models of code trees, datasets, caches, volumes, snapshots and artifacts, one file per kind; all can be
imported from here."""

from datasets.models.artifacts import Artifact
from datasets.models.caches import Cache, CacheLocation, DatasetUse
from datasets.models.code import CodeTree
from datasets.models.code_imports import CodeImport
from datasets.models.datasets import Dataset, DatasetTag, DatasetVersion
from datasets.models.registrations import DatasetRegistration
from datasets.models.volume_readings import VolumeReading
from datasets.models.volumes import (
    KnownStorageClass,
    Snapshot,
    SnapshotCause,
    SnapshotNumber,
    Volume,
    VolumeUse,
)

__all__ = [
    "Artifact",
    "Cache",
    "CacheLocation",
    "CodeImport",
    "CodeTree",
    "Dataset",
    "DatasetRegistration",
    "DatasetTag",
    "DatasetUse",
    "DatasetVersion",
    "KnownStorageClass",
    "Snapshot",
    "SnapshotCause",
    "SnapshotNumber",
    "Volume",
    "VolumeReading",
    "VolumeUse",
]
