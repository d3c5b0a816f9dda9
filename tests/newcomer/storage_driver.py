"""Registers a minimal driver of storage classes: a mounted file system with a setting of its own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets.storage.classes import StorageClass
from datasets.storage.drivers import Driver, DriverSettings, mount_root
from datasets.storage.volumes import FolderVolumes


def read(name: str, stated: Mapping[str, Any], state_dir: Path) -> DriverSettings:
    if not stated.get("pool"):
        raise ValueError(f"The storage class {name} needs `pool`.")
    return DriverSettings(mount_root(name, stated), {"scratch": 200}, stated["pool"])


def open_class(found: StorageClass, project_id: int, size_bytes: int, service_tier: str) -> FolderVolumes:
    return FolderVolumes(found.directory / str(found.config) / str(project_id))


DRIVER = Driver(
    name="lustre",
    fields=frozenset({"mount_root", "pool"}),
    read=read,
    opens="tests.newcomer.storage_driver:open_class",
    is_size_enforced=True,
)
